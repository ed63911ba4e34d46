"""Attempts to run programs, in processes that several attempts may share.

The engine's thread creates `ProgramJob` and `ProgramAttempts`. All other functions are called in the thread of the
gateway's event loop, except `ProgramAttempts.count_attempts` and `ProgramAttempts.kill_processes`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

from marl.core.errors import EngineError
from marl.core.types import Completion, CompletionFailure, Ticket
from marl.engines.program.process import ProgramAttemptError, ProgramProcess, Reply
from marl.gateway.server import Gateway, generate_session_keys
from marl.gateway.sessions import AnsweringAgent, ProgramSession
from marl.host.untrusted_text import replace_surrogates
from marl.protocols import IneffectiveCallsNotice, ProgramAnswer
from marl.protocols.programs import ProgramAttemptCounts, ProgramAttemptEnd, ProgramCallerResult

if TYPE_CHECKING:
    # Imported for type checkers only: `settings` imports this module, so a second import would be circular.
    from marl.engines.program.settings import Program

_MAX_ERROR_LENGTH = 500
"""Maximum length of a failed program's error message, in characters."""
_JobAnswer = Completion | CompletionFailure | EngineError
"""Answer to a job's request, or the error that ends the run."""


@dataclass(eq=False, slots=True)
class ProgramJob:
    """Request to run a program on a task. A lost attempt is repeated, up to `attempts` attempts (a setting)."""

    ticket: Ticket
    policy: str
    task: Any
    callers: Mapping[str, AnsweringAgent]
    """Model name in the program's calls -> agent that answers these calls."""
    cancelled: bool = False
    """True after the engine has cancelled the request. Set in the engine's thread."""
    session: ProgramSession | None = None
    """Session of the present or last attempt."""
    reply: asyncio.Future[Reply] | None = None
    """Future reply of the present attempt, or None while no program works on the task. Cancelling it ends the
    attempt."""


@dataclass(frozen=True, slots=True)
class JobFinished:
    """Event: the job's request is answered, or an error ends the run."""

    job: ProgramJob
    answer: _JobAnswer


