"""Common form of programs' model calls, and of the answers, for all supported HTTP APIs."""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from marl.core.config import Sampling
from marl.core.fast_records import fast_record
from marl.core.list_snapshot import ListSnapshot
from marl.core.types import Completion, Message, ToolCall
from marl.host.untrusted_text import parse_json
from marl.text.answers import remove_thoughts
from marl.text.tool_calls import split_tool_calls, to_tool_call

MAX_CHOICES = 8
"""Maximum number of answers to one request (`n`)."""
MAX_TOKENS = 10_000_000
"""Maximum number of tokens of a call that sets none. The role and the model's context set lower maximums."""
_HASHED_BYTES = 2000
"""Number of bytes that are hashed at once. For 2,048 and more, `hashlib` would release the interpreter's lock and then
wait for it."""
_TEXT_PARTS = ("text", "input_text", "output_text")
_TOOL_CALL_ID = re.compile(r"\bcall_([0-9a-f]{1,15})x[0-9]{1,3}\b")


class ApiError(Exception):
    """Error that is sent to the client as an HTTP response."""

    def __init__(self, status: int, message: str, *, field: str = "", code: str = "", may_retry: bool = True) -> None:
        super().__init__(message)
        self.status, self.message, self.field, self.code, self.may_retry = status, message, field, code, may_retry


class _NamedSchema(BaseModel):
    """Field `json_schema` of a format in chat completions."""

    schema_fields: dict[str, Any] = Field(alias="schema")


class JsonAnswerFormat(BaseModel):
    """Format that a request sets for the answer: a text, a JSON object, or a JSON object that satisfies a schema."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: _NamedSchema | None = None
    """Schema in chat completions."""
    schema_fields: dict[str, Any] | None = Field(None, alias="schema")
    """Schema in OpenAI's Responses API and Anthropic's Messages API."""

    @model_validator(mode="after")
    def _check_schema_is_given(self) -> Self:
        if self.type == "json_schema" and self.json_schema is None and self.schema_fields is None:
            raise ValueError("the type 'json_schema' needs a schema")
        return self

    @property
    def answer_schema(self) -> str | None:
        """The JSON schema as text, "" if any JSON object is asked for, or None for a text."""
        if self.type != "json_schema":
            return "" if self.type == "json_object" else None
        # The keys keep their order, because constrained decoding writes an object's properties in this order.
        return json.dumps(self.json_schema.schema_fields if self.json_schema else self.schema_fields)


class ModelCallFields(BaseModel):
    """Model, stream and sampling settings in the body of a request, under the field names of all supported APIs."""

    model_config = ConfigDict(extra="ignore")

    model: str = ""
    stream: bool | None = None
    temperature: float | None = Field(None, ge=0, le=100)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=0)
    max_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    max_completion_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    max_output_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    stop: str | list[str] | None = None
    stop_sequences: list[str] | None = None

    def to_sampling(self) -> Sampling:
        """Return the sampling settings, with defaults for omitted fields."""
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or self.stop_sequences or []
        limits = (self.max_tokens, self.max_completion_tokens, self.max_output_tokens)
        return _make_sampling(
            1.0 if self.temperature is None else self.temperature,
            self.top_p or 1.0,
            self.top_k or 0,
            min([limit for limit in limits if limit is not None], default=MAX_TOKENS),
            tuple(filter(None, stop)),
        )

    def to_model_call(
        self,
        conversation: Conversation,
        tool_schemas: Iterable[str] = (),
        answer_count: int = 1,
        answer_format: JsonAnswerFormat | None = None,
    ) -> ModelCall:
        """Return the call of the request. `tool_schemas` has the JSON schemas of the declared tools."""
        return ModelCall(
            messages=conversation.messages(),
            conversation=conversation.digest,
            model=self.model,
            sampling=self.to_sampling(),
            tools=tuple(tool_schemas),
            tool_sources=tuple(conversation.tool_sources),
            answer_schema=answer_format.answer_schema if answer_format else None,
            choices=answer_count,
            stream=bool(self.stream),
        )


@fast_record
@dataclass(frozen=True, slots=True)
class ModelCall:
    """Model call of a program: conversation, tools and sampling settings."""

    messages: Sequence[Message] = field(compare=False)
    conversation: str
    """Digest of `messages`, by which calls are compared and hashed."""
    model: str
    sampling: Sampling
    tools: tuple[str, ...] = ()
    """JSON schemas of the declared tools, in the form of chat completions."""
    tool_sources: tuple[tuple[int, int], ...] = field(default=(), compare=False)
    """(index of a message, id of an earlier call) for each message with a result of that call's tool calls."""
    answer_schema: str | None = None
    """JSON schema of the answer; "" for any JSON object, None for a text."""
    choices: int = 1
    """Number of answers to sample."""
    stream: bool = False

    @property
    def equality_key(self) -> Hashable:
        """Value that is equal for equal calls and does not hold their messages."""
        return self.conversation, self.model, self.sampling, self.tools, self.answer_schema, self.choices, self.stream


