"""Shards of a simulator: each plays its jobs with engines of its own. The run sends commands and collects results."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, NamedTuple

from marl.core.types import Metrics, Purpose, Request, Ticket, Usage
from marl.protocols import AddedPlayer, EngineConfig
from marl.rollout.base import EpisodeResult, ProcessStatus, Start
from marl.rollout.casting import RoleCasting
from marl.rollout.request_router import Answer
from marl.rollout.simulator import PendingRequests, RolloutSimulator

_UNLIMITED_DROPS = 10**18
"""More episodes than any run has: shards may drop all of theirs, and the run applies its own limit."""
_MAX_SETUPS = 16
"""Maximum number of idle play setups in a shard's memory. The least recently used are dropped."""


@dataclass(frozen=True, slots=True)
class PlaySetup:
    """Settings of a shard's play: a game, the roles at its seats, and engines beside the shard's own."""

    number: int
    """Unique number of the setup in its run."""
    game: str | None
    """The only game of several, whose deals name no game, or None if deals name their game."""
    casting: RoleCasting
    engines: Mapping[str, EngineConfig] = field(default_factory=dict)
    """Policy -> the settings of an engine without weights."""


class RequestBatch(NamedTuple):
    """Requests to be answered by one shard together."""

    requests: Sequence[Request]
    purpose: Purpose


Job = Start | RequestBatch
Result = EpisodeResult | list[Answer]


@dataclass(frozen=True, slots=True)
class JobBatch:
    """Jobs started together. After the loss of a shard they are restarted together: equal batches, equal bits."""

    setup: PlaySetup
    jobs: Mapping[Ticket, Job]


@dataclass(frozen=True, slots=True)
class CancelJobs:
    """Command to drop unfinished jobs."""

    tickets: frozenset[Ticket]


@dataclass(frozen=True, slots=True)
class LoadWeights:
    """Command to sample with new weights of a policy. Episodes in flight continue with the new weights, too."""

    policy: str
    weights: Any
    """`Weights`, or a transport form of them on the way to another process."""
    version: int


@dataclass(frozen=True, slots=True)
class RestoreUsage:
    """Command to continue counting from the usage of all shards together."""

    spent: Mapping[str, Usage]


@dataclass(frozen=True, slots=True)
class SetPolicy:
    """Command to add a policy for later jobs, or, with `player` None, to remove an added policy."""

    name: str
    player: AddedPlayer | None


@dataclass(frozen=True, slots=True)
class EndStep:
    """Command to report the figures of the step."""


@dataclass(frozen=True, slots=True)
class Sleep:
    """Command to free the memory of engines until their next request. An empty report confirms it."""


ShardCommand = JobBatch | CancelJobs | LoadWeights | RestoreUsage | SetPolicy | EndStep | Sleep


@dataclass(slots=True)
class ShardReport:
    """Figures of a shard since its last report."""

    metrics: Metrics = field(default_factory=dict)
    """Metrics of its engines, named as by `BaseSimulator.end_step`."""
    failures: list[str] = field(default_factory=list)
    spent: dict[str, Usage] = field(default_factory=dict)
    """Policy -> the cost of its answers."""


