"""Client of an OpenAI-compatible endpoint, which retries failed requests within time limits and a cost budget."""

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

from marl.core.errors import EndpointError
from marl.core.types import Completion, CompletionFailure, Request
from marl.core.usage import RemoteUsage
from marl.engines.openai.api_key import ApiKey, api_key_from_environment
from marl.engines.openai.chat_format import (
    chat_request_body,
    chat_response_to_completion,
    maximum_usage,
    parse_chat_completion,
    reported_usage,
)

if TYPE_CHECKING:
    # Imported for type checkers only: `settings` imports this module, so a second import would be circular.
    from marl.engines.openai.settings import OpenAI

_MAX_BODY = 2**24
"""Maximum size of a response's body in bytes."""
_RETRIED_STATUSES = (408, 409, 425, 429)
_OVERFLOW_MESSAGES = ("context_length_exceeded", "maximum context length")
"""Phrases in the messages of OpenAI and vLLM about a prompt that is longer than the context."""


class BudgetExceededError(Exception):
    """The maximum cost of a request exceeds the remaining budget."""


class RequestAttemptError(Exception):
    """One attempt at a request failed. `is_retryable`: True if another attempt may succeed; `wait_s`: pause before a
    retry; `may_be_billed`: True if the endpoint may have sampled an answer."""

    def __init__(
        self, reason: str, *, is_retryable: bool = True, wait_s: float = 0.0, may_be_billed: bool = False
    ) -> None:
        super().__init__(reason)
        self.is_retryable, self.wait_s, self.may_be_billed = is_retryable, wait_s, may_be_billed


class CostBudget:
    """Budget for the cost of a run's requests to an endpoint. A request's maximum cost is reserved before sending.

    The class is not thread-safe, as all calls come from one event loop.
    """

    def __init__(self, limit: float | None, spent: Mapping[str, RemoteUsage]) -> None:
        """`limit`: maximum cost, or None without a limit; `spent`: usage by policy, which the caller updates."""
        self._limit = math.inf if limit is None else limit
        self._spent = spent
        self._reserved: list[float] = []
        self._released = asyncio.Event()

    @property
    def total_cost(self) -> float:
        """Total cost of the answers so far."""
        return math.fsum(usage.cost for usage in self._spent.values())

    @asynccontextmanager
    async def reserve_cost(self, cost: float) -> AsyncIterator[None]:
        """Reserve `cost` while the body runs. Before the body ends, it must add the actual cost to `spent`.

        Raises:
            BudgetExceededError: if `cost` exceeds the remaining budget while no other request is in flight.
        """
        while self.total_cost + math.fsum(self._reserved) + cost > self._limit:
            # A request in flight may cost less than its reservation; only without one is the budget exhausted.
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
    """An open request to an endpoint, with the usage of all attempts so far."""

    policy: str
    body: dict[str, Any]
    usage: RemoteUsage = field(default_factory=RemoteUsage)


