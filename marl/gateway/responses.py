"""OpenAI's Responses API, which the Agents SDK uses by default: parsing of requests, and bodies of responses."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from marl.gateway.calls import (
    AnswerShownToProgram,
    ApiError,
    Conversation,
    JsonAnswerFormat,
    ModelCallFields,
    function_schema_json,
    message_content_text,
    parse_request_fields,
    parse_sent_tool_call,
)

_IGNORED_ITEMS = ("reasoning",)


class _TextSettings(BaseModel):
    format: JsonAnswerFormat | None = None


class ResponsesBody(ModelCallFields):
    """JSON body of a request to OpenAI's Responses API."""

    instructions: str | None = None
    input: str | list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    previous_response_id: str | None = None
    text: _TextSettings | None = None


class _InputItem(BaseModel):
    """Item of a request's field `input`: a message, a tool call or a tool result."""

    model_config = ConfigDict(extra="ignore")

    type: str = "message"
    role: str = ""
    content: Any = None
    name: str = ""
    arguments: str = "{}"
    call_id: str = ""
    output: Any = None


class ResponsesRequest:
    """Request to OpenAI's Responses API (`POST /v1/responses`), and the responses to it."""

    list_field = "input"

    def __init__(
        self, body: dict[str, Any], conversation: Conversation, responses: Mapping[str, Conversation] | None = None
    ) -> None:
        """Parse `body`.

        Args:
            body: fields of the request.
            conversation: messages before those of `body`, which are appended.
            responses: id of an earlier response -> its conversation without instructions.
        """
        self._body: ResponsesBody = parse_request_fields(ResponsesBody, body)
        if previous := self._body.previous_response_id:
            if previous not in (responses or {}):
                raise ApiError(404, f"no response {previous[:80]!r} here", field="previous_response_id")
            conversation = (responses or {})[previous].copy()
        items = self._body.input
        for index, item in enumerate([{"role": "user", "content": items}] if isinstance(items, str) else items):
            self._add_input_item(conversation, parse_request_fields(_InputItem, item), f"input.{index}")
        self._conversation = conversation
        full = conversation.with_system_message(self._body.instructions)
        if not full.messages():
            raise ApiError(400, "input: no message", field="input")
        tools: list[str] = []
        for index, tool in enumerate(self._body.tools or []):
            if tool.get("type") != "function" or not isinstance(tool.get("name"), str):
                place = f"tools.{index}.type"
                raise ApiError(400, f"{place}: {tool.get('type')!r} is not supported; choices: function", field=place)
            tools.append(function_schema_json(tool["name"], tool.get("description"), tool.get("parameters")))
        answer_format = self._body.text.format if self._body.text else None
        self.call = self._body.to_model_call(full, tools, answer_format=answer_format)

    def _add_input_item(self, conversation: Conversation, item: _InputItem, field_path: str) -> None:
        match item.type:
            case "message":
                conversation.add_message(item.role, message_content_text(item.content, f"{field_path}.content"))
            case "function_call":
                # An answer's text and its tool calls are separate items in this API, but form a single message.
                place = f"{field_path}.arguments"
                conversation.add_tool_call(parse_sent_tool_call(item.call_id, item.name, item.arguments, place))
            case "function_call_output":
                result = message_content_text(item.output, f"{field_path}.output")
                conversation.add_message("tool", result, call_id=item.call_id)
            case kind if kind not in _IGNORED_ITEMS:
                raise ApiError(400, f"{field_path}.type: {kind!r} is not supported", field=f"{field_path}.type")

    def response_id(self, answers: Sequence[AnswerShownToProgram]) -> str:
        """Return the id of the response with `answers[0]`."""
        return f"resp-{answers[0].call_id:x}"

    def extended_conversation(self, answers: Sequence[AnswerShownToProgram]) -> Conversation:
        """Return the conversation including `answers[0]`, without instructions, for `previous_response_id`."""
        conversation = self._conversation.copy()
        conversation.add_message("assistant", answers[0].content, tool_calls=answers[0].tool_calls)
        return conversation

    def response_body(self, answers: Sequence[AnswerShownToProgram]) -> dict[str, Any]:
        """Return the JSON body of the response with `answers[0]`."""
        return self._response_fields(answers, "completed", self._output_items(answers[0]))

    def stream_events(self, answers: Sequence[AnswerShownToProgram]) -> Iterator[tuple[str, Any]]:
        """Yield (name, data) for each server-sent event of the streamed response with `answers[0]`."""
        for number, (name, data) in enumerate(self._unnumbered_events(answers)):
            yield name, {"type": name, "sequence_number": number, **data}

    def _unnumbered_events(self, answers: Sequence[AnswerShownToProgram]) -> Iterator[tuple[str, dict[str, Any]]]:
        yield "response.created", {"response": self._response_fields(answers, "in_progress", [])}
        items = self._output_items(answers[0])
        for index, item in enumerate(items):
            place = {"item_id": item["id"], "output_index": index}
            if item["type"] == "function_call":
                yield "response.output_item.added", {"output_index": index, "item": item | {"arguments": ""}}
                yield "response.function_call_arguments.delta", place | {"delta": item["arguments"]}
                yield "response.function_call_arguments.done", place | {"arguments": item["arguments"]}
            else:
                part = item["content"][0]
                place |= {"content_index": 0}
                yield "response.output_item.added", {"output_index": index, "item": item | {"content": []}}
                yield "response.content_part.added", place | {"part": part | {"text": ""}}
                yield "response.output_text.delta", place | {"delta": part["text"], "logprobs": []}
                yield "response.output_text.done", place | {"text": part["text"], "logprobs": []}
                yield "response.content_part.done", place | {"part": part}
            yield "response.output_item.done", {"output_index": index, "item": item}
        yield "response.completed", {"response": self._response_fields(answers, "completed", items)}

    def _output_items(self, answer: AnswerShownToProgram) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = []
        if answer.content or not answer.tool_calls:
            part = {"type": "output_text", "text": answer.content, "annotations": [], "logprobs": []}
            identifier = f"msg-{answer.call_id:x}"
            message = {"id": identifier, "type": "message", "role": "assistant", "status": "completed"}
            items.append(message | {"content": [part]})
        for call in answer.tool_calls:
            fields = {"id": f"fc-{call.id}", "type": "function_call", "status": "completed", "call_id": call.id}
            items.append(fields | {"name": call.name, "arguments": call.arguments})
        return items

    def _response_fields(
        self, answers: Sequence[AnswerShownToProgram], status: str, items: list[Any]
    ) -> dict[str, Any]:
        prompt, completion = answers[0].prompt_and_completion_token_counts
        usage = {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": completion,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + completion,
        }
        return {
            "id": self.response_id(answers),
            "object": "response",
            "created_at": int(time.time()),
            "status": status,
            "model": self._body.model,
            "output": items,
            "instructions": self._body.instructions,
            "previous_response_id": self._body.previous_response_id,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": self._body.tools or [],
            "temperature": self._body.temperature,
            "top_p": self._body.top_p,
            "error": None,
            "incomplete_details": None,
            "metadata": {},
            "usage": usage if status == "completed" else None,
        }
