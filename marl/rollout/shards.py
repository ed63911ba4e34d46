"""Shards of a simulator. Each shard runs jobs with its own engines; the run sends commands and collects results.

A job is an episode to play, or a batch of requests to answer.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, NamedTuple

from marl.core.types import Metrics, Purpose, Request, Ticket
from marl.core.usage import RemoteUsage
from marl.host.garbage_collection import collect_garbage_of_step
from marl.protocols import AddedPlayer, EngineConfig
from marl.rollout.base import FinishedEpisode, ProcessActivity
from marl.rollout.casting import RoleRequestBuilder
from marl.rollout.forks import EpisodeStart
from marl.rollout.request_router import Answer
from marl.rollout.simulator import RolloutSimulator, SubmittedRequests

_UNLIMITED_DROPS = 10**18
"""Maximum number of dropped episodes of a shard, in effect none: the run itself applies `schedule.max_drops`."""
_MAX_SETUPS = 16
"""Number of play setups for which a shard keeps a simulator. Beyond it, the least recently used idle ones go."""


@dataclass(frozen=True, slots=True)
class SimulatorVariantSettings:
    """Settings of a simulator variant, from which each shard builds one: game, roles and additional engines."""

    number: int
    """Unique number of the setup in its run."""
    game: str | None
    """Name of the only game, if deals name no game; None if every deal names its game."""
    casting: RoleRequestBuilder
    engines: Mapping[str, EngineConfig] = field(default_factory=dict)
    """Policy -> settings of an additional engine, which has no weights."""


class RequestBatch(NamedTuple):
    """Requests that one shard answers together, and the purpose for which their tokens are counted."""

    requests: Sequence[Request]
    purpose: Purpose


ShardJob = EpisodeStart | RequestBatch
"""Work of a shard under one ticket: an episode, or a batch of requests."""
ShardJobResult = FinishedEpisode | list[Answer]
"""Result of a job: of an episode, or the answers to a batch of requests in order."""


@dataclass(frozen=True, slots=True)
class StartJobsCommand:
    """Command to start jobs.

    If the shard is lost, all jobs of the batch are started again, because the composition of the engines' batches
    decides the last bits of the results.
    """

    setup: SimulatorVariantSettings
    jobs: Mapping[Ticket, ShardJob]


@dataclass(frozen=True, slots=True)
class CancelJobsCommand:
    """Command to cancel unfinished jobs."""

    tickets: frozenset[Ticket]


@dataclass(frozen=True, slots=True)
class LoadWeightsCommand:
    """Command to sample with new weights of a policy. Episodes in flight continue with the new weights."""

    policy: str
    weights: Any
    """Published weights (`Weights`), or a handle by which another process fetches the weights."""
    version: int


@dataclass(frozen=True, slots=True)
class RestoreUsageCommand:
    """Command to set the shard's cost counters to the total over all shards, because budgets hold for all together."""

    spent: Mapping[str, RemoteUsage]
    """Policy -> total cost and tokens of its answers, over all shards."""


@dataclass(frozen=True, slots=True)
class AddOrRemovePolicyCommand:
    """Command to add `player` as policy `name` for later jobs, or to remove the added policy if `player` is None."""

    name: str
    player: AddedPlayer | None


@dataclass(frozen=True, slots=True)
class ReportStepMetricsCommand:
    """Command to report the metrics, failures and costs of the training step."""


@dataclass(frozen=True, slots=True)
class EndStepCommand:
    """Command to end the training step without a report: the run has the newest `SimulatorShard.step_report`."""


@dataclass(frozen=True, slots=True)
class SleepCommand:
    """Command to free the memory of engines until their next request. The shard replies with an empty report."""


BroadcastCommand = CancelJobsCommand | LoadWeightsCommand | RestoreUsageCommand | AddOrRemovePolicyCommand
"""Command that all shards of a simulator execute."""
ShardCommand = StartJobsCommand | BroadcastCommand | ReportStepMetricsCommand | EndStepCommand | SleepCommand


@dataclass(slots=True)
class ShardStepReport:
    """Metrics, failures and costs of one shard in a training step so far."""

    metrics: Metrics = field(default_factory=dict)
    """Metrics of the shard's engines, as `policy/NAME/...`."""
    failures: list[str] = field(default_factory=list)
    """Messages about failed requests."""
    spent: dict[str, RemoteUsage] = field(default_factory=dict)
    """Policy -> cost and tokens of its answers."""


