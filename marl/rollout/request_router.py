"""Routes requests to the engines that answer them, and answers back to the callers that wait for them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import count
from typing import NamedTuple

from marl.core.types import Completion, Failure, Request, Ticket
from marl.core.watchdog import suspend_watchdog
from marl.protocols import Engine, RemoteEngine, WorkerEngine
from marl.rollout.failures import FailureLog

_IDLE_S = 2e-4
"""Duration below which a round over all engines did no arithmetic: one forward pass of a tiny model takes longer."""
_PAUSE_S = 0.01
"""Maximum sleep of each of several idle engines, in seconds."""
Answer = Completion | Failure


AnswerCallback = Callable[[Ticket, Answer], None]
"""Callback for the answer to the request with this ticket."""


class _OpenRequest(NamedTuple):
    """A request in flight."""

    policy: str
    engine: int
    deliver: AnswerCallback


class RequestRouter:
    """Requests in flight of all simulators that share some engines.

    The speed of a worker process decides which requests share a batch, and so the last bits of their log-probabilities.
    With a `worker_delay`, a worker's answer is delivered exactly `worker_delay` rounds of the other engines after its
    request, or once these have nothing left to do: the batches follow from the seed alone.
    """

    def __init__(self, engines: Iterable[Engine], deadline_s: float, worker_delay: int | None = None) -> None:
        """Engines are stepped in the order of `engines`, then engines of later requests."""
        self.deadline_s, self.worker_delay = deadline_s, worker_delay
        self.failures = FailureLog()
        self._round = 0
        """Number of rounds in which engines other than workers were stepped."""
        self._due: dict[Ticket, int] = {}
        """Open request to a worker -> the round of its delivery; in ascending order of both."""
        self._early: dict[Ticket, Answer] = {}
        """Answers of workers before their round."""
        self._engines = {id(engine): engine for engine in engines}
        self._open: dict[Ticket, _OpenRequest] = {}
        self._busy = dict.fromkeys(self._engines, 0)
        """Engine -> number of its requests in flight."""
        self._tickets = count()
        self._last_answer = self._last_step = 0.0

    def submit(self, engine: Engine, request: Request, deliver: AnswerCallback, policy: str | None = None) -> Ticket:
        """Submit a request to an engine. `step` calls `deliver` with the answer.

        `policy`: the engine's name for the request's policy. By default the request's own, without a version or owner:
        for `actor@000120` the engine is asked for `actor`.
        """
        ticket, number = next(self._tickets), id(engine)
        if not self._open:
            self._last_answer = time.monotonic()
        if number not in self._engines:
            self._engines[number], self._busy[number] = engine, 0
        self._open[ticket] = _OpenRequest(request.policy, number, deliver)
        self._busy[number] += 1
        if self.worker_delay is not None and isinstance(engine, WorkerEngine):
            self._due[ticket] = self._round + self.worker_delay
        policy = policy or request.policy.partition("@")[0]
        engine.submit(ticket, request if policy == request.policy else replace(request, policy=policy))
        return ticket

    def remove_engine(self, engine: Engine) -> None:
        """Stop stepping an engine. A later request adds the engine again, after all others.

        Raises:
            ValueError: if its requests are in flight.
        """
        if requests := self._busy.get(id(engine), 0):
            raise ValueError(f"{type(engine).__name__} has {requests} requests in flight; cancel them first")
        self._engines.pop(id(engine), None)
        self._busy.pop(id(engine), None)

    def step(self, wait_s: float) -> None:
        """Deliver all answers that have arrived; block for at most `wait_s` if there are none yet.

        Raises:
            TimeoutError: if no request has been answered for `deadline_s`; names the policies with open requests.
            WorkerError: if too many answers of worker processes are missing.
        """
        # A caller's watchdog must not count time spent in engines: `deadline_s` limits that.
        with suspend_watchdog():
            began = time.monotonic()
            if began - self._last_step > self.deadline_s:
                self._last_answer = began  # nobody called `step` for so long, so no answer could be taken
            wait_s = min(wait_s, self.deadline_s)
            busy = [number for number in self._engines if self._busy[number]]
            answers = self._step_with_delay(busy, wait_s) if self._due else self._step_engines(busy, wait_s)
            self._last_step = now = time.monotonic()
            if answers:
                self._last_answer = now
            elif self._open and now - self._last_answer > self.deadline_s:
                raise TimeoutError(
                    f"no answer within {self.deadline_s:g} s (schedule.deadline_s); open requests by policy: "
                    + ", ".join(self._open_by_policy())
                )
            for ticket, answer in answers:
                # Another answer of this batch may have ended the episode, which cancels its other requests.
                if entry := self._close(ticket):
                    of_worker = isinstance(self._engines[entry.engine], WorkerEngine)
                    self.failures.note(entry.policy, answer, of_worker=of_worker)
                    entry.deliver(ticket, answer)

    def _open_by_policy(self) -> list[str]:
        open_requests = Counter((entry.policy, entry.engine) for entry in self._open.values())
        lines: list[str] = []
        for (policy, number), requests in sorted(open_requests.items()):
            engine = self._engines[number]
            name = engine.address if isinstance(engine, RemoteEngine) else type(engine).__name__
            lines.append(f"{policy}: {requests} (of {name})")
        return lines

    def _step_with_delay(self, busy: Sequence[int], wait_s: float) -> list[tuple[Ticket, Answer]]:
        """Return the answers of one round under a `worker_delay`: none until all worker answers due now are there."""
        workers = [number for number in busy if isinstance(self._engines[number], WorkerEngine)]
        models = [number for number in busy if number not in workers]
        if not models:
            # No round would pass otherwise: the clock jumps to the next delivery.
            self._round = max(self._round, next(iter(self._due.values())))
        due: list[Ticket] = []
        for ticket, delivery_round in self._due.items():
            if delivery_round > self._round:
                break
            due.append(ticket)
        for number in workers:
            if self._early.keys() >= set(due):
                break
            self._early.update(self._engines[number].step(wait_s))
        if not self._early.keys() >= set(due):
            return []
        self._round += 1
        answers = [(ticket, self._early.pop(ticket)) for ticket in due]
        return answers + self._step_engines(models, 0.0 if answers else wait_s)

    def _step_engines(self, numbers: Sequence[int], wait_s: float) -> list[tuple[Ticket, Answer]]:
        if len(numbers) == 1:
            return list(self._engines[numbers[0]].step(wait_s))
        started = time.monotonic()
        answers: list[tuple[Ticket, Answer]] = []
        for pause_s in (0.0, min(wait_s, _PAUSE_S)):
            for number in numbers:
                answers += self._engines[number].step(pause_s)
            # Engines may sleep a little only where none computes: a sleep in one would hold up the others.
            if answers or time.monotonic() - started >= _IDLE_S:
                break
        return answers

    def _close(self, ticket: Ticket) -> _OpenRequest | None:
        entry = self._open.pop(ticket, None)
        if entry:
            self._busy[entry.engine] -= 1
            self._due.pop(ticket, None)
            self._early.pop(ticket, None)
        return entry

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        """Withdraw requests; a late answer to them is not delivered."""
        withdrawn: dict[int, list[Ticket]] = {}
        for ticket in tickets:
            if entry := self._close(ticket):
                withdrawn.setdefault(entry.engine, []).append(ticket)
        for engine, numbers in withdrawn.items():
            self._engines[engine].cancel(numbers)
