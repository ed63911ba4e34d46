"""Client of one endpoint. It retries a request until an answer or a final failure, within deadlines and a budget."""

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
from typing import Any, Protocol

import httpx2

from marl.core.errors import EndpointError
from marl.core.types import Completion, Failure, Request, Usage
from marl.engines.openai.api_key import ApiKey
from marl.engines.openai.chat_format import (
    Price,
    largest_usage,
    parse_response,
    reported_usage,
    request_body,
    to_completion,
)

_MAX_BODY = 2**24
"""Maximum size of a response in bytes."""
_RETRIED_STATUSES = (408, 409, 425, 429)
_OVERFLOW_MESSAGES = ("context_length_exceeded", "maximum context length")
"""Messages of OpenAI and vLLM about a prompt longer than the context."""


class ClientOptions(Protocol):
    """Settings of the client. `OpenAI` explains every field."""

    base_url: str
    model: str
    timeout_s: float
    retries: int
    backoff_s: float
    concurrency: int
    price: Price | None
    budget: float | None
    extra: dict[str, Any]

    def key(self) -> str: ...


class BudgetExceededError(Exception):
    """A request could cost more than the remaining budget."""


class AttemptError(Exception):
    """One attempt at a request failed. `wait_s` is the pause requested by the server, in seconds."""

    def __init__(self, reason: str, *, retry: bool = True, wait_s: float = 0.0) -> None:
        super().__init__(reason)
        self.retry, self.wait_s = retry, wait_s


class Budget:
    """Budget of a run. The maximum cost of a request is reserved before sending; requests wait for a reservation.

    Not thread-safe: all calls come from one event loop.
    """

    def __init__(self, limit: float | None, spent: Mapping[str, Usage]) -> None:
        self._limit = math.inf if limit is None else limit
        self._spent = spent
        self._reserved: list[float] = []
        self._released = asyncio.Event()

    @property
    def spent(self) -> float:
        """Cost of all answers so far."""
        return math.fsum(usage.cost for usage in self._spent.values())

    @asynccontextmanager
    async def reserve(self, cost: float) -> AsyncIterator[None]:
        """Reserve `cost` for the body. The body adds the real cost to `spent` before it ends.

        Raises:
            BudgetExceededError: if `cost` exceeds the remaining budget while no other request is in flight.
        """
        while self.spent + math.fsum(self._reserved) + cost > self._limit:
            # A request in flight may turn out cheaper than reserved, which frees budget.
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
    """A request, and the usage of all attempts so far."""

    policy: str
    body: dict[str, Any]
    usage: Usage = field(default_factory=Usage)