@lru_cache(maxsize=256)
def _make_sampling(temperature: float, top_p: float, top_k: int, max_tokens: int, stop: tuple[str, ...]) -> Sampling:
    """Return sampling settings. They are cached, because most calls of a program have equal ones."""
    return Sampling(temperature=temperature, top_p=top_p, top_k=top_k, max_tokens=max_tokens, stop=stop)


class AnswerShownToProgram(NamedTuple):
    """Answer to a model call as the program reads it: content without thoughts, and parsed tool calls."""

    completion: Completion
    content: str
    """Text without thoughts and tool calls."""
    tool_calls: tuple[ToolCall, ...]
    """Parsed tool calls, with the ids that the program reads."""
    call_id: int

    @classmethod
    def from_completion(cls, call_id: int, completion: Completion, *, has_tools: bool) -> AnswerShownToProgram:
        """Return `completion`, the answer to call `call_id`, as the program reads it.

        Without tools in the call (`has_tools`), an answer that spells a tool call is a text.
        """
        content, tool_calls = remove_thoughts(completion.text).strip(), ()
        if has_tools:
            content, tool_calls = split_tool_calls(content)
        # The id of a tool call contains `call_id`, to recognise the tool's result.
        identified = [tool_call._replace(id=f"call_{call_id:x}x{index}") for index, tool_call in enumerate(tool_calls)]
        return cls(completion, content, tuple(identified), call_id)

    @property
    def prompt_and_completion_token_counts(self) -> tuple[int, int]:
        """(number of prompt tokens, number of completion tokens)."""
        return len(self.completion.prompt_ids), len(self.completion.token_ids)


