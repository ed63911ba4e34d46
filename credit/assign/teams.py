"""Teams of agents that share a reward, and helpers of several credit rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, Self, TypeVar

from pydantic import model_validator

from marl.core.graph import Trajectory
from marl.core.types import Advantage, Credit, Metrics, Turn, TurnId
from marl.protocols import AssignConfig, Evidence

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Team:
    """Agents that share their rewards in one episode."""

    agents: frozenset[str]
    reward_scale: float = 1.0
    """Factor of each agent's rewards in the team's reward."""

    def total_reward(self, trajectory: Trajectory) -> float:
        """Return the team's reward in the episode."""
        # Scaled once, after the sum: the order decides the last bits.
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
    """Base of rules that divide the reward of a team."""

    teams: tuple[tuple[str, ...], ...] = ()
    """Agents that share rewards; an agent in no team shares with nobody. Default: all agents are one team."""
    common: Literal["sum", "mean"] = "sum"
    """A team's reward: the sum of its agents' rewards, or their mean (for games that pay all agents the same)."""

    @model_validator(mode="after")
    def _check_teams(self) -> Self:
        check_disjoint(self.teams)
        return self

    def teams_of(self, trajectory: Trajectory, evidence: Evidence) -> list[Team]:
        """Return the teams of an episode. Seats that answer by rule, such as verifiers, are in no team.

        Raises:
            ValueError: if `teams` names an agent that the game does not have.
        """
        players = [agent for agent, role in trajectory.deal.seats.items() if role not in evidence.rule_based_roles]
        groups = named_teams(self.teams, trajectory, players) if self.teams else [frozenset(players)]
        return [Team(agents, 1.0 if self.common == "sum" else 1 / len(agents)) for agents in groups if agents]

    def reward_pools(self, trajectory: Trajectory, evidence: Evidence) -> Sequence[tuple[frozenset[str], float]]:
        return [(team.agents, team.total_reward(trajectory)) for team in self.teams_of(trajectory, evidence)]


class StatelessRule:
    """Base of built rules that keep only the metrics of their last step."""

    def __init__(self, needs: frozenset[str] = frozenset()) -> None:
        self.needs = needs
        self._metrics: Metrics = {}

    def metrics(self) -> Metrics:
        """Return metrics of the last step, named `credit/...`."""
        return dict(self._metrics)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore nothing: there is no state."""


def named_teams(teams: Sequence[Sequence[str]], trajectory: Trajectory, players: Sequence[str]) -> list[frozenset[str]]:
    """Return `teams`, and a team of one for each other agent of `players`.

    Raises:
        ValueError: if `teams` names an agent that the game does not have.
    """
    agents, members = set(trajectory.deal.seats), set(chain.from_iterable(teams))
    if strangers := sorted(members - agents):
        raise ValueError(f"teams: no agent {strangers[0]!r} in this game; agents: {', '.join(sorted(agents))}")
    return [*map(frozenset, teams), *(frozenset({agent}) for agent in sorted(set(players) - members))]


def check_disjoint(teams: Sequence[Sequence[str]]) -> None:
    """Raises:
    ValueError: if an agent is in more than one team.
    """
    counts = Counter(chain.from_iterable(teams))
    for agent, count in counts.items():
        if count > 1:
            raise ValueError(f"teams: {agent!r} is in more than one: {[list(team) for team in teams]}")


def first_values(values: Iterable[tuple[Key, float]]) -> dict[Key, float]:
    """Return the first value of each turn (or token), from the episode in which it was sampled.

    A turn that forks share is in several episodes. Its value is not the mean over them: experience forks episodes that
    ended well, and the mean of a lucky rollout and its forks would be compared with unlucky rollouts that are never
    forked.
    """
    first: dict[Key, float] = {}
    for key, value in values:
        first.setdefault(key, value)
    return first


def credit_from_first(values: Iterable[tuple[TurnId, float]]) -> Credit:
    """Return the first value of each turn as its credit."""
    return {turn: Advantage(value) for turn, value in first_values(values).items()}