class SimulatorShard:
    """One shard: plays batches of jobs with engines of its own."""

    def __init__(self, simulator: RolloutSimulator) -> None:
        self._simulator = simulator
        self._variants: dict[int, RolloutSimulator] = {}
        """Number of a setup -> its simulator, the most recently used last."""
        self._episodes: dict[tuple[int, Ticket], Ticket] = {}
        """(setup, ticket of its simulator) -> ticket of the job."""
        self._pending: dict[Ticket, tuple[int, PendingRequests]] = {}
        """Ticket of the job -> setup and its requests."""
        self._reported: dict[str, Usage] = {}
        """Policy -> its usage at the last report or `RestoreUsage`."""

    @property
    def open_jobs(self) -> int:
        """Return the number of unfinished jobs."""
        return len(self._episodes) + len(self._pending)

    def handle(self, command: ShardCommand) -> ShardReport | None:
        """Execute a command. Return a report for `EndStep` and `Sleep`, None otherwise."""
        simulator = self._simulator
        match command:
            case JobBatch():
                self._start(command)
            case CancelJobs(tickets):
                self._cancel(tickets)
            case LoadWeights(policy, weights, version):
                simulator.load_weights(policy, weights, version)
            case RestoreUsage(spent):
                simulator.restore_usage(spent)
                self._reported = dict(simulator.usage)
            case SetPolicy(name, player):
                if player:
                    simulator.add_policy(name, player)
                else:
                    simulator.remove_policy(name)
            case Sleep():
                simulator.sleep()
                return ShardReport()
            case EndStep():
                before, self._reported = self._reported, dict(simulator.usage)
                spent = {policy: usage - before.get(policy, Usage()) for policy, usage in self._reported.items()}
                return ShardReport(simulator.end_step(), simulator.take_failure_messages(), spent)
        return None

    def step(self, wait_s: float) -> list[tuple[Ticket, Result]]:
        """Advance all jobs and return the results of those now finished. Blocks for at most `wait_s`."""
        results: list[tuple[Ticket, Result]] = []
        # Variants share a router, yet each is polled: later variants' jobs may start more rounds in the same call.
        for number, simulator in self._variants.items():
            if any(setup == number for setup, _ in self._episodes):
                for ticket, result in simulator.poll_results(0.0 if results else wait_s):
                    results.append((self._episodes.pop((number, ticket)), result))
        if not results and self._pending and not self._episodes:
            self._simulator.router.step(wait_s)
        for ticket, (_, pending) in list(self._pending.items()):
            if pending.answered:
                del self._pending[ticket]
                results.append((ticket, pending.ordered_answers()))
        return results

    def _start(self, batch: JobBatch) -> None:
        """Start the jobs of a batch, in order."""
        number, simulator = batch.setup.number, self._variant(batch.setup)
        for ticket, job in batch.jobs.items():
            if isinstance(job, RequestBatch):
                self._pending[ticket] = number, simulator.submit_requests(job.requests, job.purpose)
            else:
                self._episodes[number, simulator.start_episode(*job)] = ticket

    def _cancel(self, tickets: frozenset[Ticket]) -> None:
        for (number, inner), ticket in list(self._episodes.items()):
            if ticket in tickets:
                del self._episodes[number, inner]
                self._variants[number].cancel([inner])
        for ticket in tickets & self._pending.keys():
            self._simulator.router.cancel(self._pending.pop(ticket)[1].tickets)

    def _variant(self, setup: PlaySetup) -> RolloutSimulator:
        """Return the simulator of a setup, built at its first batch."""
        simulator = self._variants.pop(setup.number, None)
        if simulator is None:
            simulator = self._simulator if setup.game is None else self._simulator.for_game(setup.game)
            simulator = simulator.variant(setup.casting, setup.engines)
            simulator.max_drops = _UNLIMITED_DROPS
        self._variants[setup.number] = simulator
        used = {number for number, _ in self._episodes} | {number for number, _ in self._pending.values()}
        idle = [number for number in self._variants if number not in used]
        for number in idle[: max(0, len(self._variants) - _MAX_SETUPS)]:
            del self._variants[number]
        return simulator


class ShardGroup(ABC):
    """All shards of a simulator, by number from 0, and their results until the caller takes them."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.tickets, self.setups = count(), count()
        """Counters of tickets and of setup numbers."""
        self.results: dict[Ticket, Result] = {}
        self.usage: dict[str, Usage] = {}
        """Policy -> its cost in the run, over all shards."""
        self.failures: list[str] = []
        """Messages of the shards' reports."""

    def cancel(self, tickets: Sequence[Ticket]) -> None:
        """Drop jobs and their results."""
        self.send(CancelJobs(frozenset(tickets)))
        for ticket in tickets:
            self.results.pop(ticket, None)

    @abstractmethod
    def submit(self, shard: int, batch: JobBatch) -> None:
        """Start a batch in one shard."""

    @abstractmethod
    def send(self, command: CancelJobs | LoadWeights | RestoreUsage | SetPolicy) -> None:
        """Execute a command in all shards, for jobs started from now on. Weights may be changed afterwards."""

    @abstractmethod
    def step(self, wait_s: float) -> None:
        """Add new results to `results`; wait for at most `wait_s` for the first.

        Raises:
            RunError, ValueError, TimeoutError: as a `RolloutSimulator` does; EngineError if no shard is left.
        """

    @abstractmethod
    def reports(self, command: EndStep | Sleep) -> list[ShardReport]:
        """Execute a command in all shards and return their reports."""

    def metrics(self) -> Metrics:
        """Return metrics of the shards' processes in the step, named `cluster/...`; empty without processes."""
        return {}

    def take_notes(self) -> list[str]:
        """Return messages about lost and replaced shards since the last call, for the run's log."""
        return []

    @abstractmethod
    def status(self) -> list[ProcessStatus]:
        """Return the activity of each shard; may be called from any thread."""


class LocalShardGroup(ShardGroup):
    """Shards in this process, which take turns."""

    def __init__(self, shards: Sequence[SimulatorShard]) -> None:
        super().__init__(len(shards))
        self._shards, self._began = shards, time.time()

    def submit(self, shard: int, batch: JobBatch) -> None:
        self._shards[shard].handle(batch)

    def send(self, command: CancelJobs | LoadWeights | RestoreUsage | SetPolicy) -> None:
        if isinstance(command, LoadWeights) and isinstance(command.weights, Iterable):
            command = replace(command, weights=list(command.weights))  # an iterator serves one shard only
        for shard in self._shards:
            shard.handle(command)

    def step(self, wait_s: float) -> None:
        busy = [shard for shard in self._shards if shard.open_jobs]
        for shard in busy:
            self.results.update(shard.step(wait_s / len(busy)))

    def reports(self, command: EndStep | Sleep) -> list[ShardReport]:
        reports = [shard.handle(command) for shard in self._shards]
        return [report for report in reports if report]

    def status(self) -> list[ProcessStatus]:
        statuses: list[ProcessStatus] = []
        for number, shard in enumerate(self._shards):
            statuses.append(ProcessStatus(f"simulator {number}", "", "here", self._began, shard.open_jobs))
        return statuses
