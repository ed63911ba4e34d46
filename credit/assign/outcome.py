"""Rules that read the credit of a turn from the rewards and the graph of its own episode.

A turn that several episodes of the step share, because forks continue from it, is judged in the first: the one in which
it was sampled.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Self

from pydantic import Field, model_validator

from credit.assign.edges import EdgeAssign
from credit.assign.teams import Team, TeamAssign, check_disjoint, named_teams, to_credit
from marl.protocols import AssignConfig, Evidence
from marl.types import Credit, TurnId

if TYPE_CHECKING:
    from marl.graph import Trajectory

TurnValues = Iterator[tuple[TurnId, float]]
"""Turns of an episode, each with what it earned there."""


class Outcome(AssignConfig):
    """Each turn earns what its agent is paid in the episode."""

    kind: str = "outcome"
    to_go: bool = False
    """Count only what the agent is paid from this turn on."""

    @property
    def by_turn(self) -> bool:
        """Return True with `to_go`."""
        return self.to_go

    def __call__(self, evidence: Evidence) -> Credit:
        earned = _rewards_to_go if self.to_go else _returns
        return to_credit(pair for trajectory in evidence.trajectories for pair in earned(trajectory))


def _returns(trajectory: Trajectory) -> TurnValues:
    returns = trajectory.returns
    return ((turn.id, returns.get(turn.agent, 0.0)) for turn in trajectory.turns)


def _rewards_to_go(trajectory: Trajectory) -> TurnValues:
    rewards = defaultdict(list)
    for reward in trajectory.rewards:
        rewards[reward.turn].append(reward)
    to_go: dict[str, float] = defaultdict(float)
    for turn in reversed(trajectory.turns):
        for reward in rewards.get(turn.id, ()):
            to_go[reward.agent] += reward.value
        yield turn.id, to_go[turn.agent]


class Uniform(TeamAssign):
    """Each turn of a team's members earns all that the team is paid in the episode.

    As GRPO does if a whole conversation is one sample, and MAGRPO's joint return (arXiv 2508.04652).
    """

    kind: str = "uniform"

    def __call__(self, evidence: Evidence) -> Credit:
        return to_credit(pair for trajectory in evidence.trajectories for pair in self._shared(trajectory, evidence))

    def _shared(self, trajectory: Trajectory, evidence: Evidence) -> TurnValues:
        paid = {agent: total for agents, total in self.reward_pools(trajectory, evidence) for agent in agents}
        return ((turn.id, paid[turn.agent]) for turn in trajectory.turns if turn.agent in paid)


class LastSpeaker(TeamAssign):
    """The last turn of a team earns all that the team is paid in the episode, its other turns earn 0.

    As if only the final answer were trained. The credit of an episode sums to what was paid.
    """

    kind: str = "last_speaker"

    def __call__(self, evidence: Evidence) -> Credit:
        return to_credit(pair for trajectory in evidence.trajectories for pair in self._last(trajectory, evidence))

    def _last(self, trajectory: Trajectory, evidence: Evidence) -> TurnValues:
        pools = {agent: pool for pool in self.reward_pools(trajectory, evidence) for agent in pool[0]}
        for turn in reversed(trajectory.turns):
            if turn.agent in pools:
                agents, paid = pools[turn.agent]
                pools.update(dict.fromkeys(agents, (agents, 0.0)))
                yield turn.id, paid


class Flow(EdgeAssign):
    """A reward flows back along who-read-whom, within the payee's team.

    A turn keeps what reaches it and passes `decay` of that on, in equal parts, to the turns it had read; so a chain
    pays `decay ** hops`, a reward is never multiplied by the number of readers, and one backward pass does it:
    c(u) = r(u) + decay * sum over v that read u of c(v) / reads(v).
    """

    kind: str = "flow"
    decay: float = Field(default=0.9, ge=0, le=1)
    """Share of what a turn is worth that it passes back to the turns that it had read."""
    teams: tuple[tuple[str, ...], ...] = ()
    """Agents that share rewards; an agent in no team works for itself."""

    @model_validator(mode="after")
    def _check_teams(self) -> Self:
        check_disjoint(self.teams)
        return self

    def reward_pools(self, trajectory: Trajectory, evidence: Evidence) -> Sequence[tuple[frozenset[str], float]]:
        players = [agent for agent, role in trajectory.deal.seats.items() if role not in evidence.rules]
        teams = named_teams(self.teams, trajectory, players)
        return [(agents, Team(agents).total_reward(trajectory)) for agents in teams]

    def __call__(self, evidence: Evidence) -> Credit:
        return to_credit(pair for trajectory in evidence.trajectories for pair in self._passed_back(trajectory))

    def _passed_back(self, trajectory: Trajectory) -> TurnValues:
        for agents in named_teams(self.teams, trajectory, list(trajectory.deal.seats)):
            earned = self._flow(trajectory, agents)
            yield from ((turn.id, earned.get(turn.id, 0.0)) for turn in trajectory.turns if turn.agent in agents)

    def _flow(self, trajectory: Trajectory, agents: frozenset[str]) -> dict[TurnId, float]:
        """Return c(u) for the rewards of `agents`, over the whole graph."""
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
        return earned
