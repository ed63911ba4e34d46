"""OpenAI's chat-completions format: a request as JSON, and JSON as what was said."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field, NonNegativeInt, ValidationError

from marl.types import Completion, Finish, Request, Usage

if TYPE_CHECKING:
    from marl.engines.openai.settings import OpenAI, Price

_FINISHES: dict[str, Finish] = {"length": "length", "content_filter": "aborted", "abort": "aborted"}
"""The others (`stop`, `tool_calls`, names of a server's own) all say that the model had done."""
_SEEDS = 2**31
"""Servers read the seed into integers of different sizes; all have this many."""


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


class Answer(BaseModel):
    """The body of an answer, as far as we read it."""

    choices: list[_Choice] = Field(min_length=1)
    usage: _Tokens | None = None


def body_of(request: Request, settings: OpenAI) -> dict[str, Any]:
    """What is sent. `top_k`, which OpenAI does not know but vLLM and others do, only where it is set."""
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


def parse(body: bytes) -> Answer:
    """Read an answer.

    Raises:
        ValueError: if it is none, saying what is wrong with it.
    """
    try:
        return Answer.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"no chat completion: {where and where + ': '}{first['msg']} in {excerpt(body)}") from error


def completion(answer: Answer) -> Completion:
    """What was said, calls of tools spelled as in a chat template. Of its tokens nothing is known.

    Raises:
        ValueError: if nothing was said, and nothing says why.
    """
    choice = answer.choices[0]
    message, finish = choice.message, _FINISHES.get(choice.finish_reason or "", "stop")
    said = [message.content or "", *map(_spelled, message.tool_calls or ())]
    if message.content is None and len(said) == 1 and finish == "stop":
        if message.refusal is None:
            raise ValueError(f"a chat completion without content: {choice.model_dump_json()}")
        said, finish = [message.refusal], "aborted"
    return Completion("\n".join(filter(None, said)), (), (), (), finish)


def used(answer: Answer, price: Price | None) -> Usage | None:
    """What an answer took, if it says so."""
    tokens = answer.usage
    return tokens and priced(tokens.prompt_tokens, tokens.completion_tokens, price)


def most(body: dict[str, Any], price: Price | None) -> Usage:
    """An upper bound of what a request takes: no token is shorter than a byte."""
    limit = body.get("max_completion_tokens") or body.get("max_tokens") or 0
    return priced(len(json.dumps(body).encode()), limit, price)


def priced(prompt_tokens: int, completion_tokens: int, price: Price | None) -> Usage:
    """So many tokens, and what they cost."""
    cost = (prompt_tokens * price.prompt + completion_tokens * price.completion) / 1e6 if price else 0.0
    return Usage(prompt_tokens, completion_tokens, cost)


def excerpt(body: bytes) -> str:
    """The beginning of what a server sent, for messages."""
    text = body[:200].decode(errors="replace")
    return repr(text) + (f" and {len(body) - 200} bytes more" if len(body) > 200 else "")


def _spelled(call: _Call) -> str:
    try:
        arguments = json.loads(call.function.arguments)
    except ValueError:
        # The model's mistake, for the role to see.
        arguments = call.function.arguments
    return f"<tool_call>{json.dumps({'name': call.function.name, 'arguments': arguments})}</tool_call>"
