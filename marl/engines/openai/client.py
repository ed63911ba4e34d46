"""One request to an endpoint: tried until there is an answer or no hope of one, within deadlines, and paid for."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from random import Random
from typing import TYPE_CHECKING, Any

import httpx2
import openai

from marl.engines.openai.budget import Overdrawn, Purse
from marl.engines.openai.chat_format import body_of, completion, excerpt, most, parse, used
from marl.errors import EndpointError
from marl.types import Completion, Failure, Request, Usage

if TYPE_CHECKING:
    from marl.engines.openai.settings import OpenAI

_LONGEST_BODY = 2**24
_AGAIN = (408, 409, 425, 429)
_TOO_LONG = ("context_length_exceeded", "maximum context length")
"""How OpenAI and vLLM say that a prompt does not fit."""


class Trouble(Exception):  # noqa: N818 (says what there was)
    """A try without an answer."""

    def __init__(self, why: str, *, again: bool = True, wait_s: float = 0.0) -> None:
        super().__init__(why)
        self.again, self.wait_s = again, wait_s


@dataclass(slots=True)
class _Asked:
    """A request, and what its tries have taken."""

    policy: str
    body: dict[str, Any]
    usage: Usage = field(default_factory=Usage)


class Inquiry:
    """Asks one endpoint, many requests at once. Lives in one event loop."""

    def __init__(self, settings: OpenAI, spent: dict[str, Usage]) -> None:
        self._settings, self._spent = settings, spent
        self._key = os.environ[settings.key_env].strip() if settings.key_env else ""
        self._client = openai.AsyncOpenAI(
            base_url=settings.base_url,
            # The library wants one; where there is none, the header is left out below.
            api_key=self._key or "none",
            max_retries=0,
            timeout=None,
        )
        self._headers = {} if self._key else {"Authorization": openai.omit}
        self._purse = Purse(settings.budget, spent)
        self._room = asyncio.Semaphore(settings.concurrency)

    async def __call__(self, request: Request) -> Completion | Failure:
        """An answer, or why there is none.

        Raises:
            EndpointError: if the budget does not allow to ask.
        """
        asked = _Asked(request.policy, body_of(request, self._settings))
        random = Random(request.seed)
        async with self._room:
            while True:
                try:
                    said = await self._try(asked)
                except Trouble as trouble:
                    if not trouble.again or asked.usage.tries > self._settings.retries:
                        return self._given_up(asked, str(trouble))
                    pause_s = self._pause(asked.usage.tries, trouble.wait_s, random)
                else:
                    return replace(said, usage=asked.usage)
                await asyncio.sleep(pause_s)

    async def _try(self, asked: _Asked) -> Completion:
        bound = most(asked.body, self._settings.price)
        try:
            async with self._purse.aside(bound.cost):
                self._count(asked, Usage(tries=1))
                answer = parse(await self._post(asked.body))
                # Where the endpoint does not say what it took, the bound counts, so that a budget holds.
                self._count(asked, used(answer, self._settings.price) or bound)
                return completion(answer)
        except ValueError as error:
            raise Trouble(str(error)) from error
        except Overdrawn:
            spent, settings = self._purse.spent, self._settings
            raise EndpointError(
                f"policy {asked.policy!r}: {spent:g} of {settings.budget:g} are spent (engine.budget), and one more "
                f"answer of {settings.base_url} may cost {bound.cost:g}"
            ) from None

    async def _post(self, body: dict[str, Any]) -> bytes:
        settings, chats = self._settings, self._client.chat.completions.with_streaming_response
        try:
            async with (
                asyncio.timeout(settings.timeout_s),
                chats.create(
                    model=settings.model, messages=[], extra_body=body, extra_headers=self._headers
                ) as response,
            ):
                return await _whole(response)
        except TimeoutError:
            raise Trouble(f"no answer within {settings.timeout_s:g} s (engine.timeout_s)") from None
        except openai.APIStatusError as error:
            again = error.status_code in _AGAIN or error.status_code >= 500
            why = f"HTTP {error.status_code}: {excerpt(error.response.content)}"
            raise Trouble(why, again=again, wait_s=_retry_after(error.response.headers)) from error
        except (openai.OpenAIError, httpx2.HTTPError) as error:
            cause = error.__cause__ or error if isinstance(error, openai.APIConnectionError) else error
            raise Trouble(f"the connection failed: {type(cause).__name__}: {cause}") from error

    def _pause(self, tries: int, wait_s: float, random: Random) -> float:
        """Exponential backoff with equal jitter (M. Brooker, "Exponential Backoff and Jitter", AWS 2015)."""
        longest = self._settings.backoff_s * 2 ** (tries - 1)
        return min(max(longest * (1 + random.random()) / 2, wait_s), self._settings.timeout_s)

    def _given_up(self, asked: _Asked, why: str) -> Failure:
        why = why.replace(self._key, "(the key)") if self._key else why
        if any(words in why for words in _TOO_LONG):
            return Failure("overflow", why, asked.usage)
        self._count(asked, Usage(failed=1))
        tries = f"{asked.usage.tries} tries" if asked.usage.tries > 1 else "1 try"
        reason = f"{self._settings.base_url} gave no answer in {tries}; the last: {why}"
        return Failure("aborted", reason, asked.usage)

    def _count(self, asked: _Asked, usage: Usage) -> None:
        asked.usage += usage
        self._spent[asked.policy] = self._spent.get(asked.policy, Usage()) + usage


async def _whole(response: openai.AsyncAPIResponse[Any]) -> bytes:
    body = bytearray()
    async for chunk in response.iter_bytes():
        body += chunk
        if len(body) > _LONGEST_BODY:
            raise Trouble(f"more than {_LONGEST_BODY >> 20} MiB, beginning with {excerpt(bytes(body[:200]))}")
    return bytes(body)


def _retry_after(headers: Mapping[str, str]) -> float:
    """Seconds that a server asks to wait, given as a number or a date (RFC 9110, 10.2.3); 0 if it does not."""
    said, seconds = headers.get("retry-after", ""), 0.0
    with suppress(ValueError):
        seconds = parsedate_to_datetime(said).timestamp() - time.time()
    with suppress(ValueError):
        seconds = float(said)
    return max(seconds, 0.0) if math.isfinite(seconds) else 0.0
