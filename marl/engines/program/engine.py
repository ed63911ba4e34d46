"""Engine that answers a request by running a program, whose model calls become requests to other engines meanwhile."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, get_args
from weakref import finalize

from marl.core.errors import EngineError
from marl.core.types import Completion, CompletionFailure, Request, Ticket
from marl.engines.program.process import ProgramAttemptError, ProgramProcess
from marl.gateway.server import Gateway, new_session_key
from marl.gateway.sessions import AnsweringAgent, ProgramSession
from marl.host.untrusted_text import replace_surrogates
from marl.protocols import IneffectiveCallsNotice, ModelCallingEngine, ProgramAnswer, ProgramModelCall
from marl.protocols.programs import ProgramAttemptCounts, ProgramAttemptEnd, ProgramCallerResult

if TYPE_CHECKING:
    # Imported for type checkers only: `settings` imports this module, so a second import would be circular.
    from marl.engines.program.settings import Program

_POLL_S = 5.0
"""Maximum time between two checks whether the engine is closed, in seconds."""
_MAX_ERROR_LENGTH = 500
"""Maximum length of a failed program's error message, in characters."""
Answer = Completion | CompletionFailure


@dataclass(eq=False, slots=True)
class _ProgramJob:
    """Request that a program answers, in up to `attempts` attempts."""

    ticket: Ticket
    policy: str
    task: Any
    callers: Mapping[str, AnsweringAgent]
    """Model name in the program's calls -> agent that answers these calls."""
    cancelled: bool = False
    session: ProgramSession | None = None
    """Session of the present attempt."""
    stop: Callable[[], None] | None = None
    """Function that ends the present attempt soon."""


@dataclass(frozen=True, slots=True)
class _JobFinished:
    """Event of a worker thread: the job's request is answered, or an error ends the run."""

    job: _ProgramJob
    answer: Answer | EngineError


_Event = ProgramModelCall | IneffectiveCallsNotice | _JobFinished


class ProgramEngine(ModelCallingEngine):
    """Engine that runs each program in a process of its own, and serves the programs' model calls by a `Gateway`."""

    reason = "runs a program: it has no weights to load"

    def __init__(self, settings: Program) -> None:
        self._settings = settings
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._gateway: Gateway | None = None
        self._workers: list[_ProgramWorker] = []
        self._queued: queue.SimpleQueue[_ProgramJob | None] = queue.SimpleQueue()
        self._jobs: dict[Ticket, _ProgramJob] = {}
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
        job = self._jobs[ticket] = _ProgramJob(ticket, request.policy, task, callers)
        if self._gateway is None:
            self._start_workers()
        self._queued.put(job)

    def _start_workers(self) -> None:
        """Start the gateway and the worker threads."""
        gateway = self._gateway = Gateway(self._events.put)
        workers = self._workers
        for _ in range(self._settings.workers):
            processes = _ReplacedProcess(self._settings, gateway)
            for _ in range(self._settings.tasks_per_worker):
                worker = _ProgramWorker(self._settings, gateway, self._events, processes)
                workers.append(worker)
                threading.Thread(target=_run_jobs, args=(worker, self._queued), daemon=True).start()
        self.close = finalize(self, _close_workers, workers, self._queued, gateway)

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
                if isinstance(event, _JobFinished):
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

    def _pop_job(self, ticket: Ticket) -> _ProgramJob | None:
        """Return the job of `ticket`, which ends, or None if it has ended."""
        self._open_calls.pop(ticket, None)
        return self._jobs.pop(ticket, None)

    def is_computing(self) -> bool:
        # Workers take the requests in the order of their submission, and only a running program has open calls.
        running = min(len(self._jobs), self._settings.workers * self._settings.tasks_per_worker)
        return len(self._open_calls) < running

    def program_attempt_counts(self) -> ProgramAttemptCounts:
        begin_times = [begun for worker in self._workers if (begun := worker.begun) is not None]
        return ProgramAttemptCounts(
            attempts=sum(worker.attempts for worker in self._workers),
            repeated=sum(worker.repeated for worker in self._workers),
            running=len(begin_times),
            since=min(begin_times, default=time.time()),
            ends=sum([worker.ends for worker in self._workers], Counter[ProgramAttemptEnd]()),
        )

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
                if stop := job.stop:
                    stop()
        self._calls = [call for call in self._calls if call.parent not in cancelled]


