"""Settings of the team game: a workflow as data, checked before anything is played."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
from typing import Any

from pydantic import Field, field_validator, model_validator

from games.tasks.base import TaskGameConfig
from games.team.checks import problems_of
from games.team.speakers import speaker_problems
from games.team.stages import Step, TeamSeats, flatten, with_earlier
from marl.config import Config
from marl.protocols import Speaker


class Payment(Config):
    """A named component of a reward."""

    value: str
    """An expression, in which `own` is the agent that is paid."""
    after: str | None = None
    """Name of a stage: paid after each turn there, to the speaker, or to the agent that it spoke about (`each`,
    `verifies`) if that one has spoken since it was last paid so, or else to all agents of the role that have spoken.
    Default: paid once, at the end."""


def _expand_payment(value: Any) -> Any:
    return {"value": str(value)} if isinstance(value, str | int | float) else value


class Unreadable(Config):
    """Consequences of an answer that the role could not read, or that is not a legal move."""

    retry: int = Field(default=0, ge=0)
    """Number of times the same question is asked again before the move counts as empty."""
    penalty: float = Field(default=0.0, ge=0)
    """Cost of an empty move, paid as the reward component `unreadable`."""


class TeamConfig(TaskGameConfig):
    """A workflow of roles on the problems of a task."""

    kind: str = "team"
    example = (
        "task: arithmetic, stages: [{role: solver}, {role: verifier, verifies: solver, scores: [correct]}], "
        "rewards: {solver: {right: own.correct}}"
    )
    stages: tuple[Step, ...] = Field(min_length=1)
    """Turns in the order of play: stages, loops of stages (`repeat`), and decisions about posed problems (`keep`)."""
    rewards: dict[str, dict[str, Payment]] = Field(default_factory=dict)
    """Role -> name of the component -> an expression, or `{value, after}`."""
    measures: dict[str, str] = Field(default_factory=dict)
    """Name -> expression: what to report of every episode besides its rewards, such as `success: solver.correct`."""
    unreadable: Unreadable = Unreadable()
    """Consequences of an answer that is not a legal move."""

    @field_validator("rewards", mode="before", json_schema_input_type=dict[str, dict[str, Payment | str | float]])
    @classmethod
    def _expand_payments(cls, rewards: Any) -> Any:
        if not isinstance(rewards, Mapping):
            return rewards
        return {
            role: {name: _expand_payment(value) for name, value in parts.items()}
            if isinstance(parts, Mapping)
            else parts
            for role, parts in rewards.items()
        }

    @model_validator(mode="after")
    def _check(self) -> TeamConfig:
        if problems := problems_of(self):
            raise ValueError("\n".join(problems))
        return self

    @cached_property
    def team_seats(self) -> TeamSeats:
        """The agents, by role and by stage."""
        return TeamSeats(tuple(flatten(self.stages)))

    def build(self) -> Any:
        from games.team.game import TeamGame

        return TeamGame(self)

    def default_seats(self) -> Mapping[str, str]:
        return self.team_seats.role_of

    def conflicts(self, speakers: Mapping[str, Speaker]) -> Iterable[str]:
        return speaker_problems(self, speakers)

    def measured(self) -> Collection[str]:
        return self.measures

    def posed_to(self) -> Collection[str]:
        return {
            agent
            for stage, earlier in with_earlier(self.stages)
            if any(each.poses and each.role != stage.role for each in earlier)
            for agent in self.team_seats.speakers(stage)
        }

    def expected(self) -> Mapping[str, str]:
        posing = [stage for stage in self.team_seats.all_stages if stage.poses]
        return {
            agent: f"a problem: {self.task.posing}" for stage in posing for agent in self.team_seats.speakers(stage)
        }