class SimulatorShard:
    """One shard of a simulator, which executes batches of jobs with its own engines."""

    def __init__(self, simulator: RolloutSimulator) -> None:
        self._simulator = simulator
        simulator.drops.limit = _UNLIMITED_DROPS
        self._variants: dict[int, RolloutSimulator] = {}
        """Number of a setup -> simulator with this setup. The most recently used setup is the last."""
        self._episodes: dict[tuple[int, Ticket], Ticket] = {}
        """(number of the setup, ticket of the setup's simulator) -> ticket of the job."""
        self._pending: dict[Ticket, tuple[int, SubmittedRequests]] = {}
        """Ticket of the job -> number of the setup, and the requests."""
        self._reported: dict[str, RemoteUsage] = {}
        """Policy -> usage at the end of the last step or at the last `RestoreUsageCommand`."""
        self._failures: list[str] = []
        """Messages about failed requests of this step."""

    @property
    def open_job_count(self) -> int:
        """Number of unfinished jobs."""
        return len(self._episodes) + len(self._pending)

    def program_engine_activities(self) -> list[ProcessActivity]:
        """Return the activity of each engine that runs programs."""
        return self._simulator.process_activities()

    def execute(self, command: ShardCommand) -> ShardStepReport | None:
        """Execute `command`. Return a report for `ReportStepMetricsCommand` and `SleepCommand`, else None."""
        simulator = self._simulator
        match command:
            case StartJobsCommand(setup, jobs):
                variant = self._simulator_with_settings(setup)
                # A builder that was sent to another process does not see later changes of learned instructions.
                variant.casting.instructions = setup.casting.instructions
                for ticket, job in jobs.items():
                    if isinstance(job, RequestBatch):
                        submitted = variant.submit_requests(job.requests, job.purpose)
                        self._pending[ticket] = setup.number, submitted
                    else:
                        self._episodes[setup.number, variant.start_episode(*job)] = ticket
            case CancelJobsCommand(tickets):
                for (number, episode_ticket), ticket in list(self._episodes.items()):
                    if ticket in tickets:
                        del self._episodes[number, episode_ticket]
                        self._variants[number].cancel([episode_ticket])
                for ticket in tickets & self._pending.keys():
                    simulator.router.cancel(self._pending.pop(ticket)[1].tickets)
            case LoadWeightsCommand(policy, weights, version):
                simulator.load_weights(policy, weights, version)
            case RestoreUsageCommand(spent):
                simulator.restore_usage(spent)
                self._reported = dict(simulator.usage_by_policy)
            case AddOrRemovePolicyCommand(name, player):
                if player:
                    simulator.add_policy(name, player)
                else:
                    simulator.remove_policy(name)
            case SleepCommand():
                simulator.put_engines_to_sleep()
                return ShardStepReport()
            case ReportStepMetricsCommand():
                report = self.step_report()
                self.execute(EndStepCommand())
                return report
            case EndStepCommand():
                simulator.end_step()
                collect_garbage_of_step()
                self._reported, self._failures = dict(simulator.usage_by_policy), []
        return None

    def step_report(self) -> ShardStepReport:
        """Return the metrics, failures and costs of the training step so far."""
        self._failures += self._simulator.take_failure_messages()
        spent: dict[str, RemoteUsage] = {}
        for policy, usage in self._simulator.usage_by_policy.items():
            spent[policy] = usage - self._reported.get(policy, RemoteUsage())
        return ShardStepReport(self._simulator.step_metrics(), list(self._failures), spent)

    def step(self, wait_s: float) -> list[tuple[Ticket, ShardJobResult]]:
        """Advance all jobs and return (ticket, result) of each finished job. Wait at most `wait_s` for the first."""
        results: list[tuple[Ticket, ShardJobResult]] = []
        # Every variant is polled, although all share a router: its finished jobs may start further rounds.
        for number, variant in self._variants.items():
            if number in {setup_number for setup_number, _ in self._episodes}:
                for ticket, result in variant.poll_results(0.0 if results else wait_s):
                    results.append((self._episodes.pop((number, ticket)), result))
        if not results and self._pending and not self._episodes:
            self._simulator.router.step(wait_s)
        for ticket, (_, submitted) in list(self._pending.items()):
            answers = submitted.answers_if_complete()
            if answers is not None:
                del self._pending[ticket]
                results.append((ticket, answers))
        return results

    def _simulator_with_settings(self, setup: SimulatorVariantSettings) -> RolloutSimulator:
        """Return this shard's simulator with the settings `setup`, which is built at the first use of `setup`."""
        variant = self._variants.pop(setup.number, None)
        if variant is None:
            variant = self._simulator.variant(setup.casting, setup.engines, setup.game)
        self._variants[setup.number] = variant
        used = {number for number, _ in (*self._episodes, *self._pending.values())}
        idle = [number for number in self._variants if number not in used]
        for number in idle[: max(0, len(self._variants) - _MAX_SETUPS)]:
            del self._variants[number]
        return variant


