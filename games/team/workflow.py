"""Settings of a team's workflow: stages, rewards and measures."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Any

from pydantic import Field, field_validator

from marl.core.config import Config
from marl.games.tasks.base import TaskGameConfig
from marl.games.team.corrections import CorrectionPair, correction_pairs
from marl.games.team.stages import TeamSeats, WorkflowStep, stages_with_possible_predecessors


class StageReward(Config):
    """Component of a role's reward: the amount, and the stage after which it is paid."""

    value: str
    """Expression for the reward, in which `own` is the agent that gets it."""
    after: str | None = None
    """Name of the stage after whose turns the component is paid (default: once at the end of the episode). A turn pays
    its agent or the agent's partner (`each`, `verifies`), whichever has this role. A partner is paid only if it had a
    turn since its last such payment. If neither has this role, a turn pays all agents of the role that had a turn."""


class UnreadableAnswerHandling(Config):
    """Settings for unreadable answers and illegal moves: further attempts, and the cost of an empty move."""

    retry: int = Field(default=0, ge=0)
    """Number of further attempts after an unreadable answer, before the agent's move counts as empty."""
    penalty: float = Field(default=0.0, ge=0)
    """Cost of an empty move, paid as the reward component `unreadable`."""


class WorkflowConfig(TaskGameConfig):
    """Settings of the team game. The subclass `TeamConfig` also checks them."""

    stages: tuple[WorkflowStep, ...] = Field(min_length=1)
    """Steps in the order of play: stages, loops of stages (`repeat`), and decisions about posed problems (`keep`)."""
    rewards: dict[str, dict[str, StageReward]] = Field(default_factory=dict)
    """Role -> name of a reward component -> an expression, or `{value, after}`."""
    measures: dict[str, str] = Field(default_factory=dict)
    """Name -> expression of a measure of every episode, which is reported and not paid: `success: solver.correct`."""
    unreadable: UnreadableAnswerHandling = UnreadableAnswerHandling()
    """Further attempts after an unreadable answer or an illegal move, and the cost of an empty move."""

    @field_validator("rewards", mode="before", json_schema_input_type=dict[str, dict[str, StageReward | str | float]])
    @classmethod
    def _expand_bare_expressions(cls, rewards: Any) -> Any:
        """Replace each bare expression by `{value: expression}`, and leave malformed settings to pydantic."""
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
        """Agents of the workflow, by their roles and stages."""
        return TeamSeats([stage for stage, _ in stages_with_possible_predecessors(self.stages)])

    def default_role_of_agent(self) -> Mapping[str, str]:
        return self.team_seats.role_of

    def agent_answering_tool_calls_of_each_agent(self) -> Mapping[str, str]:
        answering: dict[str, str] = {}
        for stage in self.team_seats.all_stages:
            for agent in self.team_seats.stage_agents(stage) if stage.tools else ():
                answering[agent] = self.team_seats.agent_answering_tool_calls(stage, agent)
        return answering

    @cached_property
    def correction_pairs(self) -> tuple[CorrectionPair, ...]:
        """Pairs of verified roles, of which the later one may correct the earlier one."""
        return correction_pairs(self.team_seats)

    def measure_names(self) -> Collection[str]:
        names = dict.fromkeys(self.measures)
        for pair in self.correction_pairs:
            names |= {pair.fixes: None, pair.breaks: None}
        return names

    def agents_working_on_posed_problems(self) -> Collection[str]:
        agents: set[str] = set()
        for stage, predecessors in stages_with_possible_predecessors(self.stages):
            if any(earlier.poses and earlier.role != stage.role for earlier in predecessors):
                agents.update(self.team_seats.stage_agents(stage))
        return agents

    def answer_format_by_agent(self) -> Mapping[str, str]:
        hints: dict[str, str] = {}
        for stage in self.team_seats.all_stages:
            if stage.poses:
                hint = f"a problem: {self.task.problem_posing_instructions}"
                hints |= dict.fromkeys(self.team_seats.stage_agents(stage), hint)
        return hints
