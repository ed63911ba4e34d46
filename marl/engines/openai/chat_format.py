"""OpenAI's chat-completions format: requests to JSON, and JSON to completions."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, NonNegativeFloat, ValidationError

from marl.core.config import Config
from marl.core.types import Completion, Finish, Request, Usage
from marl.host.outside import parse_json, replace_surrogates

_FINISHES: dict[str, Finish] = {"length": "length", "content_filter": "aborted", "abort": "aborted"}
"""Finish reasons other than a stop. Unlisted reasons (`stop`, `tool_calls`, a server's additions) count as a stop."""
_SEEDS = 2**31
"""Number of different seeds. Servers parse the seed into integers of different sizes, at least 31 bits wide."""
_MAX_ITEMS = 128
"""Maximum number of choices, and of tool calls, in a response, as at OpenAI."""
_MAX_TOKENS = 2**40


class Price(Config):
    """Price of a million tokens, in any currency."""

    example = "prompt: 0.5, completion: 1.5"
    prompt: NonNegativeFloat
    """Price of a million tokens of prompts."""
    completion: NonNegativeFloat
    """Price of a million tokens of completions."""


class _Function(BaseModel):
    name: str
    arguments: str = "{}"


class _Call(BaseModel):
    function: _Function


class _Message(BaseModel):
    content: str | None = None
    reasoning_content: str | None = None
    """The model's thought, if the server moves thoughts out of the content (as vLLM and DeepSeek do)."""
    refusal: str | None = None
    tool_calls: list[_Call] | None = Field(None, max_length=_MAX_ITEMS)


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None = None


class _Tokens(BaseModel):
    prompt_tokens: int = Field(ge=0, le=_MAX_TOKENS)
    completion_tokens: int = Field(ge=0, le=_MAX_TOKENS)


def _reported_tokens(usage: Any) -> _Tokens | None:
    """Return the reported token counts, or None if they are absent or invalid."""
    # A bad report must not cost the answer itself.
    try:
        return _Tokens.model_validate(usage)
    except ValidationError:
        return None


class ChatCompletion(BaseModel):
    """Body of a response, limited to the fields in use."""

    choices: list[_Choice] = Field(min_length=1, max_length=_MAX_ITEMS)
    usage: Annotated[_Tokens | None, BeforeValidator(_reported_tokens)] = None


def request_body(request: Request, model: str, extra: dict[str, Any]) -> dict[str, Any]:
    """Return the body of a request to `model`. Fields of `extra` replace others; None leaves a field out."""
    sampling = request.sampling
    fields: dict[str, Any] = {
        "model": model,
        "messages": [{"role": role, "content": replace_surrogates(content)} for role, content in request.messages],
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        # Unknown to OpenAI, known to vLLM and others: sent only if set.
        "top_k": sampling.top_k or None,
        "max_tokens": sampling.max_tokens,
        "stop": list(sampling.stop) or None,
        "seed": request.seed % _SEEDS,
        "tools": [json.loads(tool) for tool in request.tools] or None,
    }
    return {name: value for name, value in (fields | extra).items() if value is not None}


def parse_response(body: bytes) -> ChatCompletion:
    """Return the response in `body`.

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
        return ChatCompletion.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ValueError(f"no chat completion: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def to_completion(response: ChatCompletion) -> Completion:
    """Return the text of a response, without token ids. Thought and tool calls are spelled as in a chat template.

    Raises:
        ValueError: if the response holds neither a text nor a reason for its absence.
    """
    choice = response.choices[0]
    message, finish = choice.message, _FINISHES.get(choice.finish_reason or "", "stop")
    texts = [message.content] if message.content else []
    for call in message.tool_calls or ():
        try:
            arguments = parse_json(call.function.arguments, finite=True)
        except ValueError:
            # A mistake of the model, not of the endpoint: the role that parses the answer reports it.
            arguments = call.function.arguments
        spelling = json.dumps({"name": call.function.name, "arguments": arguments})
        texts.append(f"<tool_call>{spelling}</tool_call>")
    if message.content is None and not texts and finish == "stop":
        if message.refusal is None:
            raise ValueError("a chat completion without content")
        texts, finish = [message.refusal], "aborted"
    thought = ""
    if message.reasoning_content:
        # An answer cut off inside the thought has no end tag.
        is_over = message.content is not None or message.tool_calls
        thought = f"<think>\n{message.reasoning_content}" + ("\n</think>\n\n" if is_over else "")
    return Completion(thought + "\n".join(filter(None, texts)), (), (), (), finish)


def reported_usage(response: ChatCompletion, price: Price | None) -> Usage | None:
    """Return the reported tokens and their cost, or None if the response reports no tokens."""
    tokens = response.usage
    return tokens and _priced_usage(tokens.prompt_tokens, tokens.completion_tokens, price)


def largest_usage(body: dict[str, Any], price: Price | None) -> Usage:
    """Return an upper bound of the tokens and cost of a request, before it is sent."""
    limit = body.get("max_completion_tokens") or body.get("max_tokens") or 0
    # No token is shorter than a byte.
    return _priced_usage(len(json.dumps(body).encode()), limit, price)


def _priced_usage(prompt_tokens: int, completion_tokens: int, price: Price | None) -> Usage:
    cost = (prompt_tokens * price.prompt + completion_tokens * price.completion) / 1e6 if price else 0.0
    return Usage(prompt_tokens, completion_tokens, cost)
