"""Worker processes, which are replaced after their end, and the causes of failed jobs.

A job runs a plug-in, such as a verifier, on one model's answer. If the process dies, the job counts as failed by the
answer, unless the cause is external: an OOM killer, a signal sent by hand, a machine without a free CPU. After an
external cause the job runs once more in a new process.
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
from marl.engines.workers.channel import ProcessMessageChannel
from marl.engines.workers.jobs import (
    WALL_TIME_FACTOR,
    JobCpuTimeLimit,
    PluginJob,
    PluginJobResult,
    ToolReply,
    VerifierReply,
    WorkerReply,
)
from marl.engines.workers.process import MAX_RESULT_BYTES, PluginSpec
from marl.protocols import VerifierConfig

_START_TIMEOUT_S = 120.0
"""Time limit for the imports of a new process, in seconds, with room for a busy machine."""
_MAX_START_ATTEMPTS = 3
"""Number of attempts to start a process before the run ends."""
_MAX_EXIT_DELAY_S = 1.0
"""Maximum time that a process may take to exit after its channel was closed, in seconds."""
_SELF_CAUSED_SIGNALS = frozenset(
    signal.Signals[f"SIG{name}"] for name in ("ABRT", "BUS", "FPE", "ILL", "SEGV", "SYS", "TRAP", "XCPU", "XFSZ")
)
"""Signals that a process causes itself. Other signals come from outside."""
_INHERITED_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
"""Environment variables that workers inherit. Variables with keys and tokens are not inherited."""
_INVALID_RESULT_MESSAGE = "the process that ran it wrote what is no result"
_PROCESS_DIED_MESSAGE = "the process that ran it died"


class WorkerPoolError(RunError):
    """Worker processes cannot work on this machine, so nothing can be verified."""


def plugin_import_spec(plugin: PluginConfig) -> PluginSpec:
    """Return (module, class, settings), from which another process can build `plugin`.

    Raises:
        ValueError: if no other process can import the class.
    """
    module, name = type(plugin).__module__, type(plugin).__qualname__
    if module == "__main__" or "<locals>" in name:
        raise ValueError(f"{name} is defined in {module}, where no worker process can import it; put it into a module")
    return module, name, plugin.model_dump(mode="json")


class WorkerProcess:
    """A started worker process, and the channel to it."""

    def __init__(self, memory_bytes: int) -> None:
        """`memory_bytes`: maximum address space of the process, in bytes."""
        self._memory = memory_bytes
        stream, remote = socket.socketpair()
        environment = {name: os.environ[name] for name in _INHERITED_VARIABLES if name in os.environ}
        # The worker gets this process's import path, in which an empty entry means the working directory.
        environment["PYTHONPATH"] = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
        # With a fixed hash seed and one thread, equal questions get equal answers.
        environment |= {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
        # With `-P`, modules come from PYTHONPATH only. In its own session, the process is killed with its descendants.
        self._popen = subprocess.Popen(
            [sys.executable, "-P", "-m", "marl.engines.workers.process", str(remote.fileno()), str(memory_bytes)],
            env=environment,
            pass_fds=[remote.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        remote.close()
        self.channel, self.pid = ProcessMessageChannel(stream), self._popen.pid

    def run_job(self, job: PluginJob, reply_class: type[WorkerReply], time_limit: JobCpuTimeLimit) -> PluginJobResult:
        """Return the reply of the process to `job`, parsed as a `reply_class`.

        Raises:
            TimeoutError: if the job's time is over.
            EOFError, OSError: if the process has ended.
            ValueError: if the reply is malformed.
        """
        job.started = time.monotonic()
        self.channel.send(json.dumps([job.plugin, job.question]).encode(), WALL_TIME_FACTOR * job.timeout_s)
        for wait_s in time_limit.iterate_wait_limits_until_timeout():
            with suppress(TimeoutError):
                reply = reply_class.model_validate_json(self.channel.receive(wait_s, MAX_RESULT_BYTES))
                if reply.value is None and not reply.error:
                    raise ValueError("neither a value nor an error")
                return PluginJobResult(**dict(reply))
        raise TimeoutError

    def kill(self) -> None:
        """Kill the process and its descendants."""
        # The process has not been reaped, so its id cannot belong to another group yet.
        if self._popen.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def wait_or_kill(self, wait_s: float = 0.0) -> PluginJobResult:
        """Wait at most `wait_s` seconds for the process to exit by itself, then kill it.

        Return the failed result of the job that ran in the process, with the cause of the exit.
        """
        if self._popen.returncode is not None:
            return PluginJobResult(error=_PROCESS_DIED_MESSAGE)
        deadline = time.monotonic() + wait_s
        while not (ended := os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None):
            if time.monotonic() >= deadline:
                break
            time.sleep(1e-3)
        self.kill()
        # `os.wait4` also returns the resource usage, which `Popen.wait` drops.
        _, status, usage = os.wait4(self.pid, 0)
        self._popen.returncode = os.waitstatus_to_exitcode(status)
        number = -self._popen.returncode
        if not ended or number <= 0 or number in _SELF_CAUSED_SIGNALS:
            return PluginJobResult(error=_PROCESS_DIED_MESSAGE)
        # A large process that was killed from outside was most likely killed by the OOM killer. `ru_maxrss` is in KiB.
        if usage.ru_maxrss << 10 > self._memory // 2:
            return PluginJobResult(error="took too much memory")
        return PluginJobResult(
            error=f"{_PROCESS_DIED_MESSAGE} by {signal.Signals(number).name} from outside", blame="machine"
        )


class PluginWorker:
    """Runner of jobs in a process, which is started for the first job and replaced after its end."""

    def __init__(self, plugins: Mapping[str, PluginConfig], memory_bytes: int) -> None:
        """`memory_bytes`: maximum address space of the process, in bytes."""
        self._memory = memory_bytes
        self._specs: dict[str, PluginSpec] = {}
        self._reply_classes: dict[str, type[WorkerReply]] = {}
        for name, plugin in plugins.items():
            self._specs[name] = plugin_import_spec(plugin)
            self._reply_classes[name] = VerifierReply if isinstance(plugin, VerifierConfig) else ToolReply
        self._process: WorkerProcess | None = None
        self._lock = threading.Lock()
        """Lock between the thread that runs jobs and the thread that cancels jobs or closes the worker."""
        self._job: PluginJob | None = None
        """Job that is running now, or None."""
        self.closed = False

    def run(self, job: PluginJob) -> PluginJobResult:
        """Return the result of `job`. After a failure with another cause than the answer, `job` is run a second time.

        Raises:
            WorkerPoolError: if no process starts, or the plug-in cannot work on this machine.
        """
        result = self._attempt_job(job)
        if result.blame != "answer" and not (job.cancelled or self.closed):
            if result.blame == "setup":
                # A process may have cached a failed set-up, so the second attempt gets a new process.
                self._end_process()
            result = self._attempt_job(job)
        if result.blame == "setup":
            raise WorkerPoolError(f"{job.plugin} {result.error_message}")
        return result

    def _attempt_job(self, job: PluginJob) -> PluginJobResult:
        """Run `job` once, in the present process or a new one, and return its result."""
        # A process sends nothing between jobs, so a readable channel means that it has ended.
        if self._process is not None and not self._process.channel.is_open_without_unread_data():
            self._end_process()
        process = self._process or self._start_process()
        with self._lock:
            if job.cancelled or self.closed:
                return PluginJobResult(error="cancelled")
            self._job = job
        clock = JobCpuTimeLimit(process.pid, job.timeout_s)
        try:
            return process.run_job(job, self._reply_classes[job.plugin], clock)
        except TimeoutError:
            result = clock.timeout_result()
            self._end_process()
            return result
        except (EOFError, OSError):
            return self._end_process(is_already_ending=True)
        except ValueError:
            self._end_process()
            return PluginJobResult(error=_INVALID_RESULT_MESSAGE)
        finally:
            with self._lock:
                self._job = None

    def cancel(self, job: PluginJob) -> None:
        """Cancel `job`, and kill the process if the job is running."""
        with self._lock:
            job.cancelled = True
            if self._job is job and self._process is not None:
                self._process.kill()

    def close(self) -> None:
        """End the process, even in the middle of a job, and start no new process."""
        with self._lock:
            self.closed = True
            if self._process is not None:
                self._process.wait_or_kill()

    def _start_process(self) -> WorkerProcess:
        """Start a process and load the plug-ins into it.

        Raises:
            WorkerPoolError: if a plug-in cannot be loaded, or `_MAX_START_ATTEMPTS` processes in a row do not start.
        """
        failure = f"a worker process cannot run {', '.join(self._specs)}"
        fault = ""
        for _ in range(_MAX_START_ATTEMPTS):
            with self._lock:
                if self.closed:
                    raise WorkerPoolError("the workers are closed")
                process = self._process = WorkerProcess(self._memory)
            try:
                process.channel.send(json.dumps(self._specs).encode(), _START_TIMEOUT_S)
                reply = WorkerReply.model_validate_json(process.channel.receive(_START_TIMEOUT_S, MAX_RESULT_BYTES))
            except TimeoutError:
                fault = f"it is not up after {_START_TIMEOUT_S:g} s"
            except (EOFError, OSError):
                fault = "it died while it started"
            except ValueError as error:
                fault = f"it wrote what is no result: {error}"
            else:
                if not reply.error:
                    return process
                # A plug-in that fails to load would fail in another process, too, so no retry follows.
                self._end_process()
                raise WorkerPoolError(f"{failure}: {reply.error}")
            self._end_process()
        raise WorkerPoolError(f"{failure}: {fault}, and so did {_MAX_START_ATTEMPTS - 1} more")

    def _end_process(self, *, is_already_ending: bool = False) -> PluginJobResult:
        """End the process and return the failed result of its job.

        `is_already_ending` is True if the process is exiting by itself, so that its own exit status is awaited.
        """
        with self._lock:
            process, self._process = self._process, None
            if process is None:
                return PluginJobResult(error=_PROCESS_DIED_MESSAGE)
            # The socket closes shortly before the process ends. Killing it at once would hide the signal that ended it.
            result = process.wait_or_kill(_MAX_EXIT_DELAY_S if is_already_ending else 0.0)
            process.channel.close()
            return result
