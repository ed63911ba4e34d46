"""OpenAI's APIs of chat completions and of text completions: parsing of requests, and bodies of responses."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from marl.core.types import ToolCall
from marl.gateway.calls import (
    MAX_CHOICES,
    AnswerShownToProgram,
    Conversation,
    JsonAnswerFormat,
    ModelCallFields,
    function_schema_json,
    message_content_text,
    parse_request_fields,
    parse_sent_tool_call,
)

_FINISH_REASONS = {"stop": "stop", "length": "length"}


class _CalledFunction(BaseModel):
    name: str
    arguments: str = "{}"


class _ToolCall(BaseModel):
    id: str = ""
    function: _CalledFunction


class _ChatMessage(BaseModel):
    model_config = ConfigDict(extra="ignore")

    role: str
    content: Any = None
    tool_calls: list[_ToolCall] | None = None
    tool_call_id: str = ""


class _DeclaredFunction(BaseModel):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class _DeclaredTool(BaseModel):
    type: Literal["function"]
    function: _DeclaredFunction


class _StreamOptions(BaseModel):
    include_usage: bool = False


class ChatCompletionBody(ModelCallFields):
    """JSON body of a request for chat completions."""

    messages: list[_ChatMessage] = Field(min_length=1)
    tools: list[_DeclaredTool] | None = None
    n: int = Field(1, ge=1, le=MAX_CHOICES)
    stream_options: _StreamOptions | None = None
    response_format: JsonAnswerFormat | None = None
    logprobs: bool | None = None
    return_token_ids: bool | None = None


class TextCompletionBody(ModelCallFields):
    """JSON body of a request for text completions."""

    prompt: str
    n: int = Field(1, ge=1, le=MAX_CHOICES)
    return_token_ids: bool | None = None


class ChatCompletionRequest:
    """Request to OpenAI's chat completions (`POST /v1/chat/completions`), and the responses to it."""

    list_field = "messages"

    def __init__(self, body: dict[str, Any], conversation: Conversation) -> None:
        """`conversation`: messages before those of `body`, which are appended."""
        self._body: ChatCompletionBody = parse_request_fields(ChatCompletionBody, body)
        for index, message in enumerate(self._body.messages):
            text = message_content_text(message.content, f"messages.{index}.content")
            tool_calls: list[ToolCall] = []
            for number, call in enumerate(message.tool_calls or []):
                place = f"messages.{index}.tool_calls.{number}.function.arguments"
                tool_calls.append(parse_sent_tool_call(call.id, call.function.name, call.function.arguments, place))
            conversation.add_message(message.role, text, tool_calls=tool_calls, call_id=message.tool_call_id)
        tools: list[str] = []
        for tool in self._body.tools or []:
            tools.append(function_schema_json(tool.function.name, tool.function.description, tool.function.parameters))
        self.call = self._body.to_model_call(conversation, tools, self._body.n, self._body.response_format)

    def response_body(self, answers: Sequence[AnswerShownToProgram]) -> dict[str, Any]:
        """Return the JSON body of the response with `answers`."""
        choices: list[dict[str, Any]] = []
        for index, answer in enumerate(answers):
            message = {"role": "assistant", "content": answer.content or None, "refusal": None}
            if answer.tool_calls:
                message["tool_calls"] = _tool_call_fields(answer)
            elif answer.content == "":
                message["content"] = ""
            choices.append({"index": index, "message": message, **self._choice_fields(answer)})
        return self._response_fields("chat.completion", answers, choices) | {
            "usage": token_usage_fields(answers),
            **self._prompt_token_ids_field(answers),
        }

    def stream_events(self, answers: Sequence[AnswerShownToProgram]) -> Iterator[tuple[str, Any]]:
        """Yield ("", data) for each server-sent event of the streamed response with `answers`."""
        for index, answer in enumerate(answers):
            delta: dict[str, Any] = {"role": "assistant", "content": answer.content}
            if answer.tool_calls:
                delta["tool_calls"] = [call | {"index": n} for n, call in enumerate(_tool_call_fields(answer))]
            first = {"index": index, "delta": delta, "finish_reason": None}
            last = {"index": index, "delta": {}, **self._choice_fields(answer)}
            yield (
                "",
                self._response_fields("chat.completion.chunk", answers, [first])
                | self._prompt_token_ids_field(answers),
            )
            yield "", self._response_fields("chat.completion.chunk", answers, [last])
        if self._body.stream_options and self._body.stream_options.include_usage:
            yield (
                "",
                self._response_fields("chat.completion.chunk", answers, []) | {"usage": token_usage_fields(answers)},
            )
        yield "", "[DONE]"

    def _choice_fields(self, answer: AnswerShownToProgram) -> dict[str, Any]:
        completion = answer.completion
        reason = "tool_calls" if answer.tool_calls else _FINISH_REASONS.get(completion.finish, "stop")
        fields: dict[str, Any] = {"finish_reason": reason, "logprobs": None}
        if self._body.logprobs:
            # The gateway does not know the texts of single tokens, so it writes their ids, in the form that vLLM uses.
            tokens: list[dict[str, Any]] = []
            for token, logprob in zip(completion.token_ids, completion.logprobs, strict=True):
                logprob = max(logprob, -1e30)  # JSON has no -inf
                tokens.append({"token": f"token_id:{token}", "logprob": logprob, "bytes": None, "top_logprobs": []})
            fields["logprobs"] = {"content": tokens, "refusal": None}
        if self._body.return_token_ids:
            fields["token_ids"] = list(completion.token_ids)
        return fields

    def _prompt_token_ids_field(self, answers: Sequence[AnswerShownToProgram]) -> dict[str, Any]:
        if not self._body.return_token_ids:
            return {}
        return {"prompt_token_ids": list(answers[0].completion.prompt_ids)}

    def _response_fields(
        self, object_type: str, answers: Sequence[AnswerShownToProgram], choices: list[Any]
    ) -> dict[str, Any]:
        created = int(time.time())
        identifier = f"chatcmpl-{answers[0].call_id:x}"
        return {
            "id": identifier,
            "object": object_type,
            "created": created,
            "model": self._body.model,
            "choices": choices,
        }


