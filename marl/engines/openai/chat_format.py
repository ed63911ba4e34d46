"""Conversion of requests to OpenAI's chat-completions format, and of responses in this format to completions."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, NonNegativeFloat, ValidationError

from marl.core.config import Config
from marl.core.types import Completion, Finish, Message, Request
from marl.core.usage import RemoteUsage
from marl.host.untrusted_text import parse_json, replace_surrogates
from marl.text.tool_calls import with_call_ids

_FINISH_BY_REASON: dict[str, Finish] = {"length": "length", "content_filter": "aborted", "abort": "aborted"}
"""Finish reason in a response -> finish of the completion. All other reasons, such as `tool_calls`, become `stop`."""
_ENDPOINT_SEED_COUNT = 2**31
"""Number of different seeds. Servers parse the seed into integers of at least 31 bits."""
_MAX_ITEMS = 128
"""Maximum number of choices, and of tool calls, in a response, as at OpenAI."""
_MAX_TOKENS = 2**40


class TokenPrices(Config):
    """Prices of an endpoint for a million tokens, in any currency."""

    example = "prompt: 0.5, completion: 1.5"
    prompt: NonNegativeFloat
    """Price of a million tokens of prompts."""
    completion: NonNegativeFloat
    """Price of a million tokens of completions."""


class _CalledFunction(BaseModel):
    name: str
    arguments: str = "{}"


class _ToolCall(BaseModel):
    function: _CalledFunction


class _Message(BaseModel):
    content: str | None = None
    reasoning_content: str | None = None
    """Thought of the model, if the server moves thoughts out of the content (as vLLM and DeepSeek do)."""
    refusal: str | None = None
    tool_calls: list[_ToolCall] | None = Field(default=None, max_length=_MAX_ITEMS)


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None = None


class _TokenCounts(BaseModel):
    prompt_tokens: int = Field(ge=0, le=_MAX_TOKENS)
    completion_tokens: int = Field(ge=0, le=_MAX_TOKENS)


def _parse_token_counts(usage: Any) -> _TokenCounts | None:
    """Return the token counts in the field `usage` of a response, or None if the counts are absent or invalid."""
    # A response with invalid token counts is accepted, because its text is still usable.
    try:
        return _TokenCounts.model_validate(usage)
    except ValidationError:
        return None


class ChatCompletionResponse(BaseModel):
    """Body of an endpoint's response, limited to the fields in use."""

    choices: list[_Choice] = Field(min_length=1, max_length=_MAX_ITEMS)
    usage: Annotated[_TokenCounts | None, BeforeValidator(_parse_token_counts)] = None


def chat_request_body(request: Request, model_name: str, extra_fields: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON fields of a request to `model_name`. `extra_fields` replace others; None leaves a field out."""
    sampling = request.sampling
    fields: dict[str, Any] = {
        "model": model_name,
        "messages": list(map(_message_fields, with_call_ids(request.messages))),
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        # OpenAI does not know top_k, but vLLM and others do, so it is sent only if it is set.
        "top_k": sampling.top_k or None,
        "max_tokens": sampling.max_tokens,
        "stop": list(sampling.stop) or None,
        "seed": request.seed % _ENDPOINT_SEED_COUNT,
        "tools": list(map(json.loads, request.tools)) or None,
    }
    return {name: value for name, value in (fields | extra_fields).items() if value is not None}


def _message_fields(message: Message) -> dict[str, Any]:
    """Return `message` as in OpenAI's API, where the arguments of a tool call are JSON text."""
    fields = message._replace(content=replace_surrogates(message.content)).to_dict()
    for call, called in zip(message.calls, fields.get("tool_calls", ()), strict=True):
        called["function"]["arguments"] = call.arguments
    return fields


def parse_chat_completion(body: bytes) -> ChatCompletionResponse:
    """Return the chat completion in `body`, the body of an endpoint's response.

    Raises:
        ValueError: with the reason, if `body` is no chat completion.
    """
    try:
        value = parse_json(body.decode())
    except ValueError as error:
        raise ValueError(f"no chat completion: Invalid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"no chat completion: must be an object, got {type(value).__name__}")
    try:
        return ChatCompletionResponse.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ValueError(f"no chat completion: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def chat_response_to_completion(response: ChatCompletionResponse) -> Completion:
    """Return `response` as a completion without token ids. Thoughts and tool calls are written as in a chat template.

    Raises:
        ValueError: if the response holds neither a text nor a reason for its absence.
    """
    choice = response.choices[0]
    message, finish = choice.message, _FINISH_BY_REASON.get(choice.finish_reason or "", "stop")
    texts = [message.content] if message.content else []
    for call in message.tool_calls or ():
        try:
            arguments = parse_json(call.function.arguments, only_finite_numbers=True)
        except ValueError:
            # Arguments that are no JSON are the model's mistake, which its role reports; the endpoint is not at fault.
            arguments = call.function.arguments
        tool_call = json.dumps({"name": call.function.name, "arguments": arguments})
        texts.append(f"<tool_call>{tool_call}</tool_call>")
    if message.content is None and not texts and finish == "stop":
        if message.refusal is None:
            raise ValueError("a chat completion without content")
        texts, finish = [message.refusal], "aborted"
    thought = ""
    if message.reasoning_content:
        # If the answer was cut off inside the thought, the end tag is missing, as in the model's own output.
        is_over = message.content is not None or message.tool_calls
        thought = f"<think>\n{message.reasoning_content}" + ("\n</think>\n\n" if is_over else "")
    return Completion(thought + "\n".join(filter(None, texts)), (), (), (), finish)


def reported_usage(response: ChatCompletionResponse, price: TokenPrices | None) -> RemoteUsage | None:
    """Return the token counts in `response` and their cost, or None if the response reports no token counts."""
    tokens = response.usage
    return tokens and _usage_with_cost(tokens.prompt_tokens, tokens.completion_tokens, price)


def maximum_usage(request_body: dict[str, Any], price: TokenPrices | None) -> RemoteUsage:
    """Return an upper bound of the tokens and the cost of a request with this `request_body`."""
    limit = request_body.get("max_completion_tokens") or request_body.get("max_tokens") or 0
    # Every token has at least one byte, so the number of bytes of the body bounds the tokens of the prompt.
    return _usage_with_cost(len(json.dumps(request_body).encode()), limit, price)


def _usage_with_cost(prompt_tokens: int, completion_tokens: int, price: TokenPrices | None) -> RemoteUsage:
    """Return the token counts with their cost, which is 0 without a `price`."""
    cost = (prompt_tokens * price.prompt + completion_tokens * price.completion) / 1e6 if price else 0.0
    return RemoteUsage(prompt_tokens, completion_tokens, cost)
