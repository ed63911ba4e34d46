"""The workflow of a team as data: stages, rewards and measures, read by the game and by the checks of the settings."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Any

from pydantic import Field, field_validator

from marl.core.config import Config
from marl.games.tasks.base import TaskGameConfig
from marl.games.team.stages import TeamSeats, WorkflowStep, iter_stages, stages_with_predecessors


class RewardComponent(Config):
    """A named component of a role's reward."""

    value: str
    """Expression for the payment, in which `own` is the paid agent."""
    after: str | None = None
    """Name of a stage, or None to pay once at the end. A turn in this stage pays its speaker or the agent discussed in
    the turn (`each`, `verifies`), whichever has this role, and an agent discussed only if it has spoken since its last
    such payment. If neither has this role, the turn pays all agents of the role with a turn so far."""


class UnreadableHandling(Config):
    """Consequences of an unreadable answer or an illegal move."""

    retry: int = Field(default=0, ge=0)
    """Number of further attempts before the move counts as empty."""
    penalty: float = Field(default=0.0, ge=0)
    """Cost of an empty move, paid as the reward component `unreadable`."""


class Workflow(TaskGameConfig):
    """Fields of the team game's settings."""

    stages: tuple[WorkflowStep, ...] = Field(min_length=1)
    """Turns in the order of play: stages, loops of stages (`repeat`), and decisions about posed problems (`keep`)."""
    rewards: dict[str, dict[str, RewardComponent]] = Field(default_factory=dict)
    """Role -> name of the component -> an expression, or `{value, after}`."""
    measures: dict[str, str] = Field(default_factory=dict)
    """Name -> expression: measures of every episode in addition to its rewards, such as `success: solver.correct`."""
    unreadable: UnreadableHandling = UnreadableHandling()
    """Consequences of an unreadable answer or an illegal move."""

    @field_validator(
        "rewards", mode="before", json_schema_input_type=dict[str, dict[str, RewardComponent | str | float]]
    )
    @classmethod
    def _expand_payments(cls, rewards: Any) -> Any:
        """Replace each bare expression by `{value: expression}`; malformed settings are left to pydantic's messages."""
        if not isinstance(rewards, Mapping):
            return rewards
        expanded: dict[Any, Any] = {}
        for role, components in rewards.items():
            expanded[role] = components
            if isinstance(components, Mapping):
                expanded[role] = {}
                for name, value in components.items():
                    bare = isinstance(value, str | int | float)
                    expanded[role][name] = {"value": str(value)} if bare else value
        return expanded

    @cached_property
    def team_seats(self) -> TeamSeats:
        """Agents of the workflow, by role and by stage."""
        return TeamSeats(tuple(iter_stages(self.stages)))

    def default_seats(self) -> Mapping[str, str]:
        return self.team_seats.role_of

    def measure_names(self) -> Collection[str]:
        return self.measures

    def posed_problem_agents(self) -> Collection[str]:
        agents: set[str] = set()
        for stage, predecessors in stages_with_predecessors(self.stages):
            if any(earlier.poses and earlier.role != stage.role for earlier in predecessors):
                agents.update(self.team_seats.speakers(stage))
        return agents

    def answer_hints(self) -> Mapping[str, str]:
        hints: dict[str, str] = {}
        for stage in self.team_seats.all_stages:
            if stage.poses:
                hint = f"a problem: {self.task.posing_instructions}"
                hints |= dict.fromkeys(self.team_seats.speakers(stage), hint)
        return hints