class ProgramAttempts:
    """Runs the jobs of a `ProgramEngine`, at most `workers` x `tasks_per_worker` at a time. The others are queued."""

    def __init__(
        self, settings: Program, gateway: Gateway, emit: Callable[[IneffectiveCallsNotice | JobFinished], None]
    ) -> None:
        """`emit` is called with each event of a job, in the gateway's thread."""
        self._settings, self._gateway, self._emit = settings, gateway, emit
        self._queued: deque[ProgramJob] = deque()
        self._keys = generate_session_keys()
        self._workers = [_Worker(settings, gateway, self._keys) for _ in range(settings.workers)]
        self._free = deque(self._workers * settings.tasks_per_worker)
        """Workers that can take another job. Each worker is listed once for every job that it can take."""
        self._running: dict[ProgramJob, asyncio.Task[_JobAnswer]] = {}
        self._begun: dict[ProgramJob, float] = {}
        """Job with an attempt in progress -> time at which the attempt began [s since 1970]."""
        self._attempts = self._repeated = 0
        """Numbers of attempts so far: all, and those after a lost attempt of the same job."""
        # All keys are there from the start, as another thread iterates over them while this one counts.
        self._ends: Counter[ProgramAttemptEnd] = Counter(dict.fromkeys(get_args(ProgramAttemptEnd), 0))
        """End -> number of attempts that ended so."""

    def count_attempts(self) -> ProgramAttemptCounts:
        """Return the numbers of attempts so far, in any thread."""
        begin_times = list(self._begun.values())
        return ProgramAttemptCounts(
            attempts=self._attempts,
            repeated=self._repeated,
            running=len(begin_times),
            since=min(begin_times, default=time.time()),
            ends=+self._ends,
        )

    def add(self, job: ProgramJob) -> None:
        """Run `job` as soon as a worker has a free place."""
        self._queued.append(job)
        self._start_queued_jobs()

    def cancel(self, job: ProgramJob) -> None:
        """End the present attempt of `job`. No other attempt follows, because `job.cancelled` is set before."""
        if job.reply:
            job.reply.cancel()

    def close(self) -> None:
        """End all attempts and processes."""
        self._queued.clear()
        for task in self._running.values():
            task.cancel()
        for worker in self._workers:
            worker.close()

    def kill_processes(self) -> list[ProgramProcess]:
        """Kill all processes and start no further ones; return those that may still be running. Any thread may call
        this."""
        return [process for worker in self._workers for process in worker.kill()]

    def _start_queued_jobs(self) -> None:
        while self._queued and self._free:
            job = self._queued.popleft()
            if not job.cancelled:
                worker = self._free.popleft()
                task = self._running[job] = asyncio.get_running_loop().create_task(self._answer(job, worker))
                task.add_done_callback(partial(self._finish_job, job, worker))

    def _finish_job(self, job: ProgramJob, worker: _Worker, task: asyncio.Task[_JobAnswer]) -> None:
        del self._running[job]
        self._free.append(worker)
        if not task.cancelled():
            # An error in this module ends the run, which would otherwise wait for the answer forever.
            error = task.exception()
            answer = EngineError(f"an attempt to run a program has failed: {error!r}") if error else task.result()
            self._emit(JobFinished(job, answer))
        self._start_queued_jobs()

    async def _answer(self, job: ProgramJob, worker: _Worker) -> _JobAnswer:
        """Return the answer of a job's program, after up to `attempts` attempts."""
        cause = ""
        for attempt in range(self._settings.attempts):
            if job.cancelled or worker.closed:
                break
            self._attempts += 1
            if attempt:
                self._repeated += 1
                self._emit(IneffectiveCallsNotice(job.ticket))
            self._begun[job] = time.time()
            try:
                return await self._attempt(job, worker)
            except ProgramAttemptError as error:
                cause = str(error)
                self._ends["cancelled" if job.cancelled or worker.closed else error.end] += 1
            except EngineError as error:
                return error
            finally:
                del self._begun[job]
        return CompletionFailure("unjudged", f"{self._settings.attempts} attempts of a program failed: {cause}")

    async def _attempt(self, job: ProgramJob, worker: _Worker) -> Completion:
        """Run the program of `job` once and return its answer.

        Raises:
            ProgramAttemptError: if the process is killed or exceeds `timeout_s`.
            EngineError: if the program cannot be started, or reports rewards for an unknown agent.
        """
        process = await worker.acquire()
        # A `call` process takes further tasks unless it may still work on this one.
        is_reusable = bool(self._settings.call)
        try:
            if job.cancelled:
                raise ProgramAttemptError("cancelled", "cancelled")
            is_reusable = False
            key, task = process.key, job.task
            if self._settings.tasks_per_worker > 1:
                key = next(self._keys)
                task = {**task, "api_key": key}
            session = job.session = self._gateway.begin_session(key, job.ticket, job.callers)
            is_late = False
            try:
                job.reply = process.send_task(task)
                is_late = await self._is_late(job.reply, session)
            finally:
                untaken = self._gateway.end_session_and_list_undelivered_calls(key, is_timed_out=is_late)
            if is_late:
                raise ProgramAttemptError(f"it took longer than timeout_s: {self._settings.timeout_s:g}", "late")
            if job.reply.cancelled():
                raise ProgramAttemptError("cancelled", "cancelled")
            reply = job.reply.result()
            self._ends["failed" if reply.get("failed") else "ended"] += 1
            if untaken:
                self._emit(IneffectiveCallsNotice(job.ticket, tuple(untaken)))
            completion = _to_completion(reply, job, session, key)
            is_reusable = bool(self._settings.call)
            return completion
        finally:
            if job.reply:
                # Nobody waits for the reply any more. If it has come, this has no effect.
                job.reply.cancel()
                job.reply = None
            worker.release(process, is_reusable=is_reusable)

    async def _is_late(self, reply: asyncio.Future[Reply], session: ProgramSession) -> bool:
        """Wait for `reply` and return False, or True if it takes longer than `timeout_s`.

        Time during which the program waits for answers to its model calls does not count.
        """
        begin_s = time.monotonic()
        while not reply.done():
            remaining_s = self._settings.timeout_s + session.total_open_call_s - (time.monotonic() - begin_s)
            if remaining_s <= 0:
                return True
            await asyncio.wait([reply], timeout=remaining_s)
        return False


