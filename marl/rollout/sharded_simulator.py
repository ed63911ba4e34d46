"""Simulator over several shards, each with engines of its own, in this process or in others.

The jobs alone decide which shard plays an episode. So the batches of every engine, and with them the last bits of
log-probabilities, depend neither on the location nor on the speed of shards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import cast

from marl.core.graph import Trajectory
from marl.core.seeds import seed_of
from marl.core.types import Completion, Deal, Fork, Metrics, Purpose, Request, Ticket, Usage
from marl.protocols import AddedPlayer, EngineConfig, GameConfig, RewardTransform, models
from marl.rollout.base import WAIT_S, BaseSimulator, EngineMap, EpisodeResult, ProcessStatus
from marl.rollout.casting import RoleCasting
from marl.rollout.request_router import Answer
from marl.rollout.shards import (
    EndStep,
    Job,
    JobBatch,
    LoadWeights,
    PlaySetup,
    RequestBatch,
    RestoreUsage,
    SetPolicy,
    ShardGroup,
    Sleep,
)


class ShardedSimulator(BaseSimulator):
    """Simulator whose episodes are played by shards. Reward transforms and the count of dropped episodes stay here."""

    def __init__(self, games: Mapping[str, GameConfig], casting: RoleCasting, shards: ShardGroup) -> None:
        super().__init__(games, casting, shards)
        self._shards = shards
        self._setup = PlaySetup(next(shards.setups), None, casting)
        self._open: dict[Ticket, tuple[Purpose, RewardTransform | None]] = {}
        """Episodes whose results were not collected yet."""

    def variant(self, casting: RoleCasting, engines: EngineMap | None = None) -> ShardedSimulator:
        """Return a variant as described in the base class.

        Raises:
            ValueError: if `engines` holds a built engine instead of settings, from which every shard can build its own.
        """
        settings = {name: engine for name, engine in (engines or {}).items() if isinstance(engine, EngineConfig)}
        if built := (engines or {}).keys() - settings.keys():
            raise ValueError(f"{', '.join(sorted(built))}: engines of this process cannot speak in another")
        setup = replace(self._setup, casting=casting, engines={**self._setup.engines, **settings})
        return self._sibling(self.games, setup)

    def for_game(self, name: str) -> ShardedSimulator:
        return self._sibling({"": self.games[name]}, replace(self._setup, game=name))

    def _sibling(self, games: Mapping[str, GameConfig], setup: PlaySetup) -> ShardedSimulator:
        other = ShardedSimulator(games, setup.casting, self._shards)
        other.tokens, other.critic = self.tokens, self.critic
        other._setup = replace(setup, number=other._setup.number)
        return other

    def start(self, work: Sequence[Deal | Fork], rewards: RewardTransform | None = None) -> list[Ticket]:
        starts = self._starts(work)
        tickets = self._submit(starts, starts[0][0].episode if starts else "")
        for ticket, (deal, _) in zip(tickets, starts, strict=True):
            self._open[ticket] = deal.purpose, rewards
        return tickets

    def _submit(self, jobs: Sequence[Job], name: str) -> list[Ticket]:
        """Divide jobs among the shards; return their tickets.

        Each shard gets neighbours, as episodes with equal starts read the same prompts. `name` chooses the first shard:
        otherwise a few jobs would always go to the same shard.
        """
        size = self._shards.size
        tickets = [next(self._shards.tickets) for _ in jobs]
        batches: dict[int, dict[Ticket, Job]] = {}
        first = seed_of("part", name) % size
        for index, (ticket, job) in enumerate(zip(tickets, jobs, strict=True)):
            shard = (first + index * size // len(jobs)) % size
            batches.setdefault(shard, {})[ticket] = job
        for shard, batch in batches.items():
            self._shards.submit(shard, JobBatch(self._setup, batch))
        return tickets

    def poll(self, wait_s: float) -> list[tuple[Ticket, Trajectory | None]]:
        if self._open and not self._open.keys() & self._shards.results.keys():
            self._shards.step(wait_s)
        finished = [ticket for ticket in self._shards.results if ticket in self._open]
        return [(ticket, self._collect(ticket)) for ticket in finished]

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        cancelled = [ticket for ticket in tickets if self._open.pop(ticket, None)]
        if cancelled:
            self._shards.cancel(cancelled)

    def _in_flight(self, ticket: Ticket) -> bool:
        return ticket in self._open and ticket not in self._shards.results

    def _collect(self, ticket: Ticket) -> Trajectory | None:
        purpose, rewards = self._open.pop(ticket)
        result = cast("EpisodeResult", self._shards.results.pop(ticket))
        self.tokens[purpose] += result.tokens
        if result.error:
            self.drop(result.error)
        if result.trajectory is None:
            self.unverified += result.error is None
            return None
        return rewards(result.trajectory) if rewards else result.trajectory

    def ask(self, requests: Sequence[Request], purpose: Purpose = "credit") -> list[Answer]:
        chunks, total = min(self._shards.size, len(requests)), len(requests)
        jobs: list[Job] = []
        for i in range(chunks):
            jobs.append(RequestBatch(requests[i * total // chunks : (i + 1) * total // chunks], purpose))
        tickets = self._submit(jobs, str(requests[0].seed) if requests else "")
        results, answers = self._shards.results, list[Answer]()
        try:
            while not results.keys() >= set(tickets):
                self._shards.step(WAIT_S)
            for ticket in tickets:
                answers += cast("list[Answer]", results.pop(ticket))
        finally:
            self._shards.cancel(tickets)
        self.tokens[purpose] += sum(len(answer.token_ids) for answer in answers if isinstance(answer, Completion))
        return answers

    def load_weights(self, policy: str, weights: models.Weights, version: int) -> None:
        self._shards.send(LoadWeights(policy, weights, version))

    def add_policy(self, name: str, player: AddedPlayer) -> None:
        self._shards.send(SetPolicy(name, player))

    def remove_policy(self, name: str) -> None:
        self._shards.send(SetPolicy(name, None))

    def take_failure_messages(self) -> list[str]:
        failures, self._shards.failures = self._shards.failures, []
        return self._shards.take_notes() + failures

    def status(self) -> list[ProcessStatus]:
        return self._shards.status()

    def end_step(self) -> Metrics:
        """Return metrics as described in the base class. A metric of several shards is their mean."""
        reports = self._shards.reports(EndStep())
        metrics = self._shards.metrics()
        usage = self.usage
        for report in reports:
            self._shards.failures += report.failures
            for policy, spent in report.spent.items():
                usage[policy] = usage.get(policy, Usage()) + spent
        # A remote engine stops at its budget, which holds for all shards together: each must know their sum.
        if usage:
            self.restore_usage(usage)
        names = dict.fromkeys(name for report in reports for name in report.metrics)
        for name in names:
            metrics[name] = fmean([report.metrics[name] for report in reports if name in report.metrics])
        return metrics

    def sleep(self) -> None:
        self._shards.reports(Sleep())

    @property
    def usage(self) -> dict[str, Usage]:
        return dict(self._shards.usage)

    def restore_usage(self, spent: Mapping[str, Usage]) -> None:
        self._shards.usage = dict(spent)
        self._shards.send(RestoreUsage(dict(spent)))
