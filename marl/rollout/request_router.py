"""Router that submits requests to engines, steps the engines, and delivers answers by callbacks."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from operator import itemgetter

from marl.core.types import Completion, CompletionFailure, Request, Ticket
from marl.core.watchdog import CallWatchdog
from marl.protocols import (
    Engine,
    IneffectiveCallsNotice,
    ModelCallingEngine,
    ProgramModelCall,
    RemoteEngine,
    WorkerProcessEngine,
)
from marl.rollout.failures import FailedRequestLog

_IDLE_S = 2e-4
"""Maximum duration of a round over all engines that counts as idle [s]: less than a tiny model's forward pass takes."""
_PAUSE_S = 0.01
"""Maximum time that each of several idle engines waits for an answer in one round, in seconds."""
_CALL_PAUSE_S = 3e-4
"""Maximum wait of an engine in one round while a program runs, which may call a model at any moment, in seconds."""
_COLLECTING_S = 2e-3
"""Time for which calls of programs are collected while further programs compute, in seconds."""
_ANSWERED_SHARE = 0.25
"""Share of the programs' open calls that are answered before programs get the answers."""
Answer = Completion | CompletionFailure
"""Answer of an engine to a request."""
AnswerCallback = Callable[[Ticket, Answer], None]
"""Function that is called with the ticket of a request and the answer to it."""
CallHandler = Callable[[ModelCallingEngine, ProgramModelCall | IneffectiveCallsNotice], None]
"""Function that is called with each call of a request's program, and with the engine that runs the program."""
ProgramCall = tuple[ModelCallingEngine, ProgramModelCall | IneffectiveCallsNotice]
"""(engine that runs a program, call of the program)."""


@dataclass(slots=True)
class _OpenRequest:
    """Request without an answer so far."""

    policy: str
    engine_id: int
    """Identity of the engine to which the request was submitted."""
    deliver: AnswerCallback
    handle_call: CallHandler | None
    """Handler of model calls of the program that the request runs, or None if the request runs no program."""


