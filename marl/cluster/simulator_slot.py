"""One simulator of a run on Ray: its current process, its queue of commands and its unfinished batches."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError

from marl.core.types import Ticket
from marl.rollout.shards import JobBatch, ShardCommand, ShardReport


@dataclass(slots=True)
class OpenBatch:
    """A batch with unfinished jobs."""

    batch: JobBatch
    open_jobs: set[Ticket]
    """Jobs without a result."""
    cancelled: set[Ticket] = field(default_factory=set)

    def without_cancelled(self) -> JobBatch:
        """Return the batch for another process, with its finished jobs: equal batches give equal bits."""
        jobs = {ticket: job for ticket, job in self.batch.jobs.items() if ticket not in self.cancelled}
        return JobBatch(self.batch.setup, jobs)


@dataclass(slots=True)
class SimulatorSlot:
    """One simulator of a run, through all of its successive processes."""

    number: int
    process: Any = None
    """Ray's handle of the actor."""
    location: str = ""
    """Host name and process id."""
    gpus: frozenset[str] = frozenset()
    """UUIDs of the GPUs in use by the process."""
    activity: str = "starting"
    since: float = field(default_factory=time.time)
    """Time at which the activity began, in seconds since 1970."""
    vacant: bool = False
    """True while there is no room for a process. Another simulator then does its jobs."""
    commands: list[ShardCommand] = field(default_factory=list)
    """Commands to be sent with the next call."""
    open: list[OpenBatch] = field(default_factory=list)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    report: asyncio.Future[ShardReport] | None = None
    """Report awaited by the end of a step."""
    busy_s: float = 0.0
    """Working time since the last step ended, in seconds."""
    restarts: int = 0
    losses: int = 0
    """Number of processes lost in a row, without a result in between."""

    @property
    def name(self) -> str:
        """Return the simulator's name in messages."""
        return f"simulator {self.number}"

    @property
    def open_jobs(self) -> int:
        """Return the number of its jobs without a result."""
        return sum(len(opened.open_jobs) for opened in list(self.open))

    def set_activity(self, activity: str) -> None:
        if activity != self.activity:
            self.activity, self.since = activity, time.time()

    def put(self, command: ShardCommand) -> None:
        """Queue a command for the process."""
        self.commands.append(command)
        self.wake.set()

    def begin(self, opened: OpenBatch) -> None:
        """Queue a batch for the process."""
        self.open.append(opened)
        self.put(opened.without_cancelled())

    def drop_finished(self) -> None:
        """Remove batches whose jobs all have a result."""
        self.open = [opened for opened in self.open if opened.open_jobs]

    def answer(self, report: ShardReport) -> None:
        """Complete the future `report`, if a step waits for it."""
        if self.report and not self.report.done():
            self.report.set_result(report)
        self.report = None

    def kill(self) -> None:
        """Kill the process, if there is one."""
        if self.process is not None:
            with suppress(RayError, ValueError):
                ray.kill(self.process, no_restart=True)
