"""Anthropic's Messages API: parsing of requests, and bodies of responses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel, Field

from marl.core.types import ToolCall
from marl.gateway.calls import (
    AnswerShownToProgram,
    ApiError,
    Conversation,
    JsonAnswerFormat,
    ModelCallFields,
    function_schema_json,
    message_content_text,
    parse_request_fields,
)
from marl.host.untrusted_text import parse_json
from marl.text.tool_calls import canonical_json, to_tool_call


class _AnthropicMessage(BaseModel):
    role: str
    content: str | list[dict[str, Any]]


class _AnthropicTool(BaseModel):
    name: str
    description: str | None = None
    input_schema: dict[str, Any]


class _OutputSettings(BaseModel):
    format: JsonAnswerFormat | None = None


class AnthropicBody(ModelCallFields):
    """JSON body of a request to Anthropic's Messages API."""

    system: str | list[dict[str, Any]] | None = None
    messages: list[_AnthropicMessage] = Field(min_length=1)
    tools: list[_AnthropicTool] | None = None
    output_config: _OutputSettings | None = None


class AnthropicRequest:
    """Request to Anthropic's Messages API (`POST /v1/messages`), and the responses to it."""

    list_field = "messages"

    def __init__(self, body: dict[str, Any], conversation: Conversation) -> None:
        """`conversation`: messages before those of `body`, which are appended."""
        self._body: AnthropicBody = parse_request_fields(AnthropicBody, body)
        for index, message in enumerate(self._body.messages):
            _add_message(conversation, message, f"messages.{index}.content")
        system = message_content_text(self._body.system, "system")
        tools = [
            function_schema_json(tool.name, tool.description, tool.input_schema) for tool in self._body.tools or []
        ]
        answer_format = self._body.output_config.format if self._body.output_config else None
        full = conversation.with_system_message(system)
        self.call = self._body.to_model_call(full, tools, answer_format=answer_format)

    def response_body(self, answers: Sequence[AnswerShownToProgram]) -> dict[str, Any]:
        """Return the JSON body of the response with `answers[0]`."""
        return self._response_fields(answers[0], self._content_blocks(answers[0]), _stop_reason(answers[0]))

    def stream_events(self, answers: Sequence[AnswerShownToProgram]) -> Iterator[tuple[str, Any]]:
        """Yield (name, data) for each server-sent event of the streamed response with `answers[0]`."""
        answer = answers[0]
        yield "message_start", {"type": "message_start", "message": self._response_fields(answer, [], None)}
        for index, block in enumerate(self._content_blocks(answer)):
            if block["type"] == "text":
                empty, delta = block | {"text": ""}, {"type": "text_delta", "text": block["text"]}
            else:
                empty = block | {"input": {}}
                delta = {"type": "input_json_delta", "partial_json": canonical_json(block["input"])}
            yield "content_block_start", {"type": "content_block_start", "index": index, "content_block": empty}
            yield "content_block_delta", {"type": "content_block_delta", "index": index, "delta": delta}
            yield "content_block_stop", {"type": "content_block_stop", "index": index}
        end = {"stop_reason": _stop_reason(answer), "stop_sequence": None}
        counts = {"output_tokens": answer.prompt_and_completion_token_counts[1]}
        yield "message_delta", {"type": "message_delta", "delta": end, "usage": counts}
        yield "message_stop", {"type": "message_stop"}

    def _content_blocks(self, answer: AnswerShownToProgram) -> list[dict[str, Any]]:
        blocks: list[dict[str, Any]] = []
        if answer.content or not answer.tool_calls:
            blocks.append({"type": "text", "text": answer.content, "citations": None})
        for call in answer.tool_calls:
            fields = {"type": "tool_use", "id": call.id, "name": call.name}
            blocks.append(fields | {"input": parse_json(call.arguments)})
        return blocks

    def _response_fields(
        self, answer: AnswerShownToProgram, blocks: list[Any], stop_reason: str | None
    ) -> dict[str, Any]:
        prompt, completion = answer.prompt_and_completion_token_counts
        return {
            "id": f"msg-{answer.call_id:x}",
            "type": "message",
            "role": "assistant",
            "model": self._body.model,
            "content": blocks,
            "stop_reason": stop_reason,
            "stop_sequence": None,
            "usage": {"input_tokens": prompt, "output_tokens": completion},
        }


def _stop_reason(answer: AnswerShownToProgram) -> str:
    if answer.tool_calls:
        return "tool_use"
    return "max_tokens" if answer.completion.finish == "length" else "end_turn"


def _add_message(conversation: Conversation, message: _AnthropicMessage, field_path: str) -> None:
    """Append `message`, whose blocks are texts, tool calls and results. `field_path` names its content in errors."""
    if isinstance(message.content, str):
        conversation.add_message(message.role, message.content)
        return
    texts: list[Any] = []
    tool_calls: list[ToolCall] = []
    for index, block in enumerate(message.content):
        match block:
            case {"type": "tool_use", "name": str(name), "input": dict() as arguments}:
                tool_calls.append(to_tool_call(name, arguments, str(block.get("id", ""))))
            case {"type": "tool_result", "tool_use_id": str(identifier)}:
                result = message_content_text(block.get("content"), f"{field_path}.{index}.content")
                conversation.add_message("tool", result, call_id=identifier)
            case {"type": "text", "text": str()}:
                texts.append(block)
            case _:
                place = f"{field_path}.{index}.type"
                raise ApiError(400, f"{place}: {block.get('type')!r} is not supported", field=place)
    if texts or tool_calls:
        conversation.add_message(message.role, message_content_text(texts, field_path), tool_calls=tool_calls)
