"""Teams of agents that share a reward, and what all rules of credit need."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from pydantic import model_validator

from marl.protocols import AssignConfig, Evidence
from marl.types import Advantage, Credit, Metrics, TurnId

if TYPE_CHECKING:
    from marl.graph import Trajectory
    from marl.types import Turn

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Team:
    """Agents that share what they are paid in one episode."""

    agents: frozenset[str]
    share: float = 1.0
    """Factor of a reward to one of them."""

    def total_reward(self, trajectory: Trajectory) -> float:
        """Return what the team is paid in the episode."""
        return self.share * sum(reward.value for reward in trajectory.rewards if reward.agent in self.agents)

    def turns(self, trajectory: Trajectory) -> list[Turn]:
        """Return the team's turns, in playing order."""
        return [turn for turn in trajectory.turns if turn.agent in self.agents]


class TeamAssign(AssignConfig):
    """Base of rules that divide what a team is paid together."""

    teams: tuple[tuple[str, ...], ...] = ()
    """Agents that share rewards; agents in none of them share with nobody. Default: all are one team."""
    common: Literal["sum", "mean"] = "sum"
    """A team's reward: its agents' rewards together, or their mean (for games that pay the same to all)."""

    @model_validator(mode="after")
    def _check_teams(self) -> Self:
        check_disjoint(self.teams)
        return self

    def teams_of(self, trajectory: Trajectory, evidence: Evidence) -> list[Team]:
        """Return the teams of an episode. Seats that answer by rule, such as verifiers, are in none.

        Raises:
            ValueError: if `teams` names an agent that the game does not have.
        """
        players = [agent for agent, role in trajectory.deal.seats.items() if role not in evidence.rules]
        groups = named_teams(self.teams, trajectory, players) if self.teams else [frozenset(players)]
        return [Team(agents, 1.0 if self.common == "sum" else 1 / len(agents)) for agents in groups if agents]

    def reward_pools(self, trajectory: Trajectory, evidence: Evidence) -> Sequence[tuple[frozenset[str], float]]:
        return [(team.agents, team.total_reward(trajectory)) for team in self.teams_of(trajectory, evidence)]


class StatelessRule:
    """Base of working parts that remember nothing but the figures of their last step."""

    def __init__(self, needs: frozenset[str] = frozenset()) -> None:
        self.needs = needs
        self._metrics: Metrics = {}

    def metrics(self) -> Metrics:
        """Return figures of the last step, named `credit/...`."""
        return dict(self._metrics)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore nothing: there is no state."""


def named_teams(teams: Sequence[Sequence[str]], trajectory: Trajectory, players: Sequence[str]) -> list[frozenset[str]]:
    """Return `teams`, and each of the other `players` alone.

    Raises:
        ValueError: if `teams` names an agent that the game does not have.
    """
    agents, teamed = set(trajectory.deal.seats), {agent for team in teams for agent in team}
    if strangers := sorted(teamed - agents):
        raise ValueError(f"teams: no agent {strangers[0]!r} in this game; agents: {', '.join(sorted(agents))}")
    return [frozenset(team) for team in teams] + [frozenset({agent}) for agent in sorted(set(players) - teamed)]


def check_disjoint(teams: Sequence[Sequence[str]]) -> None:
    """Raises:
    ValueError: if an agent is in more than one team.
    """
    agents = [agent for team in teams for agent in team]
    for agent in agents:
        if agents.count(agent) > 1:
            raise ValueError(f"teams: {agent!r} is in more than one: {[list(team) for team in teams]}")


def first_values(values: Iterable[tuple[Key, float]]) -> dict[Key, float]:
    """Return the first value of each turn (or token): that of the episode in which it was sampled.

    A turn that forks share is in several episodes. Its value is not the mean over them: experience forks where an
    episode ended well, and the mean of a lucky course and of fresh ones would be compared with unlucky courses that
    are never played again.
    """
    first: dict[Key, float] = {}
    for key, value in values:
        first.setdefault(key, value)
    return first


def to_credit(values: Iterable[tuple[TurnId, float]]) -> Credit:
    """Return the first value of each turn as credit."""
    return {turn: Advantage(value) for turn, value in first_values(values).items()}
