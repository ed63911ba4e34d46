"""The way to the engines and back: which policy was asked what, and how long to wait for it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import count

from marl.protocols import Engine, Service
from marl.types import Completion, Failure, Request, Ticket

_IDLE_S = 2e-4
"""A round over all engines that is shorter than this did no arithmetic: one forward of a tiny model takes longer."""


class Line:
    """Open requests of all policies. `aliases`: policy -> what its engine calls it, where that is another name."""

    def __init__(self, engines: Mapping[str, Engine], deadline_s: float, aliases: Mapping[str, str]) -> None:
        self._aliases = dict(aliases)
        self._engines = {id(engine): engine for engine in engines.values()}
        self._speakers = {policy: id(engine) for policy, engine in engines.items()}
        self._waiting: dict[int, dict[Ticket, str]] = {name: {} for name in self._engines}
        self._deadline_s = deadline_s
        self._tickets = count()

    def submit(self, request: Request) -> Ticket:
        ticket, engine = next(self._tickets), self._speakers[request.policy]
        self._waiting[engine][ticket] = request.policy
        if request.policy in self._aliases:
            request = replace(request, policy=self._aliases[request.policy])
        self._engines[engine].submit(ticket, request)
        return ticket

    def answers(self) -> list[tuple[Ticket, Completion | Failure]]:
        """Whatever has finished; waits for at least one answer, but not for ever.

        Raises:
            TimeoutError: naming the policies that owe an answer.
        """
        until = time.monotonic() + self._deadline_s
        while not (answers := self._step()):
            if time.monotonic() > until:
                raise TimeoutError(
                    f"no answer within {self._deadline_s:g} s (schedule.deadline_s); open requests by policy: "
                    + ", ".join(self._owing())
                )
        return answers

    def _owing(self) -> Iterator[str]:
        owing = Counter(policy for asked in self._waiting.values() for policy in asked.values())
        for policy, many in sorted(owing.items()):
            engine = self._engines[self._speakers[policy]]
            yield f"{policy}: {many}" + (f" (of {engine.address})" if isinstance(engine, Service) else "")

    def _step(self) -> list[tuple[Ticket, Completion | Failure]]:
        busy = [name for name, asked in self._waiting.items() if asked]
        if len(busy) == 1:
            return self._stepped(busy, min(1.0, self._deadline_s))
        started = time.monotonic()
        answers = self._stepped(busy, 0.0)
        # Only where nobody computes may each sleep a little: a sleep in one engine would hold up the others.
        if not answers and time.monotonic() - started < _IDLE_S:
            answers = self._stepped(busy, 0.01)
        return answers

    def _stepped(self, busy: Iterable[int], wait_s: float) -> list[tuple[Ticket, Completion | Failure]]:
        answers = []
        for name in busy:
            for ticket, said in self._engines[name].step(wait_s):
                if self._waiting[name].pop(ticket, None) is not None:
                    answers.append((ticket, said))
        return answers

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        """Take questions back; an answer that comes all the same is not passed on."""
        gone = list(tickets)
        for name, asked in self._waiting.items():
            if mine := [ticket for ticket in gone if asked.pop(ticket, None) is not None]:
                self._engines[name].cancel(mine)