class TextCompletionRequest:
    """Request to OpenAI's text completions (`POST /v1/completions`). The prompt becomes a user message."""

    list_field = "prompt"

    def __init__(self, body: dict[str, Any], conversation: Conversation) -> None:
        """`conversation`: an empty conversation, to which the text completion's prompt is added as a user message."""
        self._body: TextCompletionBody = parse_request_fields(TextCompletionBody, body)
        conversation.add_message("user", self._body.prompt)
        self.call = self._body.to_model_call(conversation, answer_count=self._body.n)

    def response_body(self, answers: Sequence[AnswerShownToProgram]) -> dict[str, Any]:
        """Return the JSON body of the response with `answers`."""
        choices: list[dict[str, Any]] = []
        for index, answer in enumerate(answers):
            reason = _FINISH_REASONS.get(answer.completion.finish, "stop")
            choice = {"index": index, "text": answer.completion.text, "finish_reason": reason, "logprobs": None}
            if self._body.return_token_ids:
                choice["token_ids"] = list(answer.completion.token_ids)
                choice["prompt_token_ids"] = list(answer.completion.prompt_ids)
            choices.append(choice)
        return {
            "id": f"cmpl-{answers[0].call_id:x}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": self._body.model,
            "choices": choices,
            "usage": token_usage_fields(answers),
        }

    def stream_events(self, answers: Sequence[AnswerShownToProgram]) -> Iterator[tuple[str, Any]]:
        """Yield ("", data) for each server-sent event of the streamed response with `answers`."""
        yield "", self.response_body(answers)
        yield "", "[DONE]"


def _tool_call_fields(answer: AnswerShownToProgram) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = []
    for call in answer.tool_calls:
        function = {"name": call.name, "arguments": call.arguments}
        calls.append({"id": call.id, "type": "function", "function": function})
    return calls


def token_usage_fields(answers: Sequence[AnswerShownToProgram]) -> dict[str, int]:
    """Return the field `usage` of a response: the token counts of `answers` to one prompt."""
    prompt, completion = (
        answers[0].prompt_and_completion_token_counts[0],
        sum(answer.prompt_and_completion_token_counts[1] for answer in answers),
    )
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