class EndpointClient:
    """Client that sends many requests at once to one endpoint. Not thread-safe: one event loop makes all calls."""

    def __init__(self, settings: OpenAI, spent: dict[str, RemoteUsage]) -> None:
        """`spent`: token counts and costs by policy, which the client updates."""
        self._settings, self._spent = settings, spent
        self._key = ApiKey(api_key_from_environment(settings.key_env))
        self._http = httpx2.AsyncClient(
            headers={"Accept-Encoding": "identity", "Content-Type": "application/json", **self._key.headers},
            # A redirect would carry the key to another host, and cookies would carry state between requests.
            follow_redirects=False,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
            limits=httpx2.Limits(max_connections=settings.concurrency),
            timeout=None,
        )
        self._budget = CostBudget(settings.budget, spent)
        self._in_flight = asyncio.Semaphore(settings.concurrency)

    async def __call__(self, request: Request) -> Completion | CompletionFailure:
        """Return the endpoint's answer to `request`, or a failure with the reason.

        Raises:
            EndpointError: if the budget does not allow the request.
        """
        settings = self._settings
        open_request = _OpenRequest(request.policy, chat_request_body(request, settings.model, settings.extra))
        random = Random(request.seed)
        async with self._in_flight:
            while True:
                try:
                    completion = await self._attempt_request(open_request)
                except RequestAttemptError as error:
                    reason, tries = str(error), open_request.usage.tries
                    if not error.is_retryable or tries > settings.retries:
                        break
                    # Exponential backoff with equal jitter (M. Brooker, AWS 2015).
                    backoff_s = settings.backoff_s * 2 ** (tries - 1) * (1 + random.random()) / 2
                    pause_s = min(max(backoff_s, error.wait_s), settings.timeout_s)
                else:
                    return replace(completion, usage=open_request.usage)
                await asyncio.sleep(pause_s)
        if any(message in reason for message in _OVERFLOW_MESSAGES):
            return CompletionFailure("overflow", reason, open_request.usage)
        self._add_usage(open_request, RemoteUsage(failed=1))
        attempts = f"{tries} tries" if tries > 1 else "1 try"
        reason = f"{settings.base_url} gave no answer in {attempts}; the last: {reason}"
        return CompletionFailure("aborted", reason, open_request.usage)

    async def _attempt_request(self, request: _OpenRequest) -> Completion:
        """Send `request` once, within the budget. Return the completion, or raise RequestAttemptError if the attempt
        fails."""
        settings = self._settings
        bound = maximum_usage(request.body, settings.price)
        try:
            async with self._budget.reserve_cost(bound.cost):
                self._add_usage(request, RemoteUsage(tries=1))
                # Where the endpoint reports no token counts, the upper bound is charged, so that the budget holds.
                try:
                    body = await self._post_and_read_body(request.body)
                except RequestAttemptError as error:
                    if error.may_be_billed:
                        self._add_usage(request, bound)
                    raise
                usage = bound
                try:
                    response = parse_chat_completion(body)
                    usage = reported_usage(response, settings.price) or bound
                    completion = chat_response_to_completion(response)
                except ValueError as error:
                    raise RequestAttemptError(f"{error} in {self._body_excerpt(body)}") from error
                finally:
                    self._add_usage(request, usage)
        except BudgetExceededError:
            cost, limit = self._budget.total_cost, settings.budget
            raise EndpointError(
                f"policy {request.policy!r}: {cost:g} of {limit:g} are spent (engine.budget), "
                f"and one more answer of {settings.base_url} may cost {bound.cost:g}"
            ) from None
        return replace(completion, text=self._key.redact(completion.text))

    async def _post_and_read_body(self, request_body: dict[str, Any]) -> bytes:
        """Send a request with the JSON fields `request_body`, and return the body of the response.

        Raises:
            RequestAttemptError: if there is no response in time, or the endpoint refuses the request.
        """
        settings, url = self._settings, f"{self._settings.base_url}/chat/completions"
        try:
            async with (
                asyncio.timeout(settings.timeout_s),
                self._http.stream("POST", url, content=json.dumps(request_body)) as response,
            ):
                # The client accepts no compressed bodies, as a small one may unpack to gigabytes.
                if (packed := response.headers.get("content-encoding", "identity")) != "identity":
                    packing = self._key.redacted_excerpt(packed)
                    reason = f"the body is packed ({packing}), although that was not asked for"
                    raise RequestAttemptError(reason, may_be_billed=True)
                answer = bytearray()
                async for chunk in response.aiter_raw():
                    answer += chunk
                    if len(answer) > _MAX_BODY:
                        beginning = self._body_excerpt(answer)
                        reason = f"more than {_MAX_BODY >> 20} MiB, beginning with {beginning}"
                        raise RequestAttemptError(reason, may_be_billed=True)
        except TimeoutError:
            reason = f"no answer within {settings.timeout_s:g} s (engine.timeout_s)"
            raise RequestAttemptError(reason, may_be_billed=True) from None
        except httpx2.HTTPError as error:
            reason = f"the connection failed: {type(error).__name__}: {self._key.redacted_excerpt(str(error))}"
            raise RequestAttemptError(reason, may_be_billed=not isinstance(error, httpx2.ConnectError)) from error
        status = response.status_code
        if response.is_success:
            return bytes(answer)
        if response.is_redirect:
            to = self._key.redacted_excerpt(response.headers.get("location", ""))
            raise RequestAttemptError(
                f"HTTP {status}: redirected to {to}, not followed (engine.base_url)", is_retryable=False
            )
        is_retryable = status in _RETRIED_STATUSES or status >= 500
        wait_s = _retry_pause_s(response.headers)
        raise RequestAttemptError(
            f"HTTP {status}: {self._body_excerpt(answer)}", is_retryable=is_retryable, wait_s=wait_s
        )

    def _body_excerpt(self, response_body: bytes | bytearray) -> str:
        return self._key.redacted_excerpt(response_body.decode(errors="replace"))

    def _add_usage(self, request: _OpenRequest, usage: RemoteUsage) -> None:
        """Add `usage` to the usage of `request`, and to the total of its policy."""
        request.usage += usage
        self._spent[request.policy] = self._spent.get(request.policy, RemoteUsage()) + usage


def _retry_pause_s(headers: Mapping[str, str]) -> float:
    """Return the pause that the header Retry-After asks for, in seconds, or 0 without this header."""
    # The value of Retry-After is a date or a number of seconds (RFC 9110, 10.2.3).
    header, seconds = headers.get("retry-after", ""), 0.0
    with suppress(ValueError, OverflowError):
        seconds = parsedate_to_datetime(header).timestamp() - time.time()
    with suppress(ValueError):
        seconds = float(header)
    return max(seconds, 0.0) if math.isfinite(seconds) else 0.0