class RequestRouter:
    """Router of the requests of all simulators that share engines.

    Answers of worker processes arrive at random times, which would decide the requests that share a batch. Therefore a
    worker's answer is delivered exactly `worker_delay` rounds of the other engines after its request, or as soon as the
    other engines are idle. Programs compute for random times, too: with a `worker_delay`, the other engines are stepped
    only while every running program waits for an answer. Batches, and hence the rounding of log-probabilities, then
    depend on the seed alone, unless a program makes parallel calls. As all models then wait for the slowest program,
    programs get the answers to their calls when a quarter of the open calls is answered, not one by one.
    """

    def __init__(self, engines: Iterable[Engine], deadline_s: float, worker_delay: int | None = None) -> None:
        """Step engines in the order of `engines`, then all other engines in the order of their first requests."""
        self.deadline_s, self.worker_delay = deadline_s, worker_delay
        self.failures = FailedRequestLog()
        self._round = 0
        """Number of rounds in which engines other than workers were stepped."""
        self._due: dict[Ticket, int] = {}
        """Unanswered request to a worker -> round of its delivery, in ascending order of ticket and round."""
        self._early: dict[Ticket, Answer] = {}
        """Answers of workers that wait for the round of their delivery."""
        self._program_calls: list[ProgramCall] = []
        """Calls of programs that wait until no program computes."""
        self._program_answers: list[tuple[Ticket, Answer]] = []
        """Answers of programs that wait until no program computes."""
        self._open_calls: set[Ticket] = set()
        """Open requests that are model calls of programs."""
        self._held_answers: list[tuple[Ticket, Answer]] = []
        """Answers to model calls of programs that wait for answers to further calls."""
        self._engines = {id(engine): engine for engine in engines}
        self._open: dict[Ticket, _OpenRequest] = {}
        self._busy = dict.fromkeys(self._engines, 0)
        """Identity of an engine -> number of its open requests."""
        self._tickets = count()
        self._last_answer = self._last_step = 0.0

    def submit(
        self,
        engine: Engine,
        request: Request,
        deliver: AnswerCallback,
        policy: str | None = None,
        handle_call: CallHandler | None = None,
    ) -> Ticket:
        """Submit `request` to `engine` and return its ticket. `step` calls `deliver` with the answer.

        If the request runs a program, `step` calls `handle_call` with each of the program's calls.
        `policy` is the engine's name for the request's policy. By default it is the policy without version or owner,
        such as `actor` for `actor@000120`.
        """
        ticket, engine_id = next(self._tickets), id(engine)
        if not self._open:
            self._last_answer = time.monotonic()
        if engine_id not in self._engines:
            self._engines[engine_id], self._busy[engine_id] = engine, 0
        engine_policy = policy or request.policy.partition("@")[0]
        # `submit` comes first, because a request that the engine refuses must not be registered as open.
        engine.submit(ticket, request if engine_policy == request.policy else replace(request, policy=engine_policy))
        self._open[ticket] = _OpenRequest(request.policy, engine_id, deliver, handle_call)
        self._busy[engine_id] += 1
        if self.worker_delay is not None and isinstance(engine, WorkerProcessEngine):
            self._due[ticket] = self._round + self.worker_delay
        return ticket

    def mark_as_call_of_program(self, ticket: Ticket) -> None:
        """Note that the open request of `ticket` is a program's model call, whose answer may wait for others."""
        self._open_calls.add(ticket)

    def count_open_requests(self, engine: Engine) -> int:
        """Return the number of requests that `engine` has not answered."""
        return self._busy.get(id(engine), 0)

    def remove_engine(self, engine: Engine) -> None:
        """Stop stepping `engine`. A later request adds the engine again, after all others.

        Raises:
            ValueError: if the engine has open requests.
        """
        if requests := self._busy.get(id(engine), 0):
            raise ValueError(f"{type(engine).__name__} has {requests} requests in flight; cancel them first")
        self._engines.pop(id(engine), None)
        self._busy.pop(id(engine), None)

    def step(self, wait_s: float) -> None:
        """Step the engines and deliver all answers that have arrived. Wait at most `wait_s` seconds for the first.

        Raises:
            TimeoutError: if no request has been answered for `deadline_s`; names the policies with open requests.
            WorkerPoolError: if too many answers of worker processes are missing.
        """
        # A caller's watchdog must not count time spent in engines, because `deadline_s` limits this time.
        with CallWatchdog(str, math.inf):
            began = time.monotonic()
            if began - self._last_step > self.deadline_s:
                # Between calls of `step` no answer could arrive, so this time does not count as waiting.
                self._last_answer = began
            wait_s = min(wait_s, self.deadline_s)
            busy = self._engines_with_unanswered_requests()
            calls: list[ProgramCall] = []
            if any(isinstance(self._engines[engine_id], ModelCallingEngine) for engine_id in busy):
                answers, calls = self._step_with_programs(busy, wait_s)
            elif self._due:
                answers = self._step_with_worker_delay(busy, wait_s)
            else:
                answers = self._step_engines(busy, wait_s)
            self._last_step = now = time.monotonic()
            # Calls of programs are handled before answers, because a program's answer ends the program.
            self._handle_calls(calls)
            if answers or calls:
                self._last_answer = now
            elif self._open and now - self._last_answer > self.deadline_s:
                open_requests = Counter((request.policy, request.engine_id) for request in self._open.values())
                lines: list[str] = []
                for (policy, engine_id), requests in sorted(open_requests.items()):
                    engine = self._engines[engine_id]
                    name = engine.address if isinstance(engine, RemoteEngine) else type(engine).__name__
                    lines.append(f"{policy}: {requests} (of {name})")
                limit = f"{self.deadline_s:g} s (schedule.deadline_s)"
                raise TimeoutError(f"no answer within {limit}; open requests by policy: {', '.join(lines)}")
            self._deliver_answers(answers)

    def _deliver_answers(self, answers: Iterable[tuple[Ticket, Answer]]) -> None:
        """Pass each answer to the episode or program that asked for it; answers to cancelled requests are dropped.

        Before that, `failures` counts failed answers, and all answers of engines with worker processes.
        """
        workers = [key for key, engine in self._engines.items() if isinstance(engine, WorkerProcessEngine)]
        for ticket, answer in answers:
            # A request may be gone: an earlier answer may have ended its episode, which cancels its requests.
            if request := self._pop_open_request(ticket):
                of_worker = request.engine_id in workers
                if of_worker or isinstance(answer, CompletionFailure):
                    self.failures.record_answer(request.policy, answer, from_worker_process=of_worker)
                request.deliver(ticket, answer)

    def open_requests_by_policy(self) -> Counter[str]:
        """Return policy -> number of its open requests."""
        return Counter(request.policy for request in self._open.values())

    def _engines_with_unanswered_requests(self) -> list[int]:
        """Return the identities of the engines that have requests without an answer, not even a held one."""
        held = Counter([self._open[ticket].engine_id for ticket, _ in self._held_answers if ticket in self._open])
        return [engine_id for engine_id in self._engines if self._busy[engine_id] > held[engine_id]]

    def _step_with_programs(
        self, busy_engine_ids: Sequence[int], wait_s: float
    ) -> tuple[list[tuple[Ticket, Answer]], list[ProgramCall]]:
        """Run one round of all engines, or of programs alone, and return the answers and the programs' calls.

        `busy_engine_ids` are the identities of the engines with open requests.
        """
        programs: dict[int, ModelCallingEngine] = {}
        others: list[int] = []
        for engine_id in busy_engine_ids:
            engine = self._engines[engine_id]
            if isinstance(engine, ModelCallingEngine):
                programs[engine_id] = engine
            else:
                others.append(engine_id)
        step_engines = self._step_with_worker_delay if self._due else self._step_engines
        if self.worker_delay is None:
            answers = step_engines(busy_engine_ids, wait_s)
            return answers, [
                (engine, call) for engine in programs.values() for call in engine.take_model_calls_and_notices()
            ]
        for engine_id, engine in programs.items():
            # Only a program that waits for an answer needs other engines to be stepped.
            answers = self._engines[engine_id].step(wait_s if engine.is_computing() or not others else 0.0)
            calls = [(engine, call) for call in engine.take_model_calls_and_notices()]
            if answers or calls:
                self._last_answer = time.monotonic()
            self._program_answers += answers
            self._program_calls += calls
        if any(engine.is_computing() for engine in programs.values()):
            # Taking each call at once would take the interpreter's lock from the gateway's thread as often.
            if self._program_answers or self._program_calls:
                time.sleep(min(wait_s, _COLLECTING_S))
            return [], []
        if not (self._program_answers or self._program_calls):
            return self._hold_answers_to_few_calls(step_engines(others, wait_s)), []
        # The order in which programs called or ended depends on the time that they took.
        answers = sorted(self._program_answers, key=itemgetter(0))
        calls = sorted(self._program_calls, key=lambda call: call[1].parent)
        self._program_answers, self._program_calls = [], []
        return answers, calls

    def _hold_answers_to_few_calls(self, answers: Iterable[tuple[Ticket, Answer]]) -> list[tuple[Ticket, Answer]]:
        """Return `answers`, except those to programs' calls as long as most calls are open, and those held before.

        No engine is stepped while a program computes. So few waits, each for many programs, cost less than many waits.
        """
        returned: list[tuple[Ticket, Answer]] = []
        for ticket, answer in answers:
            (self._held_answers if ticket in self._open_calls else returned).append((ticket, answer))
            self._last_answer = time.monotonic()
        self._held_answers = [answer for answer in self._held_answers if answer[0] in self._open_calls]
        if len(self._held_answers) >= _ANSWERED_SHARE * len(self._open_calls):
            returned += self._held_answers
            self._held_answers = []
        return returned

    def _handle_calls(self, calls: Iterable[ProgramCall]) -> None:
        """Pass the model calls of programs to their handlers."""
        for engine, call in calls:
            # `parent` is gone if the handler of an earlier call has ended the episode.
            parent = self._open.get(call.parent)
            if parent and parent.handle_call:
                parent.handle_call(engine, call)

    def _step_with_worker_delay(self, busy_engine_ids: Sequence[int], wait_s: float) -> list[tuple[Ticket, Answer]]:
        """Run one round with `worker_delay` and return the answers, or return [] until all due worker answers arrive.

        `busy_engine_ids` are the identities of the engines with open requests.
        """
        workers = [
            engine_id for engine_id in busy_engine_ids if isinstance(self._engines[engine_id], WorkerProcessEngine)
        ]
        models = [engine_id for engine_id in busy_engine_ids if engine_id not in workers]
        if not models:
            # Only sampling models advance the round counter; without one, it jumps to the next delivery.
            self._round = max(self._round, next(iter(self._due.values())))
        due: list[Ticket] = []
        for ticket, delivery_round in self._due.items():
            if delivery_round > self._round:
                break
            due.append(ticket)
        for engine_id in workers:
            if self._early.keys() >= set(due):
                break
            self._early.update(self._engines[engine_id].step(wait_s))
        if not self._early.keys() >= set(due):
            return []
        self._round += 1
        answers = [(ticket, self._early.pop(ticket)) for ticket in due]
        # The request stays open while its answer is held for a program, but no further answer is due.
        for ticket in due:
            del self._due[ticket]
        return answers + self._step_engines(models, 0.0 if answers else wait_s)

    def _step_engines(self, engine_ids: Sequence[int], wait_s: float) -> list[tuple[Ticket, Answer]]:
        """Step the engines with these identities and return their answers, after waiting at most `wait_s`."""
        if len(engine_ids) == 1:
            return list(self._engines[engine_ids[0]].step(wait_s))
        started = time.monotonic()
        answers: list[tuple[Ticket, Answer]] = []
        # Only the engine of a running program waits, because the program's next call may come at any moment.
        programs = [engine_id for engine_id in engine_ids if isinstance(self._engines[engine_id], ModelCallingEngine)]
        for pause_s in (0.0, min(wait_s, _CALL_PAUSE_S if programs else _PAUSE_S)):
            for engine_id in engine_ids:
                answers += self._engines[engine_id].step(pause_s if engine_id in programs or not programs else 0.0)
            # Engines sleep only while no engine computes, because the sleep of one engine delays all others.
            if answers or time.monotonic() - started >= _IDLE_S:
                break
        return answers

    def _pop_open_request(self, ticket: Ticket) -> _OpenRequest | None:
        """Remove the open request of `ticket` and return it, or None if it was answered or cancelled."""
        request = self._open.pop(ticket, None)
        if request:
            self._busy[request.engine_id] -= 1
            if self._open_calls or self._due or self._early:
                self._open_calls.discard(ticket)
                self._due.pop(ticket, None)
                self._early.pop(ticket, None)
        return request

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        """Cancel the requests of `tickets`, so that no answers to them are delivered."""
        cancelled: dict[int, list[Ticket]] = {}
        for ticket in tickets:
            if request := self._pop_open_request(ticket):
                cancelled.setdefault(request.engine_id, []).append(ticket)
        for engine_id, engine_tickets in cancelled.items():
            self._engines[engine_id].cancel(engine_tickets)
