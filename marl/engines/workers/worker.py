"""A worker process and its replacements, and the cause of a job without a result.

Jobs are pure, so a process that ends during a job counts against the job, unless the cause is external: an OOM killer,
a signal sent by hand, a machine without a free CPU. After an external cause the job runs once more in a new process.
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

from marl.core.config import PluginConfig
from marl.core.errors import RunError
from marl.engines.workers.channel import Channel
from marl.engines.workers.jobs import WALL_TIME_FACTOR, Job, JobClock, JobResult, ToolReply, VerifierReply, WorkerReply
from marl.engines.workers.process import MAX_RESULT_BYTES, PluginSpec
from marl.protocols import VerifierConfig

_START_S = 120.0
"""Time limit for the imports of a new process, in seconds, with room for a busy machine."""
_STARTS = 3
"""Number of processes to start, one after another, before the run ends."""
_DEATH_S = 1.0
"""Time limit for the end of a process after it closed its channel, in seconds."""
_OWN_SIGNALS = frozenset(
    signal.Signals[f"SIG{name}"] for name in ("ABRT", "BUS", "FPE", "ILL", "SEGV", "SYS", "TRAP", "XCPU", "XFSZ")
)
"""Signals caused by the process itself, and not from outside."""
_INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
"""Environment variables passed on to workers: no keys, no tokens."""
_NO_RESULT = "the process that ran it wrote what is no result"
_DIED = "the process that ran it died"


class WorkerError(RunError):
    """Worker processes cannot work on this machine, so nothing can be verified."""


def plugin_spec(plugin: PluginConfig) -> PluginSpec:
    """Return module, class and settings from which another process can build `plugin`.

    Raises:
        ValueError: if no other process can import the class.
    """
    module, name = type(plugin).__module__, type(plugin).__qualname__
    if module == "__main__" or "<locals>" in name:
        raise ValueError(f"{name} is defined in {module}, where no worker process can import it; put it into a module")
    return module, name, plugin.model_dump(mode="json")


class WorkerProcess:
    """A started process, and the channel to it. `memory` is the process's address space in bytes."""

    def __init__(self, memory: int) -> None:
        self._memory = memory
        stream, remote = socket.socketpair()
        # `-P`: modules come from PYTHONPATH alone. A new session, so that `kill` ends descendants too.
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
        """Process id."""
        return self._popen.pid

    def load(self, specs: Mapping[str, PluginSpec]) -> str:
        """Load plug-ins into the process; return the error message, or "" on success.

        Raises:
            TimeoutError, EOFError, OSError: if the process does not start.
            ValueError: if its message is malformed.
        """
        self.channel.send(json.dumps(specs).encode(), _START_S)
        return WorkerReply.model_validate_json(self.channel.receive(_START_S, MAX_RESULT_BYTES)).error

    def ask(self, job: Job, form: type[WorkerReply], clock: JobClock) -> JobResult:
        """Return the answer of the process to `job`, parsed as a `form`.

        Raises:
            TimeoutError: if the job's time is over.
            EOFError, OSError: if the process has ended.
            ValueError: if its message is malformed.
        """
        self.channel.send(json.dumps([job.plugin, job.question]).encode(), WALL_TIME_FACTOR * job.timeout_s)
        for wait_s in clock.waits():
            with suppress(TimeoutError):
                reply = form.model_validate_json(self.channel.receive(wait_s, MAX_RESULT_BYTES))
                if reply.value is None and not reply.error:
                    raise ValueError("neither a value nor an error")
                return JobResult(**dict(reply))
        raise TimeoutError

    def kill(self) -> None:
        """Kill the process group."""
        # The process is reaped only afterwards, so its id cannot belong to another group yet.
        if self._popen.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def reap(self) -> JobResult:
        """Kill the process and wait for its end; return the result of a job during which it ended by itself."""
        if self._popen.returncode is not None:
            return JobResult(error=_DIED)
        ended = self._has_ended()
        self.kill()
        # Popen.wait would drop the resource usage.
        _, status, usage = os.wait4(self.pid, 0)
        self._popen.returncode = os.waitstatus_to_exitcode(status)
        number = -self._popen.returncode
        if not ended or number <= 0 or number in _OWN_SIGNALS:
            return JobResult(error=_DIED)
        # Killed from outside while large: most likely by the OOM killer. `ru_maxrss` is in KiB.
        if usage.ru_maxrss << 10 > self._memory // 2:
            return JobResult(error="took too much memory")
        return JobResult(error=f"{_DIED} by {signal.Signals(number).name} from outside", blame="machine")

    def _has_ended(self) -> bool:
        """Return True if the process has ended, without reaping it."""
        if self._popen.returncode is not None:
            return True
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None

    def await_end(self) -> None:
        """Wait for the end of a process after it closed its channel."""
        deadline = time.monotonic() + _DEATH_S
        while not self._has_ended() and time.monotonic() < deadline:
            time.sleep(1e-3)