class _ReplacedProcess:
    """Process for up to `tasks_per_worker` attempts at once, replaced after an attempt that it may still work on."""

    def __init__(self, settings: Program, gateway: Gateway) -> None:
        self._settings, self._gateway = settings, gateway
        self._lock = threading.Lock()
        self._current: ProgramProcess | None = None
        """Process for further attempts, or None before the first attempt and after one that was lost."""
        self._attempts: dict[ProgramProcess, int] = {}
        """Process that has not been closed -> number of its attempts in progress."""
        self.closed = False

    def acquire(self) -> ProgramProcess:
        """Return the process for a new attempt, which `release` must end.

        Raises:
            ProgramAttemptError: if a new process was killed, or has not imported its module in time.
            EngineError: if the program cannot be started.
        """
        with self._lock:
            process = self._current
            # If a call arrives after its attempt has ended, a thread is still running in the process; it is replaced.
            if process is not None and (process.has_ended or process.key in self._gateway.late_keys):
                self._retire(process)
            if self.closed:
                raise ProgramAttemptError("cancelled", "cancelled")
            process = self._current or self._start_process()
            self._attempts[process] += 1
            return process

    def release(self, process: ProgramProcess, *, is_reusable: bool) -> None:
        """End an attempt in `process`. The process takes no further ones unless `is_reusable`."""
        with self._lock:
            self._attempts[process] -= 1
            if not is_reusable or process is not self._current:
                self._retire(process)

    def kill(self) -> list[ProgramProcess]:
        """Kill and return all processes that have not been closed, and start no further ones."""
        self.closed = True
        processes = list(self._attempts)
        for process in processes:
            process.kill()
        return processes

    def _start_process(self) -> ProgramProcess:
        process = ProgramProcess(self._settings, self._gateway.address, new_session_key())
        self._current, self._attempts[process] = process, 0
        if self._settings.tasks_per_worker > 1:
            self._gateway.shared_keys.add(process.key)
        if self._settings.call:
            try:
                process.wait_until_ready()
            except (ProgramAttemptError, EngineError):
                self._retire(process)
                raise
        return process

    def _retire(self, process: ProgramProcess) -> None:
        """Start no further attempts in `process`, and close it after its last attempt."""
        if process is self._current:
            self._current = None
        if not self._attempts.get(process, 0):
            self._attempts.pop(process, None)
            process.close()
            self._gateway.late_keys.discard(process.key)
            self._gateway.shared_keys.discard(process.key)


class _ProgramWorker:
    """Worker that runs jobs one after the other, in processes that it shares with other workers."""

    def __init__(
        self, settings: Program, gateway: Gateway, events: queue.SimpleQueue[_Event], processes: _ReplacedProcess
    ) -> None:
        self._settings, self._gateway, self._events = settings, gateway, events
        self.processes = processes
        self.attempts = self.repeated = 0
        """Numbers of attempts so far: all, and those after a lost attempt of the same job."""
        # All keys are there from the start, as another thread iterates over them while this one counts.
        self.ends: Counter[ProgramAttemptEnd] = Counter(dict.fromkeys(get_args(ProgramAttemptEnd), 0))
        """End -> number of attempts that ended so."""
        self.begun: float | None = None
        """Time at which the present attempt began [s since 1970], or None between attempts."""

    def run(self, job: _ProgramJob) -> Answer | EngineError:
        """Return the answer of a job's program, after up to `attempts` attempts."""
        cause = ""
        for attempt in range(self._settings.attempts):
            if job.cancelled or self.processes.closed:
                break
            self.attempts += 1
            if attempt:
                self.repeated += 1
                self._events.put(IneffectiveCallsNotice(job.ticket))
            self.begun = time.time()
            try:
                return self._attempt_job(job)
            except ProgramAttemptError as error:
                cause = str(error)
                # A cancelled program is killed, too.
                self.ends["cancelled" if job.cancelled or self.processes.closed else error.end] += 1
            except EngineError as error:
                return error
            finally:
                self.begun = None
        return CompletionFailure("unjudged", f"{self._settings.attempts} attempts of a program failed: {cause}")

    def report_answer(self, job: _ProgramJob, answer: Answer | EngineError) -> None:
        """Queue `answer`, the result of `job`, for the engine's next `step`."""
        self._events.put(_JobFinished(job, answer))

    def _attempt_job(self, job: _ProgramJob) -> Completion:
        """Run the program of `job` once and return its answer.

        Raises:
            ProgramAttemptError: if the process is killed or exceeds `timeout_s`.
            EngineError: if the program cannot be started, or reports rewards for an unknown agent.
        """
        process, is_reusable = self.processes.acquire(), False
        try:
            key, task = process.key, job.task
            if self._settings.tasks_per_worker > 1:
                key = new_session_key()
                task = {**task, "api_key": key}
            session = job.session = self._gateway.begin_session(key, job.ticket, job.callers)
            reply, untaken = self._wait_for_reply(job, session, process, task, key)
            if untaken:
                self._events.put(IneffectiveCallsNotice(job.ticket, tuple(untaken)))
            completion = _to_completion(reply, job, session, key)
            is_reusable = not self._settings.run
            return completion
        finally:
            self.processes.release(process, is_reusable=is_reusable)

    def _wait_for_reply(
        self, job: _ProgramJob, session: ProgramSession, process: ProgramProcess, task: Any, key: str
    ) -> tuple[dict[str, Any], list[int]]:
        """Send `task` to `process`; return the reply and the ids of undelivered calls. End the session of `key`.

        Raises:
            ProgramAttemptError: if the process is killed, the attempt is cancelled or exceeds `timeout_s`.
        """
        is_late, reply = False, None
        settings, begin_s = self._settings, time.monotonic()
        try:
            number = process.send_task(task)
            # Other attempts in the process go on. The thread of this attempt has no valid key any more.
            job.stop = process.kill if settings.tasks_per_worker == 1 else partial(process.abandon_task, number)
            while not (job.cancelled or self.processes.closed):
                remaining_s = settings.timeout_s + session.total_open_call_s - (time.monotonic() - begin_s)
                if remaining_s <= 0:
                    is_late = True
                    raise ProgramAttemptError(f"it took longer than timeout_s: {settings.timeout_s:g}", "late")
                reply = process.receive_reply(number, min(remaining_s, _POLL_S))
                if reply is not None:
                    break
        finally:
            job.stop = None
            untaken = self._gateway.end_session_and_list_undelivered_calls(key, is_timed_out=is_late)
        if reply is None:
            raise ProgramAttemptError("cancelled", "cancelled")
        end: ProgramAttemptEnd = "failed" if reply.get("failed") else "ended"
        self.ends[end] += 1
        return reply, untaken


