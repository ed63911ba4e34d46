"""The engine behind `kind: openai`."""

from __future__ import annotations

from asyncio import run_coroutine_threadsafe
from collections.abc import Iterable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from marl.engines.openai.background import loop_for
from marl.engines.openai.client import Inquiry
from marl.errors import EndpointError
from marl.protocols import Service
from marl.types import Completion, Failure, Request, Ticket

if TYPE_CHECKING:
    from marl.engines.openai.settings import OpenAI
    from marl.protocols import Weights


class Endpoint(Service):
    """Asks from a thread of its own: `submit` never blocks, and `step` waits no longer than it is told."""

    def __init__(self, settings: OpenAI) -> None:
        super().__init__(settings.base_url)
        self._settings = settings
        self._ask = Inquiry(settings, self.spent)
        self._open: dict[Ticket, tuple[str, Future[Completion | Failure]]] = {}
        self._done: SimpleQueue[Ticket] = SimpleQueue()
        self._loop = loop_for(self)

    def submit(self, ticket: Ticket, request: Request) -> None:
        """Send a request as soon as there is room.

        Raises:
            ValueError: if it asks for what takes the model itself.
        """
        if request.forced is not None or request.continues:
            what = "continue token ids" if request.forced is None else "score a text"
            raise ValueError(f"policy {request.policy!r}: the endpoint {self.address} cannot {what}")
        future, done = run_coroutine_threadsafe(self._ask(request), self._loop), self._done
        self._open[ticket] = request.policy, future
        future.add_done_callback(lambda _: done.put(ticket))

    def step(self, wait_s: float) -> list[tuple[Ticket, Completion | Failure]]:
        """Whatever has come.

        Raises:
            EndpointError: if a request was given up and the run shall not go on without it, or the budget is spent.
        """
        answers = []
        ticket = self._next(wait_s)
        while ticket is not None:
            if ticket in self._open:
                policy, future = self._open.pop(ticket)
                answers.append((ticket, self._allowed(policy, future.result())))
            ticket = self._next(0.0)
        return answers

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        """Give requests up, their connections included; no answer follows."""
        for ticket in tickets:
            if ticket in self._open:
                self._open.pop(ticket)[1].cancel()

    def load_weights(self, policy: str, weights: Weights, version: int) -> None:
        raise ValueError(f"policy {policy!r} speaks through {self.address}: there are no weights to load")

    def _next(self, wait_s: float) -> Ticket | None:
        try:
            return self._done.get(block=wait_s > 0, timeout=wait_s or None)
        except Empty:
            return None

    def _allowed(self, policy: str, said: Completion | Failure) -> Completion | Failure:
        """What was said, or an end of the run if nothing was, too often."""
        if isinstance(said, Completion) or said.finish == "overflow":
            return said
        settings, failed = self._settings, sum(usage.failed for usage in self.spent.values())
        if settings.on_failure == "stop":
            raise EndpointError(f"policy {policy!r}: {said.reason} (engine.on_failure: stop)")
        if failed > settings.max_failures:
            raise EndpointError(
                f"policy {policy!r}: {said.reason}; {failed} requests were given up so far "
                f"(engine.max_failures: {settings.max_failures})"
            )
        return said
