"""Rules that compute the credit of a turn from the rewards and the graph of its own episode.

A turn that several episodes of the step share, because forks continue from it, gets its credit from the first episode,
in which it was sampled.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Self

from pydantic import Field, model_validator

from marl.core.graph import Trajectory
from marl.core.types import Credit, TurnId
from marl.credit.assign.edges import EdgeAssign
from marl.credit.assign.teams import Team, TeamAssign, check_disjoint, credit_from_first, named_teams
from marl.protocols import AssignConfig, Evidence

TurnValues = Iterator[tuple[TurnId, float]]
"""Turns of an episode with their credit."""


class Outcome(AssignConfig):
    """Each turn earns its agent's return in the episode."""

    kind: str = "outcome"
    to_go: bool = False
    """Count only the agent's rewards from this turn on."""

    @property
    def by_turn(self) -> bool:
        """Return True with `to_go`: then turns of an agent may earn different amounts."""
        return self.to_go

    def __call__(self, evidence: Evidence) -> Credit:
        return credit_from_first(chain.from_iterable(map(self._episode, evidence.trajectories)))

    def _episode(self, trajectory: Trajectory) -> TurnValues:
        if not self.to_go:
            returns = trajectory.returns
            for turn in trajectory.turns:
                yield turn.id, returns.get(turn.agent, 0.0)
            return
        rewards = defaultdict(list)
        for reward in trajectory.rewards:
            rewards[reward.turn].append(reward)
        to_go: dict[str, float] = defaultdict(float)
        for turn in reversed(trajectory.turns):
            for reward in rewards.get(turn.id, ()):
                to_go[reward.agent] += reward.value
            yield turn.id, to_go[turn.agent]


class Uniform(TeamAssign):
    """Each turn of a team's members earns the full reward of the team in the episode.

    As in GRPO on a conversation as one sample, and in MAGRPO's joint return (arXiv 2508.04652).
    """

    kind: str = "uniform"

    def __call__(self, evidence: Evidence) -> Credit:
        def episode(trajectory: Trajectory) -> TurnValues:
            reward_of: dict[str, float] = {}
            for agents, reward in self.reward_pools(trajectory, evidence):
                reward_of.update(dict.fromkeys(agents, reward))
            for turn in trajectory.turns:
                if turn.agent in reward_of:
                    yield turn.id, reward_of[turn.agent]

        return credit_from_first(chain.from_iterable(map(episode, evidence.trajectories)))


class LastSpeaker(TeamAssign):
    """The last turn of a team earns the team's reward in the episode; its other turns earn 0.

    As if only the final answer were trained. The credit of an episode sums to its reward.
    """

    kind: str = "last_speaker"

    def __call__(self, evidence: Evidence) -> Credit:
        def episode(trajectory: Trajectory) -> TurnValues:
            pools: dict[str, tuple[frozenset[str], float]] = {}
            for pool in self.reward_pools(trajectory, evidence):
                pools.update(dict.fromkeys(pool[0], pool))
            for turn in reversed(trajectory.turns):
                if turn.agent in pools:
                    agents, reward = pools[turn.agent]
                    # The team's earlier turns, which come next in this order, earn 0.
                    pools.update(dict.fromkeys(agents, (agents, 0.0)))
                    yield turn.id, reward

        return credit_from_first(chain.from_iterable(map(episode, evidence.trajectories)))


class Flow(EdgeAssign):
    """A reward flows back from readers to the turns that they read, within the team of the rewarded agent.

    A turn keeps its credit and passes `decay` times it, in equal parts, to the turns that it read. So a chain pays
    `decay ** hops`, and the number of readers does not multiply a reward. One backward pass computes
    c(u) = r(u) + decay * sum over v that read u of c(v) / reads(v).
    """

    kind: str = "flow"
    decay: float = Field(default=0.9, ge=0, le=1)
    """Share of a turn's credit that is passed back to the turns that it read."""
    teams: tuple[tuple[str, ...], ...] = ()
    """Agents that share rewards; an agent in no team gets only its own rewards."""

    @model_validator(mode="after")
    def _check_teams(self) -> Self:
        check_disjoint(self.teams)
        return self

    def reward_pools(self, trajectory: Trajectory, evidence: Evidence) -> Sequence[tuple[frozenset[str], float]]:
        players = [agent for agent, role in trajectory.deal.seats.items() if role not in evidence.rule_based_roles]
        teams = named_teams(self.teams, trajectory, players)
        return [(agents, Team(agents).total_reward(trajectory)) for agents in teams]

    def __call__(self, evidence: Evidence) -> Credit:
        return credit_from_first(chain.from_iterable(map(self._episode, evidence.trajectories)))

    def _episode(self, trajectory: Trajectory) -> TurnValues:
        for agents in named_teams(self.teams, trajectory, list(trajectory.deal.seats)):
            # Over the full graph: a reward also flows through turns of other teams, which keep nothing of it.
            earned: dict[TurnId, float] = defaultdict(float)
            for reward in trajectory.rewards:
                if reward.agent in agents:
                    earned[reward.turn] += reward.value
            for turn in reversed(trajectory.turns):
                value = earned.get(turn.id, 0.0)
                if value and (sources := trajectory.sources(turn.id, self.along)):
                    share = self.decay * value / len(sources)
                    for source in sources:
                        earned[source] += share
            for turn in trajectory.turns:
                if turn.agent in agents:
                    yield turn.id, earned.get(turn.id, 0.0)
