"""Engine that answers a request by running a program, whose model calls become requests to other engines meanwhile."""

from __future__ import annotations

import json
import queue
import time
from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING
from weakref import finalize

from marl.core.errors import EngineError
from marl.core.types import Completion, CompletionFailure, Request, Ticket
from marl.engines.program.attempts import JobFinished, ProgramAttempts, ProgramJob
from marl.gateway.server import Gateway
from marl.gateway.sessions import AnsweringAgent
from marl.protocols import IneffectiveCallsNotice, ModelCallingEngine, ProgramModelCall
from marl.protocols.programs import ProgramAttemptCounts

if TYPE_CHECKING:
    # Imported for type checkers only: `settings` imports this module, so a second import would be circular.
    from marl.engines.program.settings import Program

Answer = Completion | CompletionFailure
_Event = ProgramModelCall | IneffectiveCallsNotice | JobFinished


class ProgramEngine(ModelCallingEngine):
    """Engine that runs each program in a process of its own, and serves the programs' model calls by a `Gateway`."""

    reason = "runs a program: it has no weights to load"

    def __init__(self, settings: Program) -> None:
        self._settings = settings
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._gateway: Gateway | None = None
        self._attempts: ProgramAttempts | None = None
        """Attempts in the gateway's thread, or None before the first request."""
        self._jobs: dict[Ticket, ProgramJob] = {}
        self._calls: list[ProgramModelCall | IneffectiveCallsNotice] = []
        self._parents: dict[int, Ticket] = {}
        """Id of an open call -> ticket of its program."""
        self._open_calls: Counter[Ticket] = Counter()
        """Ticket of a program with open calls -> number of its open calls."""
        self._answers: list[tuple[Ticket, Answer]] = []

    def submit(self, ticket: Ticket, request: Request) -> None:
        """Queue a run of the program on the task in `request.state`.

        Raises:
            ValueError: if `request.state` holds no task, because the agent's stage of the game has no `callers`.
        """
        if request.forced is not None:
            self._answers.append((ticket, Completion(request.forced, (), (), (), "stop")))
            return
        try:
            state = json.loads(request.state)
            task = state["task"]
            callers = {name: AnsweringAgent(entry["agent"], entry["match"]) for name, entry in state["callers"].items()}
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"policy {request.policy!r} runs a program, but was given no task: {error!r}") from error
        job = self._jobs[ticket] = ProgramJob(ticket, request.policy, task, callers)
        if self._gateway is None or self._attempts is None:
            self._gateway = Gateway(self._events.put)
            self._attempts = ProgramAttempts(self._settings, self._gateway, self._events.put)
            self.close = finalize(self, _close, self._attempts, self._gateway)
        self._gateway.call_soon(partial(self._attempts.add, job))

    def step(self, wait_s: float) -> list[tuple[Ticket, Answer]]:
        """Return the answers of programs that have ended. Wait at most `wait_s` seconds for an answer or a call.

        Raises:
            EngineError: if a program cannot be started, or reports a reward for an agent that does not exist.
        """
        answers, self._answers = self._answers, []
        has_work = bool(self._jobs) and not answers
        try:
            event = self._events.get(block=has_work and wait_s > 0, timeout=wait_s or None)
            while True:
                if isinstance(event, JobFinished):
                    if self._pop_job(event.job.ticket):
                        if isinstance(event.answer, EngineError):
                            raise EngineError(f"policy {event.job.policy!r}: {event.answer}")
                        answers.append((event.job.ticket, event.answer))
                elif event.parent in self._jobs:
                    if isinstance(event, ProgramModelCall):
                        self._parents[event.id] = event.parent
                        self._open_calls[event.parent] += 1
                    else:
                        self._forget_calls(event)
                    self._calls.append(event)
                event = self._events.get_nowait()
        except queue.Empty:
            return answers

    def _forget_calls(self, notice: IneffectiveCallsNotice) -> None:
        """Remove the calls from the open ones whose answers have no effect according to `notice`."""
        calls = notice.calls
        if calls is None:
            calls = [call for call, parent in self._parents.items() if parent == notice.parent]
        for call in calls:
            self._pop_parent(call)

    def _pop_parent(self, call_id: int) -> Ticket:
        """Return the ticket of the program whose open call `call_id` ends, or -1 if this call is not open."""
        parent = self._parents.pop(call_id, -1)
        self._open_calls[parent] -= 1
        if self._open_calls[parent] <= 0:
            del self._open_calls[parent]
        return parent

    def _pop_job(self, ticket: Ticket) -> ProgramJob | None:
        """Return the job of `ticket`, which ends, or None if it has ended."""
        self._open_calls.pop(ticket, None)
        return self._jobs.pop(ticket, None)

    def is_computing(self) -> bool:
        # Workers take the requests in the order of their submission, and only a running program has open calls.
        running = min(len(self._jobs), self._settings.workers * self._settings.tasks_per_worker)
        return len(self._open_calls) < running

    def program_attempt_counts(self) -> ProgramAttemptCounts:
        return self._attempts.count_attempts() if self._attempts else ProgramAttemptCounts(0, 0, 0, time.time())

    def take_model_calls_and_notices(self) -> list[ProgramModelCall | IneffectiveCallsNotice]:
        calls, self._calls = self._calls, []
        return calls

    def deliver_model_call_answer(self, call_id: int, answer: Answer) -> None:
        job = self._jobs.get(self._pop_parent(call_id))
        if job and job.session and self._gateway:
            self._gateway.answer_call(job.session, call_id, answer)

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        cancelled = set(tickets)
        self._answers = [answer for answer in self._answers if answer[0] not in cancelled]
        for ticket in cancelled:
            if job := self._pop_job(ticket):
                job.cancelled = True
                if self._gateway and self._attempts:
                    self._gateway.call_soon(partial(self._attempts.cancel, job))
        self._calls = [call for call in self._calls if call.parent not in cancelled]


def _close(attempts: ProgramAttempts, gateway: Gateway) -> None:
    """End all processes and the gateway."""
    processes = attempts.kill_processes()
    gateway.call_soon(attempts.close)
    gateway.close()
    # Without a wait they would stay as zombies.
    for process in processes:
        process.reap()
