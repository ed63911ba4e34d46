"""Who shares what they are paid: the players among whom credit is divided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

from pydantic import model_validator

from marl.protocols import AssignConfig, Evidence

if TYPE_CHECKING:
    from marl.graph import Trajectory
    from marl.types import Turn


@dataclass(frozen=True, slots=True)
class Team:
    """Agents that share what they are paid in one episode."""

    agents: frozenset[str]
    share: float = 1.0
    """What a reward to one of them counts."""

    def worth(self, trajectory: Trajectory) -> float:
        """What the team is paid in the episode."""
        return self.share * sum(reward.value for reward in trajectory.rewards if reward.agent in self.agents)

    def turns(self, trajectory: Trajectory) -> list[Turn]:
        """Its turns, in playing order."""
        return [turn for turn in trajectory.turns if turn.agent in self.agents]


class TeamAssign(AssignConfig):
    """Base of rules that divide what a team is paid together."""

    teams: tuple[tuple[str, ...], ...] = ()
    """Agents that share rewards; agents in none of them share with nobody. Default: all are one team."""
    common: Literal["sum", "mean"] = "sum"
    """What a team is paid: its agents' rewards together, or their mean (for games that pay the same to all)."""

    @model_validator(mode="after")
    def _disjoint(self) -> Self:
        check_disjoint(self.teams)
        return self

    def teams_of(self, trajectory: Trajectory, evidence: Evidence) -> list[Team]:
        """The teams of an episode. Seats that answer by rule, such as verifiers, are in none.

        Raises:
            ValueError: if `teams` names an agent that the game does not have.
        """
        players = [agent for agent, role in trajectory.deal.seats.items() if role not in evidence.rules]
        found = named_teams(self.teams, trajectory, players) if self.teams else [frozenset(players)]
        return [Team(agents, 1.0 if self.common == "sum" else 1 / len(agents)) for agents in found if agents]

    def pots(self, trajectory: Trajectory, evidence: Evidence) -> Sequence[tuple[frozenset[str], float]]:
        return [(team.agents, team.worth(trajectory)) for team in self.teams_of(trajectory, evidence)]


def named_teams(teams: Sequence[Sequence[str]], trajectory: Trajectory, players: Sequence[str]) -> list[frozenset[str]]:
    """`teams`, and each of the other `players` alone.

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