class _Worker:
    """Process that runs up to `tasks_per_worker` attempts at once, and its replacements.

    With `run`, each attempt gets a new process. With `call`, the process is replaced when it ends, and when an attempt
    ends without a reply, because a thread of the process may still work on the task.
    """

    def __init__(self, settings: Program, gateway: Gateway, keys: Iterator[str]) -> None:
        """`keys` yields new API keys for the gateway, one for each process that the worker starts."""
        self._settings, self._gateway, self._keys = settings, gateway, keys
        self._starting = asyncio.Lock()
        """Lock that is held while a process starts."""
        self._current: ProgramProcess | None = None
        """Process for further attempts, or None before the first attempt and after one that was lost."""
        self._attempts: dict[ProgramProcess, int] = {}
        """Process that has not been closed -> number of its attempts in progress."""
        self._dying: list[ProgramProcess] = []
        """Closed processes that may still be running."""
        self.closed = False
        """True after the engine has closed the worker: no further processes start."""

    async def acquire(self) -> ProgramProcess:
        """Return the process for a new attempt. Call `release` at the end of the attempt.

        Raises:
            ProgramAttemptError: if a new process was killed, or has not imported its module in time.
            EngineError: if the program cannot be started.
        """
        async with self._starting:
            process = self._current
            # A model call that arrives after the end of its attempt comes from a thread that still runs in the process.
            # The process is replaced, so that this thread cannot make calls in the name of the next attempt.
            if process is not None and (process.has_ended or process.key in self._gateway.late_keys):
                self._retire(process)
            if self.closed:
                raise ProgramAttemptError("cancelled", "cancelled")
            process = self._current or await self._start_process()
            self._attempts[process] += 1
            return process

    def release(self, process: ProgramProcess, *, is_reusable: bool) -> None:
        """End an attempt in `process`. The process takes no further ones unless `is_reusable`."""
        if process in self._attempts:
            self._attempts[process] -= 1
            if not is_reusable or process is not self._current:
                self._retire(process)

    def close(self) -> None:
        """Close all processes, and start no further ones."""
        self.closed = True
        for process in self._attempts:
            process.close()
        self._attempts.clear()

    def kill(self) -> list[ProgramProcess]:
        """Kill all processes, and start no further ones; return those that may still be running. Any thread may call
        this."""
        self.closed = True
        processes = list(self._attempts)
        for process in processes:
            process.kill()
        return [*processes, *self._dying]

    async def _start_process(self) -> ProgramProcess:
        try:
            process = ProgramProcess(self._settings, self._gateway.address, next(self._keys))
        except OSError as error:
            raise EngineError(f"the program cannot be started: {error}") from error
        self._current, self._attempts[process] = process, 0
        if self._settings.tasks_per_worker > 1:
            self._gateway.shared_keys.add(process.key)
        try:
            await process.connect()
            if self._settings.call:
                await process.wait_until_ready()
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
            self._dying = [*(dying for dying in self._dying if not dying.has_ended), process]
            self._gateway.late_keys.discard(process.key)
            self._gateway.shared_keys.discard(process.key)


def _to_completion(reply: Mapping[str, Any], job: ProgramJob, session: ProgramSession, key: str) -> Completion:
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
