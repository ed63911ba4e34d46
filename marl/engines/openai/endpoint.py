"""Engine of `kind: openai`."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Iterable
from concurrent.futures import Future
from queue import Empty, Queue
from typing import TYPE_CHECKING

from marl.engines.openai.client import EndpointClient
from marl.errors import EndpointError
from marl.protocols import Service
from marl.types import Completion, Failure, Request, Ticket

if TYPE_CHECKING:
    from marl.engines.openai.settings import OpenAI


class Endpoint(Service):
    """Engine that sends requests from a thread of its own: `submit` never blocks, `step` at most for its `wait_s`."""

    def __init__(self, settings: OpenAI) -> None:
        super().__init__(settings.base_url)
        self._settings = settings
        self._client = EndpointClient(settings, self.spent)
        self._open: dict[Ticket, tuple[str, Future[Completion | Failure]]] = {}
        # No SimpleQueue: a signal at the end of a timed wait, such as the watchdog's, can make it wait for ever.
        self._done: Queue[Ticket] = Queue()
        self._loop = _start_loop(self)

    def submit(self, ticket: Ticket, request: Request) -> None:
        """Send a request as soon as `concurrency` allows.

        Raises:
            ValueError: if it needs the model itself: forced text, token ids to continue, or a limit of thoughts.
        """
        if request.sampling.thinking_tokens is not None:
            problem = "cannot limit thoughts (sampling.thinking_tokens)"
            raise ValueError(f"policy {request.policy!r}: the endpoint {self.address} {problem}")
        if request.forced is not None or request.continues:
            what = "continue token ids" if request.forced is None else "score a text"
            raise ValueError(f"policy {request.policy!r}: the endpoint {self.address} cannot {what}")
        future, done = asyncio.run_coroutine_threadsafe(self._client(request), self._loop), self._done
        self._open[ticket] = request.policy, future
        future.add_done_callback(lambda _: done.put(ticket))

    def step(self, wait_s: float) -> list[tuple[Ticket, Completion | Failure]]:
        """Return the answers that have arrived.

        Raises:
            EndpointError: if a request was given up and the run must not go on without it, or the budget is spent.
        """
        answers = []
        ticket = self._next(wait_s)
        while ticket is not None:
            if ticket in self._open:
                policy, future = self._open.pop(ticket)
                answers.append((ticket, self._check_failure(policy, future.result())))
            ticket = self._next(0.0)
        return answers

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        """Give requests up and close their connections; no answer follows."""
        for ticket in tickets:
            if ticket in self._open:
                self._open.pop(ticket)[1].cancel()

    def _next(self, wait_s: float) -> Ticket | None:
        try:
            return self._done.get(block=wait_s > 0, timeout=wait_s or None)
        except Empty:
            return None

    def _check_failure(self, policy: str, answer: Completion | Failure) -> Completion | Failure:
        """Return the answer, unless it is one failure too many."""
        if isinstance(answer, Completion) or answer.finish == "overflow":
            return answer
        settings, failed = self._settings, sum(usage.failed for usage in self.spent.values())
        if settings.on_failure == "stop":
            raise EndpointError(f"policy {policy!r}: {answer.reason} (engine.on_failure: stop)")
        if failed > settings.max_failures:
            raise EndpointError(
                f"policy {policy!r}: {answer.reason}; {failed} requests were given up so far "
                f"(engine.max_failures: {settings.max_failures})"
            )
        return answer


def _start_loop(owner: object) -> asyncio.AbstractEventLoop:
    """Return an event loop in a thread of its own, which is stopped, requests included, with `owner` or the process."""
    loop = asyncio.new_event_loop()
    # A daemon: an open connection must not keep the process alive.
    threading.Thread(target=_serve, args=(loop,), name="marl remote", daemon=True).start()
    weakref.finalize(owner, loop.call_soon_threadsafe, loop.stop)
    return loop


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.get_loop().run_forever()
