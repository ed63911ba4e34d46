"""Pool of worker processes, which are killed when a job's time is over.

One thread per process sends jobs and waits, so that a process is killed on time even while this one is busy. Jobs are
pure: a crash or a time-out says something about the job, and the next one gets a fresh process.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple
from weakref import finalize

from pydantic import BaseModel, ConfigDict, Field

from marl.config import Component
from marl.engines.workers.channel import Channel
from marl.engines.workers.process import MAX_RESULT, PartSpec
from marl.errors import RunError
from marl.protocols import VerifierConfig

_START_S = 120.0
"""For a process to import what it needs, on a busy machine."""
_INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
"""Environment variables that a worker sees: no keys, no tokens."""


class WorkerError(RunError):
    """A worker process cannot load its parts, so nothing can be verified."""


class JobResult(NamedTuple):
    """Value of a job, or the error that kept it from one."""

    value: Any = None
    error: str = ""
    detail: str = ""
    """The message of the exception, for the author of the part: it may quote what the answer's author must not know."""
    fatal: bool = False
    """True if the fault is not the answer's."""


class WorkerReply(BaseModel):
    """Message of a worker process."""

    model_config = ConfigDict(strict=True, extra="forbid")

    value: Any = None
    error: str = ""
    detail: str = ""
    fatal: bool = False


class VerifierReply(WorkerReply):
    """Message of a worker process about an answer."""

    value: tuple[Annotated[float, Field(ge=-1, le=1, allow_inf_nan=False)], str] | None = None


class ToolReply(WorkerReply):
    """Message of a worker process about a call."""

    value: str | None = None


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

    def __init__(self, parts: Mapping[str, Component], memory: int) -> None:
        self._specs, self._memory = {name: spec_of(part) for name, part in parts.items()}, memory
        self._replies: dict[str, type[WorkerReply]] = {
            name: VerifierReply if isinstance(part, VerifierConfig) else ToolReply for name, part in parts.items()
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._lock = threading.Lock()
        """Between the thread that runs jobs and the one that cancels or closes."""
        self._job: Job | None = None
        self.closed = False

    def run(self, job: Job) -> JobResult:
        """Return the result of `job`, at most `job.timeout_s` after the process is up.

        Raises:
            WorkerError: if the process does not come up, or if the part cannot do its work on this machine.
        """
        channel = self._connect()
        with self._lock:
            if job.cancelled or self.closed:
                return JobResult(error="cancelled")
            self._job = job
        try:
            result = self._ask(channel, job)
        except TimeoutError:
            self._kill()
            return JobResult(error=f"timed out after {job.timeout_s:g} s")
        except (EOFError, OSError):
            self._kill()
            return JobResult(error="the process that ran it died")
        except ValueError:
            self._kill()
            return JobResult(error="the process that ran it wrote what is no result")
        finally:
            with self._lock:
                self._job = None
        if result.fatal:
            raise WorkerError(f"{job.part} {result.error}: {result.detail}")
        return result

    def _ask(self, channel: Channel, job: Job) -> JobResult:
        """Return the answer of the process to `job`.

        Raises:
            TimeoutError, EOFError, OSError: as `Channel`.
            ValueError: if it is no result.
        """
        deadline = time.monotonic() + job.timeout_s
        channel.send(json.dumps([job.part, job.question]).encode(), job.timeout_s)
        message = channel.receive(max(deadline - time.monotonic(), 0.0), MAX_RESULT)
        reply = self._replies[job.part].model_validate_json(message)
        if reply.value is None and not reply.error:
            raise ValueError("neither a value nor an error")
        return JobResult(**dict(reply))

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

    def _connect(self) -> Channel:
        # Between jobs nothing is sent, so anything that can be read then is the end of the process.
        if self._channel is not None and not self._channel.is_quiet():
            self._kill()
        return self._channel or self._start()

    def _start(self) -> Channel:
        stream, remote = socket.socketpair()
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
        self._channel = Channel(stream)
        self._load_parts(self._channel)
        return self._channel

    def _load_parts(self, channel: Channel) -> None:
        try:
            channel.send(json.dumps(self._specs).encode(), _START_S)
            fault = WorkerReply.model_validate_json(channel.receive(_START_S, MAX_RESULT)).error
        except TimeoutError:
            fault = f"it is not up after {_START_S:g} s"
        except (EOFError, OSError):
            fault = "it died while it started"
        except ValueError as error:
            fault = f"it wrote what is no result: {error}"
        if fault:
            self._kill()
            raise WorkerError(f"a worker process cannot run {', '.join(self._specs)}: {fault}")

    def _kill(self) -> None:
        with self._lock:
            self._signal()
            if self._process is not None:
                self._process.wait()
            if self._channel is not None:
                self._channel.close()
            self._process = self._channel = None

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
        self._workers = [Worker(parts, memory) for _ in range(workers)]
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
