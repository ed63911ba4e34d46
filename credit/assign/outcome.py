"""Who earned it: the rewards of an episode -> what each turn is worth, on its own graph.

A turn that several episodes of the step hold, because forks inherited it, is worth what it is in its own: the one in
which it was said.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Self

from pydantic import Field, model_validator

from credit.assign.teams import Team, TeamAssign, check_disjoint, named_teams
from credit.inherited import credit_of
from marl.protocols import AssignConfig, Evidence
from marl.types import Credit, Reward, TurnId

if TYPE_CHECKING:
    from marl.graph import Trajectory

Worths = Iterator[tuple[TurnId, float]]
"""Turns of an episode, each with what it is worth there."""


class Outcome(AssignConfig):
    """Each turn is worth what its agent is paid in the episode."""

    kind: str = "outcome"
    to_go: bool = False
    """Count only what the agent is paid from this turn on."""

    @property
    def by_turn(self) -> bool:
        """With `to_go`."""
        return self.to_go

    def __call__(self, evidence: Evidence) -> Credit:
        worths = _to_go if self.to_go else _whole
        return credit_of(pair for trajectory in evidence.trajectories for pair in worths(trajectory))


def _whole(trajectory: Trajectory) -> Worths:
    returns = trajectory.returns
    return ((turn.id, returns.get(turn.agent, 0.0)) for turn in trajectory.turns)


def _to_go(trajectory: Trajectory) -> Worths:
    paid: dict[TurnId, list[Reward]] = defaultdict(list)
    for reward in trajectory.rewards:
        paid[reward.turn].append(reward)
    left: dict[str, float] = defaultdict(float)
    for turn in reversed(trajectory.turns):
        for reward in paid.get(turn.id, ()):
            left[reward.agent] += reward.value
        yield turn.id, left[turn.agent]


class Uniform(TeamAssign):
    """Each turn of a team's members is worth all that the team is paid in the episode.

    What GRPO does when a whole conversation is one sample, and MAGRPO's joint return (arXiv 2508.04652).
    """

    kind: str = "uniform"

    def __call__(self, evidence: Evidence) -> Credit:
        return credit_of(pair for trajectory in evidence.trajectories for pair in self._shared(trajectory, evidence))

    def _shared(self, trajectory: Trajectory, evidence: Evidence) -> Worths:
        worth = {agent: paid for agents, paid in self.pots(trajectory, evidence) for agent in agents}
        return ((turn.id, worth[turn.agent]) for turn in trajectory.turns if turn.agent in worth)


class LastSpeaker(TeamAssign):
    """The last turn of a team is worth all that the team is paid in the episode, its other turns are worth 0.

    What a learner gets that trains on the final answer alone. The credit of an episode sums to what was paid.
    """

    kind: str = "last_speaker"

    def __call__(self, evidence: Evidence) -> Credit:
        return credit_of(pair for trajectory in evidence.trajectories for pair in self._ended(trajectory, evidence))

    def _ended(self, trajectory: Trajectory, evidence: Evidence) -> Worths:
        left = {agent: pot for pot in self.pots(trajectory, evidence) for agent in pot[0]}
        for turn in reversed(trajectory.turns):
            if turn.agent in left:
                agents, paid = left[turn.agent]
                left.update(dict.fromkeys(agents, (agents, 0.0)))
                yield turn.id, paid


class Flow(AssignConfig):
    """A reward flows back along who-read-whom, within the payee's team.

    A turn keeps what reaches it and passes `decay` of that on, in equal parts, to the turns it had read; so a chain
    pays `decay ** hops`, a reward is never multiplied by the number of readers, and one backward pass does it:
    c(u) = r(u) + decay * sum over v that read u of c(v) / reads(v).
    """

    kind: str = "flow"
    decay: float = Field(default=0.9, ge=0, le=1)
    teams: tuple[tuple[str, ...], ...] = ()
    """Agents that share rewards; an agent in no team works for itself."""

    @model_validator(mode="after")
    def _disjoint(self) -> Self:
        check_disjoint(self.teams)
        return self

    def pots(self, trajectory: Trajectory, evidence: Evidence) -> Sequence[tuple[frozenset[str], float]]:
        players = [agent for agent, role in trajectory.deal.seats.items() if role not in evidence.rules]
        return [(team, Team(team).worth(trajectory)) for team in named_teams(self.teams, trajectory, players)]

    def __call__(self, evidence: Evidence) -> Credit:
        return credit_of(pair for trajectory in evidence.trajectories for pair in self._flown(trajectory))

    def _flown(self, trajectory: Trajectory) -> Worths:
        for team in named_teams(self.teams, trajectory, list(trajectory.deal.seats)):
            worth = self._worth(trajectory, team)
            yield from ((turn.id, worth.get(turn.id, 0.0)) for turn in trajectory.turns if turn.agent in team)

    def _worth(self, trajectory: Trajectory, team: frozenset[str]) -> dict[TurnId, float]:
        worth: dict[TurnId, float] = defaultdict(float)
        for reward in trajectory.rewards:
            if reward.agent in team:
                worth[reward.turn] += reward.value
        reads = trajectory.graph.pred
        for turn in reversed(trajectory.turns):
            here, read = worth.get(turn.id, 0.0), reads[turn.id]
            if here and read:
                share = self.decay * here / len(read)
                for source in read:
                    worth[source] += share
        return worth
