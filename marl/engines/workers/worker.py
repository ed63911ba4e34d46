"""One worker process after another, and whose fault it is when a job gets no result.

Jobs are pure, so what ends a process says something about the job, unless it came from outside: an OOM killer, a signal
sent by hand, a machine without a processor to spare. A job that failed so is run once more, in a fresh process.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress

from marl.config import Component
from marl.engines.workers.channel import Channel
from marl.engines.workers.jobs import PATIENCE, Job, JobClock, JobResult, ToolReply, VerifierReply, WorkerReply
from marl.engines.workers.process import MAX_RESULT, PartSpec
from marl.errors import RunError
from marl.protocols import VerifierConfig

_START_S = 120.0
"""For a process to import what it needs, on a busy machine."""
_STARTS = 3
"""Processes that are started, one after another, before the run ends."""
_DEATH_S = 1.0
"""Longest that a process takes to end after its channel was closed."""
_OWN_SIGNALS = frozenset(
    signal.Signals[f"SIG{name}"] for name in ("ABRT", "BUS", "FPE", "ILL", "SEGV", "SYS", "TRAP", "XCPU", "XFSZ")
)
"""Signals that end a process for what it did itself."""
_INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
"""Environment variables that a worker sees: no keys, no tokens."""
_NO_RESULT = "the process that ran it wrote what is no result"
_DIED = "the process that ran it died"


class WorkerError(RunError):
    """Worker processes cannot do their work on this machine, so nothing can be verified."""


def spec_of(part: Component) -> PartSpec:
    """Return module, class and settings from which another process can build `part` again.

    Raises:
        ValueError: if no other process can import its class.
    """
    module, name = type(part).__module__, type(part).__qualname__
    if module == "__main__" or "<locals>" in name:
        raise ValueError(f"{name} is defined in {module}, where no worker process can import it; put it into a module")
    return module, name, part.model_dump(mode="json")


class WorkerProcess:
    """A started process, and the channel to it."""

    def __init__(self, memory: int) -> None:
        self._memory = memory
        stream, remote = socket.socketpair()
        self._popen = subprocess.Popen(
            [sys.executable, "-P", "-m", "marl.engines.workers.process", str(remote.fileno()), str(memory)],
            env=_environment(),
            pass_fds=[remote.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        remote.close()
        self.channel = Channel(stream)

    @property
    def pid(self) -> int:
        """Return the number of the process."""
        return self._popen.pid

    def load(self, specs: Mapping[str, PartSpec]) -> str:
        """Let it load its parts; return the reason why it cannot, "" if it can.

        Raises:
            TimeoutError, EOFError, OSError: if it does not come up.
            ValueError: if it says what is no result.
        """
        self.channel.send(json.dumps(specs).encode(), _START_S)
        return WorkerReply.model_validate_json(self.channel.receive(_START_S, MAX_RESULT)).error

    def ask(self, job: Job, form: type[WorkerReply], clock: JobClock) -> JobResult:
        """Return the answer of the process to `job`.

        Raises:
            TimeoutError: if its time is over.
            EOFError, OSError: if the process has ended.
            ValueError: if it says what is no result.
        """
        self.channel.send(json.dumps([job.part, job.question]).encode(), PATIENCE * job.timeout_s)
        for wait_s in clock.waits():
            with suppress(TimeoutError):
                reply = form.model_validate_json(self.channel.receive(wait_s, MAX_RESULT))
                if reply.value is None and not reply.error:
                    raise ValueError("neither a value nor an error")
                return JobResult(**dict(reply))
        raise TimeoutError

    def kill(self) -> None:
        """Kill the process group. It is reaped only afterwards, so the group cannot be another's by then."""
        if self._popen.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def reap(self) -> JobResult:
        """Kill the process and wait for it; return the result of a job in the middle of which it ended by itself."""
        if self._popen.returncode is not None:
            return JobResult(error=_DIED)
        ended = self._has_ended()
        self.kill()
        _, status, usage = os.wait4(self.pid, 0)
        self._popen.returncode = os.waitstatus_to_exitcode(status)
        number = -self._popen.returncode
        if not ended or number <= 0 or number in _OWN_SIGNALS:
            return JobResult(error=_DIED)
        if usage.ru_maxrss << 10 > self._memory // 2:
            return JobResult(error="took too much memory")
        return JobResult(error=f"{_DIED} by {signal.Signals(number).name} from outside", blame="machine")

    def _has_ended(self) -> bool:
        if self._popen.returncode is not None:
            return True
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None

    def await_end(self) -> None:
        """Wait for the end of a process that has closed its channel."""
        deadline = time.monotonic() + _DEATH_S
        while not self._has_ended() and time.monotonic() < deadline:
            time.sleep(1e-3)