class EndpointClient:
    """Sends requests to one endpoint, many at once. Not thread-safe: all calls come from one event loop."""

    def __init__(self, settings: ClientOptions, spent: dict[str, Usage]) -> None:
        """`spent`: usage by policy, which the client updates."""
        self._settings, self._spent = settings, spent
        self._key = ApiKey(settings.key())
        self._http = httpx2.AsyncClient(
            headers={"Accept-Encoding": "identity", "Content-Type": "application/json", **self._key.headers},
            # A redirect would carry the key to another host, and cookies would carry state between requests.
            follow_redirects=False,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
            limits=httpx2.Limits(max_connections=settings.concurrency),
            timeout=None,
        )
        self._budget = Budget(settings.budget, spent)
        self._in_flight = asyncio.Semaphore(settings.concurrency)

    async def __call__(self, request: Request) -> Completion | Failure:
        """Return the answer, or a failure with the reason.

        Raises:
            EndpointError: if the budget does not allow the request.
        """
        settings = self._settings
        open_request = _OpenRequest(request.policy, request_body(request, settings.model, settings.extra))
        random = Random(request.seed)
        async with self._in_flight:
            while True:
                try:
                    completion = await self._attempt(open_request)
                except AttemptError as error:
                    tries = open_request.usage.tries
                    if not error.retry or tries > settings.retries:
                        return self._give_up(open_request, str(error))
                    # Exponential backoff with equal jitter (M. Brooker, AWS 2015).
                    backoff_s = settings.backoff_s * 2 ** (tries - 1) * (1 + random.random()) / 2
                    pause_s = min(max(backoff_s, error.wait_s), settings.timeout_s)
                else:
                    return replace(completion, usage=open_request.usage)
                await asyncio.sleep(pause_s)

    async def _attempt(self, request: _OpenRequest) -> Completion:
        """Send the request once, within the budget."""
        settings = self._settings
        bound = largest_usage(request.body, settings.price)
        try:
            async with self._budget.reserve(bound.cost):
                self._count(request, Usage(tries=1))
                body = await self._post(request.body)
                try:
                    response = parse_response(body)
                    # An endpoint without reports is charged the upper bound, so that a budget holds.
                    self._count(request, reported_usage(response, settings.price) or bound)
                    completion = to_completion(response)
                except ValueError as error:
                    raise AttemptError(f"{error} in {self._excerpt(body)}") from error
        except BudgetExceededError:
            raise EndpointError(
                f"policy {request.policy!r}: {self._budget.spent:g} of {settings.budget:g} are spent (engine.budget), "
                f"and one more answer of {settings.base_url} may cost {bound.cost:g}"
            ) from None
        return replace(completion, text=self._key.redact(completion.text))

    async def _post(self, body: dict[str, Any]) -> bytes:
        """Return the body of a successful response.

        Raises:
            AttemptError: if there is none in time, or the endpoint refuses the request.
        """
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
        status = response.status_code
        if response.is_success:
            return answer
        if response.is_redirect:
            to = self._key.excerpt(response.headers.get("location", ""))
            raise AttemptError(f"HTTP {status}: redirected to {to}, not followed (engine.base_url)", retry=False)
        retry = status in _RETRIED_STATUSES or status >= 500
        wait_s = _retry_after(response.headers)
        raise AttemptError(f"HTTP {status}: {self._excerpt(answer)}", retry=retry, wait_s=wait_s)

    async def _read(self, response: httpx2.Response) -> bytes:
        """Return the raw body of a response, of at most `_MAX_BODY` bytes."""
        # The client accepts no compressed bodies: a small one may unpack to gigabytes.
        if (packed := response.headers.get("content-encoding", "identity")) != "identity":
            raise AttemptError(f"the body is packed ({self._key.excerpt(packed)}), although that was not asked for")
        body = bytearray()
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > _MAX_BODY:
                raise AttemptError(f"more than {_MAX_BODY >> 20} MiB, beginning with {self._excerpt(body)}")
        return bytes(body)

    def _excerpt(self, body: bytes | bytearray) -> str:
        return self._key.excerpt(body.decode(errors="replace"))

    def _give_up(self, request: _OpenRequest, reason: str) -> Failure:
        """Return the failure of a request after the last attempt. `reason` is the error of that attempt."""
        if any(message in reason for message in _OVERFLOW_MESSAGES):
            return Failure("overflow", reason, request.usage)
        self._count(request, Usage(failed=1))
        tries = f"{request.usage.tries} tries" if request.usage.tries > 1 else "1 try"
        reason = f"{self._settings.base_url} gave no answer in {tries}; the last: {reason}"
        return Failure("aborted", reason, request.usage)

    def _count(self, request: _OpenRequest, usage: Usage) -> None:
        """Add `usage` to the request and to the total of the policy."""
        request.usage += usage
        self._spent[request.policy] = self._spent.get(request.policy, Usage()) + usage


def _retry_after(headers: Mapping[str, str]) -> float:
    """Return the pause in a Retry-After header in seconds, or 0 without one."""
    # RFC 9110, 10.2.3: the value is a date or a number of seconds.
    header, seconds = headers.get("retry-after", ""), 0.0
    with suppress(ValueError, OverflowError):
        seconds = parsedate_to_datetime(header).timestamp() - time.time()
    with suppress(ValueError):
        seconds = float(header)
    return max(seconds, 0.0) if math.isfinite(seconds) else 0.0
