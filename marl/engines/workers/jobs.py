"""Jobs of worker processes, their results, and the time that they may take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from marl.engines.workers.process import Blame
from marl.processes import own_cpu_s, states, tree_cpu_s

PATIENCE = 10.0
"""Multiple of its time limit that a job may take on the clock while it does not get so much processor time."""
_LEAST_WAIT_S = 0.01
"""Processor time is counted in such steps."""
_ASLEEP = frozenset("SZ")
"""States of processes that wait for something, or have ended; others run, want to run, or are stopped."""


@dataclass(eq=False, slots=True)
class Job:
    """A question to a part, as JSON."""

    part: str
    question: str
    timeout_s: float
    cancelled: bool = False


class JobResult(NamedTuple):
    """Value of a job, or the error that kept it from one."""

    value: Any = None
    error: str = ""
    detail: str = ""
    """The message of the exception, for the author of the part: it may quote what the answer's author must not know."""
    blame: Blame = "answer"
    """Cause of the error."""

    @property
    def why(self) -> str:
        """Return the error with its detail."""
        return f"{self.error}: {self.detail}" if self.detail else self.error


class WorkerReply(BaseModel):
    """Message of a worker process."""

    model_config = ConfigDict(strict=True, extra="forbid")

    value: Any = None
    error: str = ""
    detail: str = ""
    blame: Blame = "answer"


class VerifierReply(WorkerReply):
    """Message of a worker process about an answer."""

    value: tuple[Annotated[float, Field(ge=-1, le=1, allow_inf_nan=False)], str] | None = None


class ToolReply(WorkerReply):
    """Message of a worker process about a call."""

    value: str | None = None


class JobClock:
    """Time of one job: its limit is in processor seconds of a process and all that it started.

    The limit is never reached sooner than on the clock. On a busy machine it may take `PATIENCE` times as long; a job
    that uses no processor time for as long as its limit is over at once.
    """

    def __init__(self, process: int, limit_s: float) -> None:
        self._process, self._limit_s = process, limit_s
        self._used_before_s = own_cpu_s(process)

    @property
    def _used_s(self) -> float:
        return tree_cpu_s(self._process) - self._used_before_s

    def waits(self) -> Iterator[float]:
        """Yield the seconds to wait for a result, again and again until the job's time is over.

        Only they count: while this process itself does not run, no time passes for the job.
        """
        limit_s = wait_s = self._limit_s
        waited_s = idle_s = used_s = 0.0
        while used_s < limit_s and waited_s < PATIENCE * limit_s and idle_s < limit_s:
            yield wait_s
            before_s, used_s = used_s, self._used_s
            waited_s += wait_s
            idle_s = 0.0 if used_s > before_s else idle_s + wait_s
            wait_s = max(limit_s - used_s, _LEAST_WAIT_S)

    def over(self) -> JobResult:
        """Return the result of a job whose time is over, while its process is still there.

        It failed if it used up its time or slept; nothing is said of it if it was stopped or found no processor.
        """
        used_s = self._used_s
        if used_s >= self._limit_s or states(self._process) <= _ASLEEP:
            return JobResult(error=f"timed out after {self._limit_s:g} s")
        return JobResult(error=f"was kept from working: {used_s:.2g} s of processor time", blame="machine")
