"""Pool of worker processes, which are killed when a job's time is over.

One thread per process sends jobs and waits, so that a process is killed on time even while this one is busy. Jobs are
pure: a crash or a time-out says something about the job, and the next one gets a fresh process.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, NamedTuple
from weakref import finalize

from marl.config import Component
from marl.engines.workers.process import PartSpec
from marl.errors import RunError

_START_S = 120.0
"""For a process to import what it needs; sympy takes seconds on a busy machine."""
_INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
"""Environment variables that a worker sees: no keys, no tokens."""


class WorkerError(RunError):
    """A worker process cannot load its parts, so nothing can be verified."""


class JobResult(NamedTuple):
    """Value of a job, or the error that kept it from one."""

    value: Any = None
    error: str = ""
    fatal: bool = False
    """True if the fault is not the answer's."""


@dataclass(eq=False, slots=True)
class Job:
    """A question to a part, as JSON."""

    part: str
    question: str
    timeout_s: float
    cancelled: bool = False


def spec_of(part: Component) -> PartSpec:
    """Return module, class and settings from which another process can build `part` again.

    Raises:
        ValueError: if no other process can import its class.
    """
    module, name = type(part).__module__, type(part).__qualname__
    if module == "__main__" or "<locals>" in name:
        raise ValueError(f"{name} is defined in {module}, where no worker process can import it; put it into a module")
    return module, name, part.model_dump(mode="json")


class Worker:
    """One process, started for its first job and replaced after it had to be killed."""

    def __init__(self, specs: Mapping[str, PartSpec], memory: int) -> None:
        self._specs, self._memory = specs, memory
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._lock = threading.Lock()
        """Between the thread that runs jobs and the one that cancels or closes."""
        self._job: Job | None = None
        self.closed = False

    def run(self, job: Job) -> JobResult:
        """Return the result of `job`, at most `job.timeout_s` after the process is up.

        Raises:
            WorkerError: if the process does not come up, or if the part cannot do its work on this machine.
        """
        connection = self._connect()
        with self._lock:
            if job.cancelled or self.closed:
                return JobResult(error="cancelled")
            self._job = job
        try:
            connection.send_bytes(json.dumps([job.part, job.question]).encode())
            if not connection.poll(job.timeout_s):
                self._kill()
                return JobResult(error=f"timed out after {job.timeout_s:g} s")
            result = JobResult(**json.loads(connection.recv_bytes()))
        except (EOFError, OSError):
            self._kill()
            return JobResult(error="the process that ran it died")
        finally:
            with self._lock:
                self._job = None
        if result.fatal:
            raise WorkerError(f"{job.part} {result.error}")
        return result

    def cancel(self, job: Job) -> None:
        """Give up `job`, and kill the process if it is running it."""
        with self._lock:
            job.cancelled = True
            if self._job is job:
                self._signal()

    def close(self) -> None:
        """End the process for good, even in the middle of a job."""
        with self._lock:
            self.closed = True
            self._signal()
            if self._process is not None:
                self._process.wait()

    def _connect(self) -> Connection:
        # Between jobs nothing is sent, so anything that can be read then is the end of the process.
        if self._connection is not None and self._connection.poll(0):
            self._kill()
        return self._connection or self._start()

    def _start(self) -> Connection:
        connection, remote = Pipe()
        with self._lock:
            if self.closed:
                raise WorkerError("the workers are closed")
            self._process = subprocess.Popen(
                [sys.executable, "-m", "marl.engines.workers.process", str(remote.fileno()), str(self._memory)],
                env=_environment(),
                pass_fds=[remote.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        remote.close()
        self._connection = connection
        self._load_parts(connection)
        return connection

    def _load_parts(self, connection: Connection) -> None:
        fault = f"it is not up after {_START_S:g} s"
        try:
            connection.send_bytes(json.dumps(self._specs).encode())
            if connection.poll(_START_S):
                fault = json.loads(connection.recv_bytes())["error"]
        except (EOFError, OSError):
            fault = "it died while it started"
        if fault:
            self._kill()
            raise WorkerError(f"a worker process cannot run {', '.join(self._specs)}: {fault}")

    def _kill(self) -> None:
        with self._lock:
            self._signal()
            if self._process is not None:
                self._process.wait()
            if self._connection is not None:
                self._connection.close()
            self._process = self._connection = None

    def _signal(self) -> None:
        """Kill the process group. The process is reaped only afterwards, so the group cannot be another's by then."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)


def _environment() -> dict[str, str]:
    environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    # Equal hashes and one thread: equal questions, equal answers.
    fixed = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return environment | fixed


class WorkerPool:
    """A few workers that run jobs, first come, first served. Only `take` blocks."""

    def __init__(self, parts: Mapping[str, Component], workers: int, memory: int) -> None:
        specs = {name: spec_of(part) for name, part in parts.items()}
        self._workers = [Worker(specs, memory) for _ in range(workers)]
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[Job, JobResult | WorkerError]] = queue.SimpleQueue()
        self._started = False
        self.close = finalize(self, _close, self._workers, self._jobs)
        """Ends all processes; also when the pool is forgotten, and when Python ends."""

    def put(self, job: Job) -> None:
        """Queue a job."""
        if not self._started:
            self._started = True
            for worker in self._workers:
                threading.Thread(target=_serve, args=(worker, self._jobs, self._done), daemon=True).start()
        self._jobs.put(job)

    def take(self, wait_s: float) -> list[tuple[Job, JobResult]]:
        """Return all results that are ready; wait at most `wait_s` for the first.

        Raises:
            WorkerError: if a process cannot load its parts.
        """
        results: list[tuple[Job, JobResult]] = []
        with suppress(queue.Empty):
            while True:
                job, result = self._done.get(timeout=wait_s) if wait_s > 0 and not results else self._done.get_nowait()
                if isinstance(result, WorkerError):
                    raise result
                if not job.cancelled:
                    results.append((job, result))
        return results

    def cancel(self, job: Job) -> None:
        """Give up a job; it has no result."""
        for worker in self._workers:
            worker.cancel(job)


def _serve(
    worker: Worker,
    jobs: queue.SimpleQueue[Job | None],
    done: queue.SimpleQueue[tuple[Job, JobResult | WorkerError]],
) -> None:
    while not worker.closed and (job := jobs.get()) is not None:
        if job.cancelled:
            continue
        try:
            done.put((job, worker.run(job)))
        except WorkerError as error:
            done.put((job, error))


def _close(workers: list[Worker], jobs: queue.SimpleQueue[Job | None]) -> None:
    for worker in workers:
        worker.close()
        jobs.put(None)