def _to_completion(reply: Mapping[str, Any], job: _ProgramJob, session: ProgramSession, key: str) -> Completion:
    """Return a program's reply as a completion, with the rewards that it reported and without its `key`.

    Raises:
        EngineError: if a reward is no number, or for an unknown agent.
    """
    reported: dict[str, dict[str, float]] = {caller.agent: {} for caller in job.callers.values()}
    for agent, name, value in session.rewards.values():
        reported[agent][name] = reported[agent].get(name, 0.0) + value
    result, why = reply.get("result"), str(reply.get("failed", ""))
    if isinstance(result, dict) and "answer" in result:
        rewards: Any = result.get("rewards") or {}
        for caller, amounts in rewards.items() if isinstance(rewards, dict) else [("rewards", rewards)]:
            if caller not in job.callers or not isinstance(amounts, dict):
                names = ", ".join(job.callers)
                raise EngineError(f"a program reports rewards for {caller!r}: {amounts!r}; callers: {names}")
            for name, value in amounts.items():
                if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= 1e6:
                    raise EngineError(f"a program reports the reward {caller}.{name}: {value!r}, which is no number")
                reported[job.callers[caller].agent][name] = float(value)
        result = result["answer"]
    text = result if isinstance(result, str) else "" if result is None else json.dumps(result, sort_keys=True)
    # Completions are written to files, which can hold no surrogates and must not hold the program's key.
    text, why = (replace_surrogates(shown.replace(key, "[key]")) for shown in (text, why))
    callers = {agent: ProgramCallerResult(reported=amounts) for agent, amounts in reported.items() if amounts}
    answer = ProgramAnswer(
        answer=text,
        failed=bool(why),
        why=why[-_MAX_ERROR_LENGTH:],
        callers=callers,
    )
    return Completion(answer.to_canonical_json(), (), (), (), "stop")


def _run_jobs(worker: _ProgramWorker, job_queue: queue.SimpleQueue[_ProgramJob | None]) -> None:
    """Run queued jobs in `worker` until the queue yields None."""
    # This is a function: a thread that runs a bound method would keep the engine from being garbage collected.
    while not worker.processes.closed and (job := job_queue.get()) is not None:
        if not job.cancelled:
            worker.report_answer(job, worker.run(job))


def _close_workers(
    workers: list[_ProgramWorker], job_queue: queue.SimpleQueue[_ProgramJob | None], gateway: Gateway
) -> None:
    """End all processes, the worker threads and the gateway."""
    processes: set[ProgramProcess] = set()
    for worker in workers:
        processes.update(worker.processes.kill())
        job_queue.put(None)
    gateway.close()
    # Only after all are killed, because each wait takes a moment. Without a wait they would stay as zombies.
    for process in processes:
        process.close()
