"""OpenAI's chat-completions format: requests as JSON, and JSON as completions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field, NonNegativeInt, ValidationError

from marl.types import Completion, Finish, Request, Usage

if TYPE_CHECKING:
    from marl.engines.openai.settings import OpenAI, Price

_FINISHES: dict[str, Finish] = {"length": "length", "content_filter": "aborted", "abort": "aborted"}
"""All others (`stop`, `tool_calls`, names of a server's own) mean that the model was done."""
_SEEDS = 2**31
"""Servers read the seed into integers of different sizes; all of them have at least this many."""


class _Function(BaseModel):
    name: str
    arguments: str = "{}"


class _Call(BaseModel):
    function: _Function


class _Message(BaseModel):
    content: str | None = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None = None


class _Tokens(BaseModel):
    prompt_tokens: NonNegativeInt = 0
    completion_tokens: NonNegativeInt = 0


class ChatCompletion(BaseModel):
    """Body of a response, without the fields that are not needed."""

    choices: list[_Choice] = Field(min_length=1)
    usage: _Tokens | None = None


def request_body(request: Request, settings: OpenAI) -> dict[str, Any]:
    """Return the body to send. `top_k`, which vLLM and others know but OpenAI does not, only where it is set."""
    sampling = request.sampling
    fields: dict[str, Any] = {
        "model": settings.model,
        "messages": [message._asdict() for message in request.messages],
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or None,
        "max_tokens": sampling.max_tokens,
        "stop": list(sampling.stop) or None,
        "seed": request.seed % _SEEDS,
        "tools": [json.loads(tool) for tool in request.tools] or None,
    }
    return {name: value for name, value in (fields | settings.extra).items() if value is not None}


def parse_response(body: bytes) -> ChatCompletion:
    """Return the response that `body` is.

    Raises:
        ValueError: if it is none, saying what is wrong with it.
    """
    try:
        return ChatCompletion.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"no chat completion: {where and where + ': '}{first['msg']} in {excerpt(body)}") from error


def to_completion(response: ChatCompletion) -> Completion:
    """Return the text of a response, tool calls spelled as in a chat template, without tokens.

    Raises:
        ValueError: if there is no text, and nothing says why.
    """
    choice = response.choices[0]
    message, finish = choice.message, _FINISHES.get(choice.finish_reason or "", "stop")
    texts = [message.content or "", *map(_spell_call, message.tool_calls or ())]
    if message.content is None and len(texts) == 1 and finish == "stop":
        if message.refusal is None:
            raise ValueError(f"a chat completion without content: {choice.model_dump_json()}")
        texts, finish = [message.refusal], "aborted"
    return Completion("\n".join(filter(None, texts)), (), (), (), finish)


def _spell_call(call: _Call) -> str:
    try:
        arguments = json.loads(call.function.arguments)
    except ValueError:
        # The model's mistake, for the role to see.
        arguments = call.function.arguments
    return f"<tool_call>{json.dumps({'name': call.function.name, 'arguments': arguments})}</tool_call>"


def reported_usage(response: ChatCompletion, price: Price | None) -> Usage | None:
    """Return the tokens and cost of a response, if it reports its tokens."""
    tokens = response.usage
    return tokens and _priced_usage(tokens.prompt_tokens, tokens.completion_tokens, price)


def largest_usage(body: dict[str, Any], price: Price | None) -> Usage:
    """Return an upper bound of the tokens and cost of a request: no token is shorter than a byte."""
    limit = body.get("max_completion_tokens") or body.get("max_tokens") or 0
    return _priced_usage(len(json.dumps(body).encode()), limit, price)


def _priced_usage(prompt_tokens: int, completion_tokens: int, price: Price | None) -> Usage:
    cost = (prompt_tokens * price.prompt + completion_tokens * price.completion) / 1e6 if price else 0.0
    return Usage(prompt_tokens, completion_tokens, cost)


def excerpt(body: bytes) -> str:
    """Return the beginning of a response, for messages."""
    text = body[:200].decode(errors="replace")
    return repr(text) + (f" and {len(body) - 200} bytes more" if len(body) > 200 else "")