class Worker:
    """One process, started for its first job and replaced after it had to be killed."""

    def __init__(self, parts: Mapping[str, Component], memory: int) -> None:
        self._specs, self._memory = {name: spec_of(part) for name, part in parts.items()}, memory
        self._replies: dict[str, type[WorkerReply]] = {
            name: VerifierReply if isinstance(part, VerifierConfig) else ToolReply for name, part in parts.items()
        }
        self._process: WorkerProcess | None = None
        self._lock = threading.Lock()
        """Between the thread that runs jobs and the one that cancels or closes."""
        self._job: Job | None = None
        self.closed = False

    def run(self, job: Job) -> JobResult:
        """Return the result of `job`, which is run a second time if the first failed for no fault of the answer.

        Raises:
            WorkerError: if no process comes up, or if the part cannot do its work on this machine.
        """
        result = self._attempt(job)
        if result.blame != "answer" and not (job.cancelled or self.closed):
            if result.blame == "setup":
                self._end()  # what does not work in a process may be remembered there
            result = self._attempt(job)
        if result.blame == "setup":
            raise WorkerError(f"{job.part} {result.why}")
        return result

    def _attempt(self, job: Job) -> JobResult:
        process = self._connect()
        with self._lock:
            if job.cancelled or self.closed:
                return JobResult(error="cancelled")
            self._job = job
        clock = JobClock(process.pid, job.timeout_s)
        try:
            return process.ask(job, self._replies[job.part], clock)
        except TimeoutError:
            result = clock.over()
            self._end()
            return result
        except (EOFError, OSError):
            return self._end(by_itself=True)
        except ValueError:
            self._end()
            return JobResult(error=_NO_RESULT)
        finally:
            with self._lock:
                self._job = None

    def cancel(self, job: Job) -> None:
        """Give up `job`, and kill the process if it is running it."""
        with self._lock:
            job.cancelled = True
            if self._job is job and self._process is not None:
                self._process.kill()

    def close(self) -> None:
        """End the process for good, even in the middle of a job."""
        with self._lock:
            self.closed = True
            if self._process is not None:
                self._process.reap()

    def _connect(self) -> WorkerProcess:
        # Between jobs nothing is sent, so anything that can be read then is the end of the process.
        if self._process is not None and not self._process.channel.is_quiet():
            self._end()
        return self._process or self._start()

    def _start(self) -> WorkerProcess:
        """Return a process that is up.

        Raises:
            WorkerError: if it cannot load its parts, or if the third one in a row does not come up.
        """
        fault = ""
        for _ in range(_STARTS):
            process = self._spawn()
            try:
                refused = process.load(self._specs)
            except TimeoutError:
                fault = f"it is not up after {_START_S:g} s"
            except (EOFError, OSError):
                fault = "it died while it started"
            except ValueError as error:
                fault = f"it wrote what is no result: {error}"
            else:
                if not refused:
                    return process
                self._end()
                raise WorkerError(f"{self._cannot_run}: {refused}")
            self._end()
        raise WorkerError(f"{self._cannot_run}: {fault}, and so did {_STARTS - 1} more")

    @property
    def _cannot_run(self) -> str:
        return f"a worker process cannot run {', '.join(self._specs)}"

    def _spawn(self) -> WorkerProcess:
        with self._lock:
            if self.closed:
                raise WorkerError("the workers are closed")
            self._process = WorkerProcess(self._memory)
            return self._process

    def _end(self, *, by_itself: bool = False) -> JobResult:
        """End the process; if it ended `by_itself`, return the result of the job in the middle of which it did."""
        with self._lock:
            process, self._process = self._process, None
            if process is None:
                return JobResult(error=_DIED)
            if by_itself:
                process.await_end()
            result = process.reap()
            process.channel.close()
            return result


def _environment() -> dict[str, str]:
    environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    # Modules are found as here: an empty entry is the working directory.
    path = os.pathsep.join([folder or os.getcwd() for folder in sys.path])
    # Equal hashes and one thread: equal questions, equal answers.
    return environment | {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
