"""Jobs of worker processes, their results, and their time limits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from marl.engines.workers.process import ErrorCause
from marl.host.processes import process_cpu_s, process_tree_cpu_s, process_tree_states

WALL_TIME_FACTOR = 10.0
"""Maximum wall time of a job, as a multiple of its maximum CPU time. A job may wait for a busy CPU."""
_CPU_TICK_S = 0.01
"""Resolution of CPU times in seconds, and therefore the shortest wait for a result."""
_SLEEPING_OR_ENDED_STATES = frozenset("SZ")
"""States (of /proc) of processes that sleep or have ended. Processes in other states run, could run, or are stopped."""


@dataclass(eq=False, slots=True)
class PluginJob:
    """Question to a plug-in (a verifier or tool), as JSON, with a limit of CPU time."""

    plugin: str
    question: str
    timeout_s: float
    """Maximum CPU time in seconds."""
    cancelled: bool = False
    started: float = math.inf
    """Time at which a process got the job (`time.monotonic`), or infinity before."""


class PluginJobResult(NamedTuple):
    """Result of a job: the plug-in's value, or an error instead of a value."""

    value: Any = None
    error: str = ""
    detail: str = ""
    """Message of the exception, for the author of the plug-in. The text may quote secrets, such as the right answer."""
    blame: ErrorCause = "answer"
    """Cause of the error: the answer, this machine, or the plug-in's setup."""

    @property
    def error_message(self) -> str:
        """Text of the error, with `detail` appended if `detail` is not empty."""
        return f"{self.error}: {self.detail}" if self.detail else self.error


class WorkerReply(BaseModel):
    """Message from a worker process about one job: the plug-in's value, or an error."""

    # Validation is strict, because code written by a model runs in the process and may have forged the message.
    model_config = ConfigDict(strict=True, extra="forbid")

    value: Any = None
    error: str = ""
    detail: str = ""
    blame: ErrorCause = "answer"


_Score = Annotated[float, Field(ge=-1, le=1, allow_inf_nan=False)]


class VerifierReply(WorkerReply):
    """Message from a worker process that ran a verifier: scores in [-1, 1] with the reason, or an error.

    A list holds one score for each segment.
    """

    value: tuple[_Score | list[_Score], str] | None = None


class ToolReply(WorkerReply):
    """Message from a worker process that ran a tool: the text of the result, or an error."""

    value: str | None = None


class JobCpuTimeLimit:
    """Clock of one job, with a limit of the CPU seconds of a process and its descendants.

    On a busy machine the wall time may reach `WALL_TIME_FACTOR` times the limit. A job ends earlier if its processes
    use no CPU time during as many seconds as the limit.
    """

    def __init__(self, pid: int, limit_s: float) -> None:
        """`pid`: process id of the worker; `limit_s`: maximum CPU time in seconds."""
        self._pid, self._limit_s = pid, limit_s
        self._used_before_s = process_cpu_s(pid)
        """CPU time that the process had used before the job, in seconds."""

    def iterate_wait_limits_until_timeout(self) -> Iterator[float]:
        """Yield the maximum seconds of the next wait for the job's result, until the job's time is over."""
        # Waits are summed up, because a clock would go on while this process is stopped.
        limit_s = wait_s = self._limit_s
        waited_s = idle_s = used_s = 0.0
        while used_s < limit_s and waited_s < WALL_TIME_FACTOR * limit_s and idle_s < limit_s:
            yield wait_s
            before_s, used_s = used_s, process_tree_cpu_s(self._pid) - self._used_before_s
            waited_s += wait_s
            idle_s = 0.0 if used_s > before_s else idle_s + wait_s
            wait_s = max(limit_s - used_s, _CPU_TICK_S)

    def timeout_result(self) -> PluginJobResult:
        """Return the failed result of a job whose time is over. The worker process must still exist.

        The cause is the answer if the job used up its CPU time or slept, and the machine if the job got no CPU time.
        """
        used_s = process_tree_cpu_s(self._pid) - self._used_before_s
        if used_s >= self._limit_s or process_tree_states(self._pid) <= _SLEEPING_OR_ENDED_STATES:
            return PluginJobResult(error=f"timed out after {self._limit_s:g} s")
        return PluginJobResult(error=f"was kept from working: {used_s:.2g} s of processor time", blame="machine")
