"""Verifiers and tools run in processes that are killed when their time is over.

One thread per process asks and waits, so that a process is killed on time even while this one does something else. What
is asked is pure: a crash or a time-out says something about the question, and the next one gets a fresh process.
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
from marl.errors import RunError

_START_S = 120.0
"""How long a process may take to import what it needs; sympy takes seconds on a busy machine."""
_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
"""What a worker sees of the environment: no keys, no tokens."""


class WorkerError(RunError):
    """A worker process cannot load its parts, so nothing can be verified."""


class Outcome(NamedTuple):
    """What came back: a value, or what went wrong."""

    value: Any = None
    error: str = ""
    fatal: bool = False
    """Whether the fault is not the answer's."""


@dataclass(eq=False, slots=True)
class Job:
    """A question to a part."""

    part: str
    question: str
    timeout_s: float
    cancelled: bool = False


def place_of(part: Component) -> tuple[str, str, dict[str, Any]]:
    """(module, class, settings) from which another process can build `part` again.

    Raises:
        ValueError: if its class lies where no other process can import it from.
    """
    module, name = type(part).__module__, type(part).__qualname__
    if module == "__main__" or "<locals>" in name:
        raise ValueError(f"{name} is defined in {module}, where no worker process can import it; put it into a module")
    return module, name, part.model_dump(mode="json")


class Worker:
    """One process, started when first asked and replaced when it had to be killed."""

    def __init__(self, parts: Mapping[str, tuple[str, str, dict[str, Any]]], memory: int) -> None:
        self._parts, self._memory = parts, memory
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._lock = threading.Lock()
        """Between the thread that asks and the one that cancels or closes."""
        self._job: Job | None = None
        self.closed = False

    def ask(self, job: Job) -> Outcome:
        """The answer, or what kept it from coming. At most `job.timeout_s` after the process is up.

        Raises:
            WorkerError: if the process does not come up, or if the part cannot do its work here, whatever the answer.
        """
        connection = self._ready()
        with self._lock:
            if job.cancelled or self.closed:
                return Outcome(error="cancelled")
            self._job = job
        try:
            connection.send_bytes(json.dumps([job.part, job.question]).encode())
            if not connection.poll(job.timeout_s):
                self._kill()
                return Outcome(error=f"timed out after {job.timeout_s:g} s")
            outcome = Outcome(**json.loads(connection.recv_bytes()))
        except (EOFError, OSError):
            self._kill()
            return Outcome(error="the process that ran it died")
        finally:
            with self._lock:
                self._job = None
        if outcome.fatal:
            raise WorkerError(f"{job.part} {outcome.error}")
        return outcome

    def cancel(self, job: Job) -> None:
        """Give up `job`, and kill the process if it is at it."""
        with self._lock:
            job.cancelled = True
            if self._job is job:
                self._signal()

    def close(self) -> None:
        """For good, whatever it is at."""
        with self._lock:
            self.closed = True
            self._signal()
            if self._process is not None:
                self._process.wait()

    def _ready(self) -> Connection:
        # Between questions nothing is said, so what can be read then is the end of the process.
        if self._connection is not None and self._connection.poll(0):
            self._kill()
        return self._connection or self._start()

    def _start(self) -> Connection:
        ours, theirs = Pipe()
        with self._lock:
            if self.closed:
                raise WorkerError("the workers are closed")
            self._process = subprocess.Popen(
                [sys.executable, "-m", "marl.engines.workers.process", str(theirs.fileno()), str(self._memory)],
                env=_environment(),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        theirs.close()
        self._connection = ours
        self._introduce(ours)
        return ours

    def _introduce(self, connection: Connection) -> None:
        trouble = f"it is not up after {_START_S:g} s"
        try:
            connection.send_bytes(json.dumps(self._parts).encode())
            if connection.poll(_START_S):
                trouble = json.loads(connection.recv_bytes())["error"]
        except (EOFError, OSError):
            trouble = "it died while it started"
        if trouble:
            self._kill()
            raise WorkerError(f"a worker process cannot run {', '.join(self._parts)}: {trouble}")

    def _kill(self) -> None:
        with self._lock:
            self._signal()
            if self._process is not None:
                self._process.wait()
            if self._connection is not None:
                self._connection.close()
            self._process = self._connection = None

    def _signal(self) -> None:
        """Kill the whole group. The process is reaped after that only, so the group cannot be another's by then."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)


def _environment() -> dict[str, str]:
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    # Equal hashes and one thread: equal questions, equal answers.
    fixed = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return kept | fixed


class WorkerPool:
    """Puts jobs to a few workers, first come, first served. Nothing here blocks but `take`."""

    def __init__(self, parts: Mapping[str, Component], workers: int, memory: int) -> None:
        places = {name: place_of(part) for name, part in parts.items()}
        self._workers = [Worker(places, memory) for _ in range(workers)]
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[Job, Outcome | WorkerError]] = queue.SimpleQueue()
        self._started = False
        self.close = finalize(self, _close, self._workers, self._jobs)
        """Ends all processes; also when the pool is forgotten, and when Python ends."""

    def put(self, job: Job) -> None:
        if not self._started:
            self._started = True
            for worker in self._workers:
                threading.Thread(target=_serve, args=(worker, self._jobs, self._done), daemon=True).start()
        self._jobs.put(job)

    def take(self, wait_s: float) -> list[tuple[Job, Outcome]]:
        """What is done; waits for one at most `wait_s`.

        Raises:
            WorkerError: if a process cannot load its parts.
        """
        taken: list[tuple[Job, Outcome]] = []
        with suppress(queue.Empty):
            while True:
                job, outcome = self._done.get(timeout=wait_s) if wait_s > 0 and not taken else self._done.get_nowait()
                if isinstance(outcome, WorkerError):
                    raise outcome
                if not job.cancelled:
                    taken.append((job, outcome))
        return taken

    def cancel(self, job: Job) -> None:
        for worker in self._workers:
            worker.cancel(job)


def _serve(
    worker: Worker,
    jobs: queue.SimpleQueue[Job | None],
    done: queue.SimpleQueue[tuple[Job, Outcome | WorkerError]],
) -> None:
    while not worker.closed and (job := jobs.get()) is not None:
        if job.cancelled:
            continue
        try:
            done.put((job, worker.ask(job)))
        except WorkerError as error:
            done.put((job, error))


def _close(workers: list[Worker], jobs: queue.SimpleQueue[Job | None]) -> None:
    for worker in workers:
        worker.close()
        jobs.put(None)
