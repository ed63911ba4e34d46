"""Simulator over several shards, in this process or in others. Each shard has separate engines.

The order of the episodes alone decides which shard plays an episode. So the batches of every engine, and with them the
last bits of log-probabilities, depend neither on the location nor on the speed of shards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import cast

from marl.core.graph import Trajectory
from marl.core.seeds import episode_name_for_seeding, hash_to_seed
from marl.core.types import Completion, Deal, Fork, Metrics, Purpose, Request, Ticket
from marl.core.usage import RemoteUsage
from marl.protocols import AddedPlayer, EngineConfig, GameConfig, RewardTransform, models
from marl.rollout.base import WAIT_S, BaseSimulator, EngineMap, FinishedEpisode, ProcessActivity
from marl.rollout.casting import RoleRequestBuilder
from marl.rollout.request_router import Answer
from marl.rollout.shards import (
    AddOrRemovePolicyCommand,
    LoadWeightsCommand,
    ReportStepMetricsCommand,
    RequestBatch,
    RestoreUsageCommand,
    ShardGroup,
    ShardJob,
    SimulatorVariantSettings,
    SleepCommand,
    StartJobsCommand,
)


class ShardedSimulator(BaseSimulator):
    """Simulator whose episodes are played by shards. It applies reward transforms and counts dropped episodes itself.

    Reward transforms never leave the run's process, because not all functions can be sent to another process.
    """

    def __init__(self, games: Mapping[str, GameConfig], casting: RoleRequestBuilder, shards: ShardGroup) -> None:
        super().__init__(games, casting, shards.step)
        self._shards = shards
        self._setup = SimulatorVariantSettings(next(shards.setups), None, casting)
        self._open: dict[Ticket, tuple[Purpose, RewardTransform | None]] = {}
        """Episode whose result was not collected yet -> its purpose and its reward transform."""

    def variant(
        self, casting: RoleRequestBuilder, engines: EngineMap | None = None, game: str | None = None
    ) -> ShardedSimulator:
        """Return a variant as `BaseSimulator.variant` does.

        Raises:
            ValueError: if `engines` has a built engine instead of settings from which every shard can build an engine.
        """
        settings = {name: engine for name, engine in (engines or {}).items() if isinstance(engine, EngineConfig)}
        if built := (engines or {}).keys() - settings.keys():
            raise ValueError(f"{', '.join(sorted(built))}: engines of this process cannot speak in another")
        games = self.games if game is None else {"": self.games[game]}
        other = ShardedSimulator(games, casting, self._shards)
        other.tokens, other.critic, other.drops = self.tokens, self.critic, self.drops
        other._setup = replace(
            other._setup,
            # Shards build their own simulators from this setup, so it contains the new game and engines.
            game=self._setup.game if game is None else game,
            engines={**self._setup.engines, **settings},
        )
        return other

    def start(
        self, deals_and_forks: Sequence[Deal | Fork], reward_transform: RewardTransform | None = None
    ) -> list[Ticket]:
        starts = self.fork_names.episode_starts(deals_and_forks)
        tickets = self._submit_to_shards(starts, starts[0][0].episode if starts else "")
        for ticket, (deal, _) in zip(tickets, starts, strict=True):
            self._open[ticket] = deal.purpose, reward_transform
        return tickets

    def _submit_to_shards(self, jobs: Sequence[ShardJob], first_job_name: str) -> list[Ticket]:
        """Divide `jobs` among the shards and return the tickets of the jobs.

        Each shard gets consecutive jobs, because episodes with equal starts read the same prompts. A hash of
        `first_job_name`, a name of the first job, chooses the first shard. Otherwise few jobs would always go to the
        same shard.
        """
        size = self._shards.size
        tickets = [next(self._shards.tickets) for _ in jobs]
        batches: dict[int, dict[Ticket, ShardJob]] = {}
        first = hash_to_seed("part", episode_name_for_seeding(first_job_name)) % size
        for index, (ticket, job) in enumerate(zip(tickets, jobs, strict=True)):
            shard = (first + index * size // len(jobs)) % size
            batches.setdefault(shard, {})[ticket] = job
        for shard, batch in batches.items():
            self._shards.submit(shard, StartJobsCommand(self._setup, batch))
        return tickets

    def poll(self, wait_s: float) -> list[tuple[Ticket, Trajectory | None]]:
        if self._open and not self._open.keys() & self._shards.results.keys():
            self._shards.step(wait_s)
        finished = [ticket for ticket in self._shards.results if ticket in self._open]
        return [(ticket, self._take_trajectory(ticket)) for ticket in finished]

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        cancelled = [ticket for ticket in tickets if self._open.pop(ticket, None)]
        if cancelled:
            self._shards.cancel(cancelled)

    def _is_in_flight(self, ticket: Ticket) -> bool:
        return ticket in self._open and ticket not in self._shards.results

    def _take_trajectory(self, ticket: Ticket) -> Trajectory | None:
        purpose, rewards = self._open.pop(ticket)
        result = cast("FinishedEpisode", self._shards.results.pop(ticket))
        self.tokens[purpose] += result.tokens
        if result.error:
            self.count_dropped_episode(result.error)
        if result.trajectory is None:
            self.unverified += result.error is None
            return None
        if rewards:
            return rewards(result.trajectory)
        result.trajectory.compressed_line = result.compressed_line
        return result.trajectory

    def ask(self, requests: Sequence[Request], purpose: Purpose = "credit") -> list[Answer]:
        total = len(requests)
        batches = min(self._shards.size, total)
        jobs: list[ShardJob] = []
        for batch in range(batches):
            first, end = batch * total // batches, (batch + 1) * total // batches
            jobs.append(RequestBatch(requests[first:end], purpose))
        tickets = self._submit_to_shards(jobs, str(requests[0].seed) if requests else "")
        results, answers = self._shards.results, list[Answer]()
        try:
            while not results.keys() >= set(tickets):
                self._shards.step(WAIT_S)
            for ticket in tickets:
                answers += cast("list[Answer]", results.pop(ticket))
        finally:
            self._shards.cancel(tickets)
        for answer in answers:
            if isinstance(answer, Completion):
                self.tokens[purpose] += len(answer.token_ids) - answer.prefix_tokens
        return answers

    def load_weights(self, policy: str, weights: models.Weights, version: int) -> None:
        self._shards.send_command(LoadWeightsCommand(policy, weights, version))

    def add_policy(self, policy_name: str, player: AddedPlayer) -> None:
        self._shards.send_command(AddOrRemovePolicyCommand(policy_name, player))

    def remove_policy(self, policy_name: str) -> None:
        self._shards.send_command(AddOrRemovePolicyCommand(policy_name, None))

    def take_failure_messages(self) -> list[str]:
        failures, self._shards.failures = self._shards.failures, []
        return [*self._shards.take_lost_shard_messages(), *failures]

    def process_activities(self) -> list[ProcessActivity]:
        return self._shards.process_activities()

    def take_step_metrics(self) -> Metrics:
        """Return the metrics of the training step. An engine's metric is the mean over the shards that report it."""
        reports = self._shards.collect_reports(ReportStepMetricsCommand())
        # Reports come first, because the process metrics include the time of waiting for them.
        metrics, usage = self._shards.metrics_of_processes(), self.usage_by_policy
        values_of_shards: dict[str, list[float]] = {}
        for report in reports:
            self._shards.failures += report.failures
            for policy, spent in report.spent.items():
                usage[policy] = usage.get(policy, RemoteUsage()) + spent
            for name, value in report.metrics.items():
                values_of_shards.setdefault(name, []).append(value)
        # Remote engines share one budget over all shards, so each shard is told the total cost.
        if usage:
            self.restore_usage(usage)
        for name, values in values_of_shards.items():
            metrics[name] = fmean(values)
        return metrics

    def put_engines_to_sleep(self) -> None:
        self._shards.collect_reports(SleepCommand())

    @property
    def usage_by_policy(self) -> dict[str, RemoteUsage]:
        return dict(self._shards.usage_by_policy)

    def restore_usage(self, usage_by_policy: Mapping[str, RemoteUsage]) -> None:
        self._shards.usage_by_policy = dict(usage_by_policy)
        self._shards.send_command(RestoreUsageCommand(dict(usage_by_policy)))