class Worker:
    """One process, started for the first job and replaced after a kill."""

    def __init__(self, plugins: Mapping[str, PluginConfig], memory: int) -> None:
        """`memory`: address space of the process, in bytes."""
        self._specs, self._memory = {name: plugin_spec(plugin) for name, plugin in plugins.items()}, memory
        self._replies: dict[str, type[WorkerReply]] = {}
        for name, plugin in plugins.items():
            self._replies[name] = VerifierReply if isinstance(plugin, VerifierConfig) else ToolReply
        self._process: WorkerProcess | None = None
        self._lock = threading.Lock()
        """Lock between the thread that runs jobs and the thread that cancels jobs or closes the worker."""
        self._job: Job | None = None
        self.closed = False

    def run(self, job: Job) -> JobResult:
        """Return the result of `job`. A failure not caused by the answer is followed by a second attempt.

        Raises:
            WorkerError: if no process starts, or the plug-in cannot work on this machine.
        """
        result = self._attempt(job)
        if result.blame != "answer" and not (job.cancelled or self.closed):
            if result.blame == "setup":
                self._end()  # a process may cache the failure
            result = self._attempt(job)
        if result.blame == "setup":
            raise WorkerError(f"{job.plugin} {result.message}")
        return result

    def _attempt(self, job: Job) -> JobResult:
        # Between jobs nothing is sent, so a readable channel means the end of the process.
        if self._process is not None and not self._process.channel.is_quiet():
            self._end()
        process = self._process or self._start()
        with self._lock:
            if job.cancelled or self.closed:
                return JobResult(error="cancelled")
            self._job = job
        clock = JobClock(process.pid, job.timeout_s)
        try:
            return process.ask(job, self._replies[job.plugin], clock)
        except TimeoutError:
            result = clock.timeout_result()
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

    def _start(self) -> WorkerProcess:
        """Start a process and load the plug-ins.

        Raises:
            WorkerError: if a plug-in cannot be loaded, or `_STARTS` processes in a row do not start.
        """
        failure = f"a worker process cannot run {', '.join(self._specs)}"
        fault = ""
        for _ in range(_STARTS):
            with self._lock:
                if self.closed:
                    raise WorkerError("the workers are closed")
                process = self._process = WorkerProcess(self._memory)
            try:
                load_error = process.load(self._specs)
            except TimeoutError:
                fault = f"it is not up after {_START_S:g} s"
            except (EOFError, OSError):
                fault = "it died while it started"
            except ValueError as error:
                fault = f"it wrote what is no result: {error}"
            else:
                if not load_error:
                    return process
                # Another process would fail to load them too.
                self._end()
                raise WorkerError(f"{failure}: {load_error}")
            self._end()
        raise WorkerError(f"{failure}: {fault}, and so did {_STARTS - 1} more")

    def _end(self, *, by_itself: bool = False) -> JobResult:
        """End the process; return the result of the job during which it ended `by_itself`."""
        with self._lock:
            process, self._process = self._process, None
            if process is None:
                return JobResult(error=_DIED)
            if by_itself:
                # The socket closes shortly before the process ends; killed too early, it would hide its own signal.
                process.await_end()
            result = process.reap()
            process.channel.close()
            return result


def _environment() -> dict[str, str]:
    """Return the environment of a worker process."""
    environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    # The same modules as in this process. An empty entry stands for the working directory.
    path = os.pathsep.join([folder or os.getcwd() for folder in sys.path])
    # Equal hashes and one thread: equal questions, equal answers.
    return environment | {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
