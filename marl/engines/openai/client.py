"""Client of one endpoint: sends requests until there is an answer or no hope of one, within deadlines and a budget."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from http.cookiejar import CookieJar, DefaultCookiePolicy
from random import Random
from typing import TYPE_CHECKING, Any

import httpx2

from marl.engines.openai.chat_format import (
    largest_usage,
    parse_response,
    reported_usage,
    request_body,
    to_completion,
)
from marl.engines.openai.key import Key
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
        self._key = Key(settings.key())
        self._http = httpx2.AsyncClient(
            headers={"Accept-Encoding": "identity", "Content-Type": "application/json", **self._key.headers},
            # The key must not travel on, nor what a server would have us carry back to it.
            follow_redirects=False,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
            limits=httpx2.Limits(max_connections=settings.concurrency),
            timeout=None,
        )
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
                body = await self._post(request.body)
                return self._completion(request, body, bound)
        except BudgetExceededError:
            spent, settings = self._budget.spent, self._settings
            raise EndpointError(
                f"policy {request.policy!r}: {spent:g} of {settings.budget:g} are spent (engine.budget), and one more "
                f"answer of {settings.base_url} may cost {bound.cost:g}"
            ) from None

    def _completion(self, request: _OpenRequest, body: bytes, bound: Usage) -> Completion:
        try:
            response = parse_response(body)
            # Where the endpoint does not report its usage, the bound counts, so that a budget holds.
            self._count(request, reported_usage(response, self._settings.price) or bound)
            completion = to_completion(response)
        except ValueError as error:
            raise AttemptError(f"{error} in {self._excerpt(body)}") from error
        return replace(completion, text=self._key.unsaid(completion.text))

    async def _post(self, body: dict[str, Any]) -> bytes:
        settings, url = self._settings, f"{self._settings.base_url}/chat/completions"
        try:
            async with (
                asyncio.timeout(settings.timeout_s),
                self._http.stream("POST", url, content=json.dumps(body)) as response,
            ):
                answer = await self._read(response)
        except TimeoutError:
            raise AttemptError(f"no answer within {settings.timeout_s:g} s (engine.timeout_s)") from None
        except httpx2.HTTPError as error:
            reason = f"the connection failed: {type(error).__name__}: {self._key.excerpt(str(error))}"
            raise AttemptError(reason) from error
        if not response.is_success:
            raise self._refusal(response, answer)
        return answer

    async def _read(self, response: httpx2.Response) -> bytes:
        """Return the body as it was sent: packed ones, which were not asked for, may be bombs."""
        if (packed := response.headers.get("content-encoding", "identity")) != "identity":
            raise AttemptError(f"the body is packed ({self._key.excerpt(packed)}), although that was not asked for")
        body = bytearray()
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > _LONGEST_BODY:
                raise AttemptError(f"more than {_LONGEST_BODY >> 20} MiB, beginning with {self._excerpt(body)}")
        return bytes(body)

    def _refusal(self, response: httpx2.Response, body: bytes) -> AttemptError:
        status = response.status_code
        if response.is_redirect:
            to = self._key.excerpt(response.headers.get("location", ""))
            return AttemptError(f"HTTP {status}: redirected to {to}, not followed (engine.base_url)", retry=False)
        retry = status in _RETRIED_STATUSES or status >= 500
        reason = f"HTTP {status}: {self._excerpt(body)}"
        return AttemptError(reason, retry=retry, wait_s=_retry_after(response.headers))

    def _excerpt(self, body: bytes | bytearray) -> str:
        return self._key.excerpt(body.decode(errors="replace"))

    def _pause(self, tries: int, wait_s: float, random: Random) -> float:
        """Return seconds by exponential backoff with equal jitter (M. Brooker, AWS 2015)."""
        longest = self._settings.backoff_s * 2 ** (tries - 1)
        return min(max(longest * (1 + random.random()) / 2, wait_s), self._settings.timeout_s)

    def _give_up(self, request: _OpenRequest, reason: str) -> Failure:
        if any(message in reason for message in _OVERFLOW_MESSAGES):
            return Failure("overflow", reason, request.usage)
        self._count(request, Usage(failed=1))
        tries = f"{request.usage.tries} tries" if request.usage.tries > 1 else "1 try"
        reason = f"{self._settings.base_url} gave no answer in {tries}; the last: {reason}"
        return Failure("aborted", reason, request.usage)

    def _count(self, request: _OpenRequest, usage: Usage) -> None:
        request.usage += usage
        self._spent[request.policy] = self._spent.get(request.policy, Usage()) + usage


def _retry_after(headers: Mapping[str, str]) -> float:
    """Return the seconds that a server asks to wait, as a number or a date (RFC 9110, 10.2.3); 0 if it does not."""
    header, seconds = headers.get("retry-after", ""), 0.0
    with suppress(ValueError, OverflowError):
        seconds = parsedate_to_datetime(header).timestamp() - time.time()
    with suppress(ValueError):
        seconds = float(header)
    return max(seconds, 0.0) if math.isfinite(seconds) else 0.0
