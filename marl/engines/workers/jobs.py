"""Jobs of worker processes, their results, and their time limits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from marl.engines.workers.process import Blame
from marl.host.processes import own_cpu_s, process_states, tree_cpu_s

WALL_TIME_FACTOR = 10.0
"""Limit of a job's wall time, as a multiple of its limit of CPU time, for jobs that wait for a busy CPU."""
_CPU_TICK_S = 0.01
"""Resolution of CPU times, in seconds: the shortest wait between two looks."""
_ASLEEP = frozenset("SZ")
"""States of processes that sleep or have ended. Processes in other states run, want to run, or are stopped."""


@dataclass(eq=False, slots=True)
class Job:
    """A question to a plug-in, as JSON."""

    plugin: str
    question: str
    timeout_s: float
    cancelled: bool = False


class JobResult(NamedTuple):
    """Value of a job, or the error instead of a value."""

    value: Any = None
    error: str = ""
    detail: str = ""
    """Message of the exception, for the author of the plug-in. It may quote what the answer's author must not see."""
    blame: Blame = "answer"
    """Cause of the error."""

    @property
    def message(self) -> str:
        """Error and detail."""
        return f"{self.error}: {self.detail}" if self.detail else self.error


class WorkerReply(BaseModel):
    """Message of a worker process."""

    # Strict: the process ran code written by models, which may have forged the message.
    model_config = ConfigDict(strict=True, extra="forbid")

    value: Any = None
    error: str = ""
    detail: str = ""
    blame: Blame = "answer"


class VerifierReply(WorkerReply):
    """Message of a worker process about an answer: a score and the reason."""

    value: tuple[Annotated[float, Field(ge=-1, le=1, allow_inf_nan=False)], str] | None = None


class ToolReply(WorkerReply):
    """Message of a worker process about a tool call: the text of the result."""

    value: str | None = None


class JobClock:
    """Time of one job. The limit counts CPU seconds of a process and its descendants.

    On a busy machine the wall time may reach `WALL_TIME_FACTOR` times the limit. A job without any CPU time for as long
    as the limit ends at once.
    """

    def __init__(self, process: int, limit_s: float) -> None:
        """`process`: process id of the worker."""
        self._process, self._limit_s = process, limit_s
        self._used_before_s = own_cpu_s(process)

    def _used_cpu_s(self) -> float:
        return tree_cpu_s(self._process) - self._used_before_s

    def waits(self) -> Iterator[float]:
        """Yield the seconds to wait for a result, again and again until the time is over."""
        # Waited seconds are counted, not the clock: while this process is stopped, no time passes for the job.
        limit_s = wait_s = self._limit_s
        waited_s = idle_s = used_s = 0.0
        while used_s < limit_s and waited_s < WALL_TIME_FACTOR * limit_s and idle_s < limit_s:
            yield wait_s
            before_s, used_s = used_s, self._used_cpu_s()
            waited_s += wait_s
            idle_s = 0.0 if used_s > before_s else idle_s + wait_s
            wait_s = max(limit_s - used_s, _CPU_TICK_S)

    def timeout_result(self) -> JobResult:
        """Return the result of a job after its time. The process must still exist.

        The answer fails if the job used up its time or slept. A job that was stopped or got no CPU proves nothing.
        """
        used_s = self._used_cpu_s()
        if used_s >= self._limit_s or process_states(self._process) <= _ASLEEP:
            return JobResult(error=f"timed out after {self._limit_s:g} s")
        return JobResult(error=f"was kept from working: {used_s:.2g} s of processor time", blame="machine")
