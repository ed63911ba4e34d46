"""Teams of agents that share a reward, and base classes of credit rules for teams."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal, Self

from pydantic import model_validator

from marl.core.graph import Trajectory
from marl.core.state import StatelessPlugin
from marl.core.types import Advantage, Credit, Turn, TurnId
from marl.protocols import AssignConfig, Evidence


@dataclass(frozen=True, slots=True)
class CreditTeam:
    """Agents that share their rewards in one episode."""

    agents: frozenset[str]
    reward_scale: float = 1.0
    """Factor that multiplies the sum of the agents' rewards in the team's reward."""

    def total_reward(self, trajectory: Trajectory) -> float:
        """Return the team's reward in the episode."""
        # The sum is scaled once, not reward by reward, because the order of operations changes the last bits.
        return self.reward_scale * sum(reward.value for reward in trajectory.rewards if reward.agent in self.agents)

    def rewards_by_turn(self, trajectory: Trajectory) -> dict[TurnId, float]:
        """Return turn -> the team's reward at that turn, for turns with a reward."""
        rewards: dict[TurnId, float] = {}
        for reward in trajectory.rewards:
            if reward.agent in self.agents:
                rewards[reward.turn] = rewards.get(reward.turn, 0.0) + self.reward_scale * reward.value
        return rewards

    def turns(self, trajectory: Trajectory) -> list[Turn]:
        """Return the team's turns, in playing order."""
        return [turn for turn in trajectory.turns if turn.agent in self.agents]


class TeamAssign(AssignConfig):
    """Base of rules that credit turns with the reward of a team."""

    teams: tuple[tuple[str, ...], ...] = ()
    """Teams: lists of agents that share their rewards. An agent in no team shares with nobody (default: all agents are
    one team)."""
    common: Literal["sum", "mean"] = "sum"
    """A team's reward: the sum of its agents' rewards, or their mean (for games that pay all agents the same)."""

    @model_validator(mode="after")
    def _check_teams_disjoint(self) -> Self:
        check_teams_disjoint(self.teams)
        return self

    def teams_in_trajectory(self, trajectory: Trajectory, evidence: Evidence) -> list[CreditTeam]:
        """Return the teams of an episode. Rule-based seats, such as verifiers, are in no team.

        Raises:
            ValueError: if `teams` names an agent that the game does not have.
        """
        players = evidence.non_rule_based_agents(trajectory)
        groups = add_single_agent_teams(self.teams, trajectory, players) if self.teams else [frozenset(players)]
        # A team has no agents if all its seats have rule-based policies in this episode; such a team is left out.
        return [CreditTeam(agents, 1.0 if self.common == "sum" else 1 / len(agents)) for agents in groups if agents]

    def agent_groups_with_shared_reward(
        self, trajectory: Trajectory, evidence: Evidence
    ) -> Sequence[tuple[frozenset[str], float]]:
        return [(team.agents, team.total_reward(trajectory)) for team in self.teams_in_trajectory(trajectory, evidence)]


class StatelessAssignRule(StatelessPlugin):
    """Base of built `assign` rules that keep only the metrics of their last step."""

    needed_reading_fields: frozenset[str] = frozenset()


def add_single_agent_teams(
    teams: Sequence[Sequence[str]], trajectory: Trajectory, credited_agents: Sequence[str]
) -> list[frozenset[str]]:
    """Return `teams`, and a team of one agent for each agent of `credited_agents` that is in no team.

    Raises:
        ValueError: if `teams` names an agent that the game does not have.
    """
    agents, members = set(trajectory.deal.seats), set(chain.from_iterable(teams))
    if strangers := sorted(members - agents):
        raise ValueError(f"teams: no agent {strangers[0]!r} in this game; agents: {', '.join(sorted(agents))}")
    alone = [frozenset({agent}) for agent in sorted(set(credited_agents) - members)]
    return [*map(frozenset, teams), *alone]


def check_teams_disjoint(teams: Sequence[Sequence[str]]) -> None:
    """Raise ValueError if an agent is in more than one of `teams`."""
    counts = Counter(chain.from_iterable(teams))
    for agent, count in counts.items():
        if count > 1:
            raise ValueError(f"teams: {agent!r} is in more than one: {list(map(list, teams))}")


def credit_by_first_value(turn_value_pairs: Iterable[tuple[TurnId, float | Advantage]]) -> Credit:
    """Return the first value or advantage of each turn: the one in the episode that sampled the turn.

    A turn that forks share is in several episodes. Its credit is not the mean of its values over these episodes:
    episodes that ended well are forked, and episodes that ended badly are not.
    """
    credit: Credit = {}
    for turn, value in turn_value_pairs:
        credit.setdefault(turn, value if isinstance(value, Advantage) else Advantage(value))
    return credit
