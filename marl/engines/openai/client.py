"""Client of one endpoint: sends requests until there is an answer or no hope of one, within deadlines and a budget."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from random import Random
from typing import TYPE_CHECKING, Any

import httpx2
import openai

from marl.engines.openai.chat_format import (
    excerpt,
    largest_usage,
    parse_response,
    reported_usage,
    request_body,
    to_completion,
)
from marl.errors import EndpointError
from marl.types import Completion, Failure, Request, Usage

if TYPE_CHECKING:
    from marl.engines.openai.settings import OpenAI

_LONGEST_BODY = 2**24
_RETRIED_STATUSES = (408, 409, 425, 429)
_OVERFLOW_MESSAGES = ("context_length_exceeded", "maximum context length")
"""Messages of OpenAI and vLLM about a prompt that does not fit."""


class BudgetExceededError(Exception):
    """A request could cost more than is left."""


class AttemptError(Exception):
    """One attempt at a request has failed."""

    def __init__(self, reason: str, *, retry: bool = True, wait_s: float = 0.0) -> None:
        super().__init__(reason)
        self.retry, self.wait_s = retry, wait_s


class Budget:
    """Reserves the most that a request can cost before it is sent; one that does not fit waits for others to end.

    Lives in one event loop.
    """

    def __init__(self, limit: float | None, spent: Mapping[str, Usage]) -> None:
        self._limit = math.inf if limit is None else limit
        self._spent = spent
        self._reserved: list[float] = []
        self._released = asyncio.Event()

    @property
    def spent(self) -> float:
        """The cost of all answers so far."""
        return math.fsum(usage.cost for usage in self._spent.values())

    @asynccontextmanager
    async def reserve(self, cost: float) -> AsyncIterator[None]:
        """Reserve `cost` inside the block; the real cost must be added to `spent` before its end.

        Raises:
            BudgetExceededError: if it does not fit, and no request is in flight that could turn out cheaper.
        """
        while self.spent + math.fsum(self._reserved) + cost > self._limit:
            if not self._reserved:
                raise BudgetExceededError
            self._released.clear()
            await self._released.wait()
        self._reserved.append(cost)
        try:
            yield
        finally:
            self._reserved.remove(cost)
            self._released.set()


@dataclass(slots=True)
class _OpenRequest:
    """A request, and the usage of its attempts."""

    policy: str
    body: dict[str, Any]
    usage: Usage = field(default_factory=Usage)


class EndpointClient:
    """Sends requests to one endpoint, many at once. Lives in one event loop."""

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
        self._budget = Budget(settings.budget, spent)
        self._in_flight = asyncio.Semaphore(settings.concurrency)

    async def __call__(self, request: Request) -> Completion | Failure:
        """Return the answer, or the reason why there is none.

        Raises:
            EndpointError: if the budget does not allow the request.
        """
        open_request = _OpenRequest(request.policy, request_body(request, self._settings))
        random = Random(request.seed)
        async with self._in_flight:
            while True:
                try:
                    completion = await self._attempt(open_request)
                except AttemptError as error:
                    if not error.retry or open_request.usage.tries > self._settings.retries:
                        return self._give_up(open_request, str(error))
                    pause_s = self._pause(open_request.usage.tries, error.wait_s, random)
                else:
                    return replace(completion, usage=open_request.usage)
                await asyncio.sleep(pause_s)

    async def _attempt(self, request: _OpenRequest) -> Completion:
        bound = largest_usage(request.body, self._settings.price)
        try:
            async with self._budget.reserve(bound.cost):
                self._count(request, Usage(tries=1))
                response = parse_response(await self._post(request.body))
                # Where the endpoint does not report its usage, the bound counts, so that a budget holds.
                self._count(request, reported_usage(response, self._settings.price) or bound)
                return to_completion(response)
        except ValueError as error:
            raise AttemptError(str(error)) from error
        except BudgetExceededError:
            spent, settings = self._budget.spent, self._settings
            raise EndpointError(
                f"policy {request.policy!r}: {spent:g} of {settings.budget:g} are spent (engine.budget), and one more "
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
                return await _read_body(response)
        except TimeoutError:
            raise AttemptError(f"no answer within {settings.timeout_s:g} s (engine.timeout_s)") from None
        except openai.APIStatusError as error:
            retry = error.status_code in _RETRIED_STATUSES or error.status_code >= 500
            reason = f"HTTP {error.status_code}: {excerpt(error.response.content)}"
            raise AttemptError(reason, retry=retry, wait_s=_retry_after(error.response.headers)) from error
        except (openai.OpenAIError, httpx2.HTTPError) as error:
            cause = error.__cause__ or error if isinstance(error, openai.APIConnectionError) else error
            raise AttemptError(f"the connection failed: {type(cause).__name__}: {cause}") from error

    def _pause(self, tries: int, wait_s: float, random: Random) -> float:
        """Return seconds by exponential backoff with equal jitter (M. Brooker, AWS 2015)."""
        longest = self._settings.backoff_s * 2 ** (tries - 1)
        return min(max(longest * (1 + random.random()) / 2, wait_s), self._settings.timeout_s)

    def _give_up(self, request: _OpenRequest, reason: str) -> Failure:
        reason = reason.replace(self._key, "(the key)") if self._key else reason
        if any(message in reason for message in _OVERFLOW_MESSAGES):
            return Failure("overflow", reason, request.usage)
        self._count(request, Usage(failed=1))
        tries = f"{request.usage.tries} tries" if request.usage.tries > 1 else "1 try"
        reason = f"{self._settings.base_url} gave no answer in {tries}; the last: {reason}"
        return Failure("aborted", reason, request.usage)

    def _count(self, request: _OpenRequest, usage: Usage) -> None:
        request.usage += usage
        self._spent[request.policy] = self._spent.get(request.policy, Usage()) + usage


async def _read_body(response: openai.AsyncAPIResponse[Any]) -> bytes:
    body = bytearray()
    async for chunk in response.iter_bytes():
        body += chunk
        if len(body) > _LONGEST_BODY:
            raise AttemptError(f"more than {_LONGEST_BODY >> 20} MiB, beginning with {excerpt(bytes(body[:200]))}")
    return bytes(body)


def _retry_after(headers: Mapping[str, str]) -> float:
    """Return the seconds that a server asks to wait, as a number or a date (RFC 9110, 10.2.3); 0 if it does not."""
    header, seconds = headers.get("retry-after", ""), 0.0
    with suppress(ValueError):
        seconds = parsedate_to_datetime(header).timestamp() - time.time()
    with suppress(ValueError):
        seconds = float(header)
    return max(seconds, 0.0) if math.isfinite(seconds) else 0.0
