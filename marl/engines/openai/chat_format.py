"""OpenAI's chat-completions format: requests as JSON, and JSON as completions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from marl.text import read_json, well_formed
from marl.types import Completion, Finish, Request, Usage

if TYPE_CHECKING:
    from marl.engines.openai.settings import OpenAI, Price

_FINISHES: dict[str, Finish] = {"length": "length", "content_filter": "aborted", "abort": "aborted"}
"""All others (`stop`, `tool_calls`, names of a server's own) mean that the model was done."""
_SEEDS = 2**31
"""Servers read the seed into integers of different sizes; all of them have at least this many."""
_MOST = 128
"""Most choices, and calls of tools, in a response, as at OpenAI."""
_MOST_TOKENS = 2**40


class _Function(BaseModel):
    name: str
    arguments: str = "{}"


class _Call(BaseModel):
    function: _Function


class _Message(BaseModel):
    content: str | None = None
    reasoning_content: str | None = None
    """The model's thought, where the server takes it out of the content, as vLLM and DeepSeek do."""
    refusal: str | None = None
    tool_calls: list[_Call] | None = Field(None, max_length=_MOST)


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None = None


class _Tokens(BaseModel):
    prompt_tokens: int = Field(ge=0, le=_MOST_TOKENS)
    completion_tokens: int = Field(ge=0, le=_MOST_TOKENS)


def _reported_tokens(usage: Any) -> _Tokens | None:
    """Return the tokens that a response reports; None where it does not in numbers that can be counted.

    What an answer says does not depend on it.
    """
    try:
        return _Tokens.model_validate(usage)
    except ValidationError:
        return None


class ChatCompletion(BaseModel):
    """Body of a response, without the fields that are not needed."""

    choices: list[_Choice] = Field(min_length=1, max_length=_MOST)
    usage: Annotated[_Tokens | None, BeforeValidator(_reported_tokens)] = None


def request_body(request: Request, settings: OpenAI) -> dict[str, Any]:
    """Return the body to send. `top_k`, which vLLM and others know but OpenAI does not, only where it is set."""
    sampling = request.sampling
    fields: dict[str, Any] = {
        "model": settings.model,
        "messages": [{"role": role, "content": well_formed(content)} for role, content in request.messages],
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
        value = read_json(body.decode())
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
    """Return the text of a response, its thought and tool calls spelled as in a chat template, without tokens.

    Raises:
        ValueError: if there is no text, and nothing says why.
    """
    choice = response.choices[0]
    message, finish = choice.message, _FINISHES.get(choice.finish_reason or "", "stop")
    texts = [message.content or "", *map(_spell_call, message.tool_calls or ())]
    if message.content is None and len(texts) == 1 and finish == "stop":
        if message.refusal is None:
            raise ValueError("a chat completion without content")
        texts, finish = [message.refusal], "aborted"
    return Completion(_spell_thought(message) + "\n".join(filter(None, texts)), (), (), (), finish)


def _spell_thought(message: _Message) -> str:
    """Return the beginning of an answer that was thought; its end is missing where the answer was cut off within it."""
    if not message.reasoning_content:
        return ""
    is_over = message.content is not None or message.tool_calls
    return f"<think>\n{message.reasoning_content}" + ("\n</think>\n\n" if is_over else "")


def _spell_call(call: _Call) -> str:
    try:
        arguments = read_json(call.function.arguments, finite=True)
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
