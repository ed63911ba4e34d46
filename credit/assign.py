"""Who earned it: the rewards of an episode -> what each turn is worth, on its own graph."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Self

from pydantic import Field, model_validator

from credit.teams import check_disjoint, named_teams
from marl.protocols import AssignConfig, Evidence
from marl.types import Advantage, Credit, Reward, TurnId

if TYPE_CHECKING:
    from marl.graph import Trajectory


class Outcome(AssignConfig):
    """Each turn is worth what its agent is paid in the episode."""

    kind: str = "outcome"
    to_go: bool = False
    """Count only what the agent is paid from this turn on."""

    def __call__(self, evidence: Evidence) -> Credit:
        credit: Credit = {}
        for trajectory in evidence.trajectories:
            credit.update(_to_go(trajectory) if self.to_go else _whole(trajectory))
        return credit


def _whole(trajectory: Trajectory) -> Credit:
    returns = trajectory.returns
    worth = {turn.agent: Advantage(returns.get(turn.agent, 0.0)) for turn in trajectory.turns}
    return {turn.id: worth[turn.agent] for turn in trajectory.turns}


def _to_go(trajectory: Trajectory) -> Credit:
    paid: dict[TurnId, list[Reward]] = defaultdict(list)
    for reward in trajectory.rewards:
        paid[reward.turn].append(reward)
    left: dict[str, float] = defaultdict(float)
    credit: Credit = {}
    for turn in reversed(trajectory.turns):
        for reward in paid.get(turn.id, ()):
            left[reward.agent] += reward.value
        credit[turn.id] = Advantage(left[turn.agent])
    return credit


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

    def __call__(self, evidence: Evidence) -> Credit:
        credit: Credit = {}
        for trajectory in evidence.trajectories:
            for team in named_teams(self.teams, trajectory, list(trajectory.deal.seats)):
                worth = self._worth(trajectory, team)
                credit.update((t.id, Advantage(worth.get(t.id, 0.0))) for t in trajectory.turns if t.agent in team)
        return credit

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
