"""State of one simulator of a run on Ray: current process, queued commands, unfinished batches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError

from marl.core.types import Ticket
from marl.rollout.shards import (
    EndStepCommand,
    LoadWeightsCommand,
    ShardCommand,
    ShardStepReport,
    StartJobsCommand,
)

SimulatorProcessKey = tuple[int, int]
"""Number of a simulator, and number of processes that it lost before this one."""


@dataclass(slots=True)
class UnfinishedJobBatch:
    """Batch of jobs of which some have no result yet."""

    batch: StartJobsCommand
    open_jobs: set[Ticket]
    """Tickets of the jobs without a result."""
    cancelled: set[Ticket] = field(default_factory=set)
    """Tickets of cancelled jobs."""

    def without_cancelled_jobs(self) -> StartJobsCommand:
        """Return the batch without cancelled jobs. Finished jobs stay, because a repetition gives identical
        results only with the same jobs."""
        jobs = {ticket: job for ticket, job in self.batch.jobs.items() if ticket not in self.cancelled}
        return StartJobsCommand(self.batch.setup, jobs)


@dataclass(slots=True)
class RestartableSimulator:
    """State of one simulator, kept over its successive processes."""

    number: int
    process: Any = None
    """Ray's handle of the current actor."""
    location: str = ""
    """Host name and process id of the current process, or "" before the process has started."""
    gpus: frozenset[str] = frozenset()
    """UUIDs of the GPUs that the process uses."""
    activity: str = "starting"
    """Activity of the process, for messages."""
    since: float = field(default_factory=time.time)
    """Start of the activity, in seconds since 1970."""
    ready: bool = False
    """True from the end of a process's start to the process's loss. Only then are commands queued."""
    vacant: bool = False
    """True while there is no room for a process, so that another simulator does the jobs."""
    commands: list[ShardCommand] = field(default_factory=list)
    """Commands to send with the next call of the process."""
    sent_commands: Sequence[ShardCommand] = ()
    """Commands of the pending call of the process."""
    open: list[UnfinishedJobBatch] = field(default_factory=list)
    """Batches with unfinished jobs."""
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    """Event that is set when queued commands are to be sent."""
    report: asyncio.Future[ShardStepReport] | None = None
    """Future of the report for which the end of a step waits. None: no step waits for this simulator."""
    idle_report: ShardStepReport | None = None
    """Report of the step so far that the idle process would give, or None while it plays, starts or executes commands.
    """
    busy_s: float = 0.0
    """Working time of the processes since the end of the last step, in seconds."""
    restarts: int = 0
    """Number of processes lost so far."""
    losses: int = 0
    """Number of processes lost since the last result."""

    @property
    def name(self) -> str:
        """Name of the simulator in messages."""
        return f"simulator {self.number}"

    @property
    def open_job_count(self) -> int:
        """Number of jobs without a result."""
        return sum(len(opened.open_jobs) for opened in list(self.open))

    @property
    def process_key(self) -> SimulatorProcessKey:
        """Key of the current process, different from that of the simulator's earlier and later processes."""
        return self.number, self.restarts

    def awaits_weights_of(self, policy: str) -> bool:
        """Return True if the process has not yet loaded weights of `policy` that were published for it."""
        commands = (*self.commands, *self.sent_commands)
        return any(isinstance(command, LoadWeightsCommand) and command.policy == policy for command in commands)

    def set_process_activity(self, activity: str) -> None:
        if activity != self.activity:
            self.activity, self.since = activity, time.time()

    def queue_command(self, command: ShardCommand, is_sent_at_once: bool = True) -> None:
        """Queue a command for the process, or ignore it if no process is ready: `process_started` gets it later.

        A command with `is_sent_at_once=False` waits for the next call of the process.

        New weights replace queued older weights of their policy, at the place of the older ones: jobs queued after the
        older weights must not begin with weights from before them.
        """
        if not self.ready:
            return
        if is_sent_at_once:
            self.wake.set()
        if isinstance(command, LoadWeightsCommand):
            for index, queued in enumerate(self.commands):
                if isinstance(queued, LoadWeightsCommand) and queued.policy == command.policy:
                    self.commands[index] = command
                    return
        self.commands.append(command)

    def process_started(self, commands: Sequence[ShardCommand]) -> None:
        """Begin the queue of a new process with `commands`: weights, policies and unfinished jobs up to now."""
        self.ready, self.commands, self.idle_report = True, list(commands), ShardStepReport()
        if commands:
            self.wake.set()

    def queue_job_batch(self, batch: UnfinishedJobBatch) -> None:
        """Queue a batch for the process."""
        self.open.append(batch)
        self.queue_command(batch.without_cancelled_jobs())

    def drop_finished_batches(self) -> None:
        """Drop the batches whose jobs all have a result."""
        self.open = [opened for opened in self.open if opened.open_jobs]

    def end_step_if_idle(self) -> ShardStepReport | None:
        """Return the report of the step and let the process end the step with its next call, or return None if the
        process must be asked: it plays, starts, or has commands to execute first, such as new weights."""
        if self.open or self.commands or self.idle_report is None:
            return None
        self.queue_command(EndStepCommand(), is_sent_at_once=False)
        report, self.idle_report = self.idle_report, ShardStepReport()
        return report

    def deliver_report(self, report: ShardStepReport) -> None:
        """Give `report` to the step that waits for this simulator's report, if a step waits."""
        if self.report and not self.report.done():
            self.report.set_result(report)
        self.report = None

    def kill_process(self) -> None:
        """Kill the current process, if there is one, and drop the commands that it has not received."""
        self.ready, self.commands, self.sent_commands, self.idle_report = False, [], (), None
        self.wake.clear()
        if self.process is not None:
            with suppress(RayError, ValueError):
                ray.kill(self.process, no_restart=True)
