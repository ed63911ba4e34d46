"""Routes requests to the engines that answer them, and answers to the callers that wait for them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count, takewhile
from typing import NamedTuple

from marl.protocols import Engine, Service, WorkerEngine
from marl.rollout.failures import FailureLog
from marl.types import Completion, Failure, Request, Ticket
from marl.watchdog import unwatched

_IDLE_S = 2e-4
"""A round over all engines that is shorter than this did no arithmetic: one forward of a tiny model takes longer."""
Answer = Completion | Failure


Deliver = Callable[[Ticket, Answer], None]
"""Take the answer to the request with this ticket."""


class _Open(NamedTuple):
    """A request in flight."""

    policy: str
    engine: int
    deliver: Deliver


class RequestRouter:
    """Requests in flight of all simulators that share some engines.

    How long a worker process takes decides which requests share a batch, and so the last bits of their
    log-probabilities. With a `worker_delay`, its answer is delivered that many rounds of the other engines after the
    request, neither earlier nor later, or when they have nothing left to do: the batches follow from the seed alone.
    """

    def __init__(self, engines: Iterable[Engine], deadline_s: float, worker_delay: int | None = None) -> None:
        """`engines` are stepped in this order; others, that requests are put to later, after them."""
        self.deadline_s, self.worker_delay = deadline_s, worker_delay
        self.failures = FailureLog()
        self._round = 0
        """Number of rounds in which engines other than workers were stepped."""
        self._due: dict[Ticket, int] = {}
        """Open request to a worker -> the round in which its answer is delivered; in ascending order of both."""
        self._early: dict[Ticket, Answer] = {}
        """Answers of workers before their round."""
        self._engines = {id(engine): engine for engine in engines}
        self._open: dict[Ticket, _Open] = {}
        self._busy = dict.fromkeys(self._engines, 0)
        """Engine -> number of its requests in flight."""
        self._tickets = count()
        self._last_answer = self._last_pump = 0.0

    def submit(self, engine: Engine, request: Request, deliver: Deliver, policy: str | None = None) -> Ticket:
        """Put a request to an engine; `deliver` is called with the answer, from `pump`.

        `policy`: name by which the engine knows the request's policy. By default that is the policy's own, which may
        carry a version or an owner, as in `actor@000120`: the engine is asked for `actor`.
        """
        ticket, number = next(self._tickets), id(engine)
        if not self._open:
            self._last_answer = time.monotonic()
        if number not in self._engines:
            self._engines[number], self._busy[number] = engine, 0
        self._open[ticket] = _Open(request.policy, number, deliver)
        self._busy[number] += 1
        if self.worker_delay is not None and isinstance(engine, WorkerEngine):
            self._due[ticket] = self._round + self.worker_delay
        policy = policy or request.policy.partition("@")[0]
        engine.submit(ticket, request if policy == request.policy else replace(request, policy=policy))
        return ticket

    def forget(self, engine: Engine) -> None:
        """Step an engine no more; it comes after all others if a request is put to it later.

        Raises:
            ValueError: if its requests are in flight.
        """
        if many := self._busy.get(id(engine), 0):
            raise ValueError(f"{type(engine).__name__} has {many} requests in flight; cancel them first")
        self._engines.pop(id(engine), None)
        self._busy.pop(id(engine), None)

    def pump(self, wait_s: float) -> None:
        """Deliver all answers that have come; block for at most `wait_s` if there are none yet.

        Raises:
            TimeoutError: if no request has been answered for `deadline_s`; names the policies that owe an answer.
            WorkerError: if too many answers of worker processes are missing.
        """
        with unwatched():
            self._pump(wait_s)

    def _pump(self, wait_s: float) -> None:
        began = time.monotonic()
        if began - self._last_pump > self.deadline_s:
            self._last_answer = began  # nobody looked for so long, so no answer could be taken
        answers = self._step(min(wait_s, self.deadline_s))
        self._last_pump = now = time.monotonic()
        if answers:
            self._last_answer = now
        elif self._open and now - self._last_answer > self.deadline_s:
            raise TimeoutError(
                f"no answer within {self.deadline_s:g} s (schedule.deadline_s); open requests by policy: "
                + ", ".join(self._owing())
            )
        for ticket, answer in answers:
            # Cancelled meanwhile, if another answer of this batch ended its episode.
            if entry := self._close(ticket):
                of_worker = isinstance(self._engines[entry.engine], WorkerEngine)
                self.failures.note(entry.policy, answer, of_worker=of_worker)
                entry.deliver(ticket, answer)

    def _owing(self) -> Iterator[str]:
        owing = Counter((entry.policy, entry.engine) for entry in self._open.values())
        for (policy, number), many in sorted(owing.items()):
            engine = self._engines[number]
            name = engine.address if isinstance(engine, Service) else type(engine).__name__
            yield f"{policy}: {many} (of {name})"

    def _step(self, wait_s: float) -> list[tuple[Ticket, Answer]]:
        busy = [number for number in self._engines if self._busy[number]]
        if not self._due:
            return self._collect_busy(busy, wait_s)
        workers = [number for number in busy if isinstance(self._engines[number], WorkerEngine)]
        models = [number for number in busy if number not in workers]
        if not models:
            self._round = max(self._round, next(iter(self._due.values())))
        due = list(takewhile(lambda ticket: self._due[ticket] <= self._round, self._due))
        if not self._have_come(due, workers, wait_s):
            return []
        self._round += 1
        answers = [(ticket, self._early.pop(ticket)) for ticket in due]
        return answers + self._collect_busy(models, 0.0 if answers else wait_s)

    def _have_come(self, due: Sequence[Ticket], workers: Iterable[int], wait_s: float) -> bool:
        """Return True if all answers that are due have come; wait for them, at most `wait_s` for each engine."""
        for number in workers:
            if not self._early.keys() >= set(due):
                self._early.update(self._engines[number].step(wait_s))
        return self._early.keys() >= set(due)

    def _collect_busy(self, busy: Sequence[int], wait_s: float) -> list[tuple[Ticket, Answer]]:
        if len(busy) == 1:
            return self._collect(busy, wait_s)
        started = time.monotonic()
        answers = self._collect(busy, 0.0)
        # Only where no engine computes may each sleep a little: a sleep in one would hold up the others.
        if not answers and time.monotonic() - started < _IDLE_S:
            answers = self._collect(busy, min(wait_s, 0.01))
        return answers

    def _collect(self, busy: Iterable[int], wait_s: float) -> list[tuple[Ticket, Answer]]:
        return [answer for number in busy for answer in self._engines[number].step(wait_s)]

    def _close(self, ticket: Ticket) -> _Open | None:
        entry = self._open.pop(ticket, None)
        if entry:
            self._busy[entry.engine] -= 1
            self._due.pop(ticket, None)
            self._early.pop(ticket, None)
        return entry

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        """Take requests back; an answer that comes all the same is not delivered."""
        withdrawn: dict[int, list[Ticket]] = {}
        for ticket in tickets:
            if entry := self._close(ticket):
                withdrawn.setdefault(entry.engine, []).append(ticket)
        for engine, numbers in withdrawn.items():
            self._engines[engine].cancel(numbers)