@dataclass(slots=True)
class Conversation:
    """Builder of a model call's messages, which records the messages with tool results.

    Tool calls get ids of their own in the messages, as the ids that clients send depend on the order of parallel calls.
    """

    _messages: list[Message] = field(default_factory=list[Message])
    """List that begins with the messages. Its further messages belong to conversations that continue this one."""
    _length: int = 0
    """Number of messages."""
    _shared_length: int = 0
    """Number of first messages that snapshots and other conversations share, so that they must not change."""
    tool_sources: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    _hasher: blake2b = field(default_factory=lambda: blake2b(digest_size=16))
    """Hasher of the messages so far, without those in `_unhashed`."""
    _unhashed: list[str] = field(default_factory=list[str])
    """Entries of the latest messages. They are hashed together, which costs less than one by one."""
    _tool_calls: dict[str, ToolCall] = field(default_factory=dict[str, ToolCall])
    """Client's id of a tool call -> the tool call with its id in the messages."""

    def messages(self) -> Sequence[Message]:
        """Return the messages so far."""
        self._shared_length = self._length
        return ListSnapshot(self._messages, self._length)

    def copy(self) -> Conversation:
        """Return an equal conversation, which can be extended on its own."""
        self._shared_length = self._length
        return Conversation(
            self._messages,
            self._length,
            self._length,
            self.tool_sources.copy(),
            self._hasher.copy(),
            self._unhashed.copy(),
            self._tool_calls.copy(),
        )

    @property
    def digest(self) -> str:
        """Hash of the messages."""
        content = "".join(self._unhashed).encode()
        for begin in range(0, len(content), _HASHED_BYTES):
            self._hasher.update(content[begin : begin + _HASHED_BYTES])
        self._unhashed.clear()
        return self._hasher.hexdigest()

    def add_message(self, role: str, text: str, *, tool_calls: Iterable[ToolCall] = (), call_id: str = "") -> None:
        """Append a message.

        Args:
            role: author of the message.
            text: content of the message.
            tool_calls: tool calls of an assistant's message, with the client's ids.
            call_id: client's id of the tool call whose result a tool's message holds.
        """
        match role:
            case "system" | "developer":
                message = Message("system", text)
            case "user" | "assistant":
                message = Message(role, text)
            case "tool":
                called = self._tool_calls.get(call_id) or ToolCall("", "")
                message = Message("tool", text, call_id=called.id, name=called.name)
            case _:
                index = self._length
                raise ApiError(400, f"messages.{index}.role: {role!r} is no role", field=f"messages.{index}.role")
        self._append(message)
        self._add_to_digest(f"{message.role} {message.call_id}", message.content)
        if role == "assistant":
            for tool_call in tool_calls:
                self.add_tool_call(tool_call)
        # A quick test for "call_" comes first, because few of a long dialogue's thousands of messages name a tool call.
        if call_id or "call_" in text:
            callers = {int(number, 16) for number in _TOOL_CALL_ID.findall(f"{call_id} {text}")}
            self.tool_sources += [(self._length - 1, caller) for caller in sorted(callers)]

    def add_tool_call(self, tool_call: ToolCall) -> None:
        """Append `tool_call`, with the client's id, to the assistant's last message, or as a new message."""
        if not self._length or self._messages[self._length - 1].role != "assistant":
            self.add_message("assistant", "")
        number = len(self._tool_calls)
        own = self._tool_calls[tool_call.id or f"{number}"] = tool_call._replace(id=f"{number:09d}")
        before = self._messages[self._length - 1]
        message = before._replace(content=before.content.strip(), calls=(*before.calls, own))
        if self._length > self._shared_length:
            self._messages[self._length - 1] = message
        else:
            self._messages = [*self._messages[: self._length - 1], message]
        self._add_to_digest(f"call {own.id} {len(own.name)} {own.name}", own.arguments)

    def with_system_message(self, system_text: str | None) -> Conversation:
        """Return the conversation that begins with the system message `system_text`, if there is one."""
        if not system_text:
            return self
        result = Conversation()
        result.add_message("system", system_text)
        for message in self.messages():
            result._append(message)
        result.tool_sources += [(index + 1, caller) for index, caller in self.tool_sources]
        result._add_to_digest("messages", self.digest)
        return result

    def _append(self, message: Message) -> None:
        if len(self._messages) > self._length:
            # Another conversation has continued the same messages.
            self._messages = self._messages[: self._length]
        self._messages.append(message)
        self._length += 1

    def _add_to_digest(self, entry_kind: str, text: str) -> None:
        # The length separates the entries: texts may hold any character.
        self._unhashed.append(f"{entry_kind} {len(text)} {text}")


def message_content_text(content: Any, field_path: str) -> str:
    """Return the text of a message's content, which is a text or a list of text parts, joined by line breaks.

    Raises:
        ApiError: naming the field of a part that is no text.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    texts: list[str] = []
    for index, part in enumerate(content if isinstance(content, list) else [content]):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in _TEXT_PARTS or not isinstance(part.get("text"), str):
            place = f"{field_path}.{index}"
            raise ApiError(400, f"{place}.type: {kind!r} is not supported; choices: text", field=f"{place}.type")
        texts.append(part["text"])
    return "\n".join(texts)


def parse_sent_tool_call(call_id: str, name: str, arguments: str, field_path: str) -> ToolCall:
    """Return the tool call that a client sends back in its history. `arguments` is JSON text; "" means no arguments.

    Raises:
        ApiError: naming the field `field_path` of the arguments, if they are no JSON object.
    """
    try:
        parsed = parse_json(arguments or "{}")
    except ValueError as error:
        raise ApiError(400, f"{field_path}: not valid JSON: {error}", field=field_path) from error
    if not isinstance(parsed, dict):
        raise ApiError(400, f"{field_path}: must be a JSON object", field=field_path)
    return to_tool_call(name, parsed, call_id)


def function_schema_json(name: str, description: str | None, parameters: Any) -> str:
    """Return the schema of a tool as JSON text, in the form of OpenAI's chat completions.

    The keys keep OpenAI's order and that of the client, because chat templates show the schema to the model as it is.
    """
    function = {"name": name, "description": description or "", "parameters": parameters or {"type": "object"}}
    return json.dumps({"type": "function", "function": function}, ensure_ascii=False)


def parse_request_fields(fields_class: type[Any], fields: Mapping[str, Any]) -> Any:
    """Return `fields`, JSON fields of a request, as an instance of the pydantic class `fields_class`.

    Raises:
        ApiError: naming the first wrong field.
    """
    try:
        return fields_class.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        field = ".".join(map(str, first["loc"]))
        raise ApiError(400, f"{field}: {first['msg']}", field=field) from error