class ShardGroup(ABC):
    """All shards of a simulator, numbered from 0, and the results of their jobs until the simulator takes them."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.tickets, self.setups = count(), count()
        """Counters of tickets and of setup numbers."""
        self.results: dict[Ticket, ShardJobResult] = {}
        """Ticket of a finished job -> result that the simulator has not taken yet."""
        self.usage_by_policy: dict[str, RemoteUsage] = {}
        """Policy -> total cost of its answers in the run, over all shards."""
        self.failures: list[str] = []
        """Messages of the shards' reports that the simulator has not taken yet."""

    def cancel(self, tickets: Sequence[Ticket]) -> None:
        """Cancel the jobs of `tickets`, and delete their results."""
        self.send_command(CancelJobsCommand(frozenset(tickets)))
        for ticket in tickets:
            self.results.pop(ticket, None)

    @abstractmethod
    def submit(self, shard_index: int, batch: StartJobsCommand) -> None:
        """Start the jobs of `batch` in the shard with number `shard_index`."""

    @abstractmethod
    def send_command(self, command: BroadcastCommand) -> None:
        """Execute `command` in all shards, before any later job. Weights in `command` are copied or sent at once."""

    @abstractmethod
    def step(self, wait_s: float) -> None:
        """Advance all jobs and add new results to `results`. Wait at most `wait_s` seconds for the first result.

        Raises:
            RunError, ValueError, TimeoutError: as `RolloutSimulator.poll`; EngineError if no shard is left.
        """

    @abstractmethod
    def collect_reports(self, command: ReportStepMetricsCommand | SleepCommand) -> list[ShardStepReport]:
        """Execute `command` in all shards and return one report per shard."""

    def metrics_of_processes(self) -> Metrics:
        """Return the step's metrics of the shards' processes, named `cluster/...`; {} if shards run in this process."""
        return {}

    def take_lost_shard_messages(self) -> list[str]:
        """Return messages about lost and replaced shards since the last call, for the run's log."""
        return []

    @abstractmethod
    def process_activities(self) -> list[ProcessActivity]:
        """Return the present activity of each shard. This method is thread-safe."""


class LocalShardGroup(ShardGroup):
    """Shards in this process, stepped one after the other."""

    def __init__(self, shards: Sequence[SimulatorShard]) -> None:
        super().__init__(len(shards))
        self._shards, self._began = shards, time.time()

    def submit(self, shard_index: int, batch: StartJobsCommand) -> None:
        self._shards[shard_index].execute(batch)

    def send_command(self, command: BroadcastCommand) -> None:
        if isinstance(command, LoadWeightsCommand) and isinstance(command.weights, Iterable):
            # An iterator is turned into a list, because the first shard would exhaust it.
            command = replace(command, weights=list(command.weights))
        for shard in self._shards:
            shard.execute(command)

    def step(self, wait_s: float) -> None:
        busy = [shard for shard in self._shards if shard.open_job_count]
        for shard in busy:
            self.results.update(shard.step(wait_s / len(busy)))

    def collect_reports(self, command: ReportStepMetricsCommand | SleepCommand) -> list[ShardStepReport]:
        return [report for shard in self._shards if (report := shard.execute(command))]

    def process_activities(self) -> list[ProcessActivity]:
        statuses: list[ProcessActivity] = []
        for number, shard in enumerate(self._shards):
            statuses.append(ProcessActivity(f"simulator {number}", "", "here", self._began, shard.open_job_count))
            statuses += shard.program_engine_activities()
        return statuses
