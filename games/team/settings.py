"""A workflow as data: who speaks when, who hears whom, and what is paid for what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from games.tasks.starts import held_out_starts, samples
from games.team.cast import Cast
from games.team.check import check
from games.team.stages import Step, flat
from marl.config import Config
from marl.parts import Part
from marl.protocols import GameConfig, TaskConfig, Tasks
from marl.types import Problem


class Payment(Config):
    """A named part of a reward."""

    value: str
    """An expression, in which `own` is the agent that is paid."""
    after: str | None = None
    """The stage (by name) right after each turn of which it is paid: to the agent that spoke, to the one that it
    spoke about (`each`, `verifies`), or else to all of the role. Default: paid once, at the end."""


def _payment(value: Any) -> Any:
    return {"value": str(value)} if isinstance(value, str | int | float) else value


class Unreadable(Config):
    """What follows an answer that the role could not read, or that is no legal move."""

    retry: int = Field(default=0, ge=0)
    """How often the same question is asked again, before the turn counts as having said nothing."""
    penalty: float = Field(default=0.0, ge=0)
    """What it costs then, as the reward `unreadable`."""


class TeamConfig(GameConfig):
    """A workflow of roles on the problems of a task."""

    kind: str = "team"
    task: Annotated[TaskConfig, Part("tasks", TaskConfig)]
    stages: tuple[Step, ...] = Field(min_length=1)
    rewards: dict[str, dict[str, Payment]] = Field(default_factory=dict)
    """Role -> name of the component -> an expression, or `{value, after}`."""
    measures: dict[str, str] = Field(default_factory=dict)
    """What to report of every episode beside its rewards, such as `success: solver.correct`."""
    unreadable: Unreadable = Unreadable()

    @field_validator("rewards", mode="before", json_schema_input_type=dict[str, dict[str, Payment | str | float]])
    @classmethod
    def _bare(cls, rewards: Any) -> Any:
        if not isinstance(rewards, Mapping):
            return rewards
        return {
            role: {name: _payment(value) for name, value in parts.items()} if isinstance(parts, Mapping) else parts
            for role, parts in rewards.items()
        }

    @model_validator(mode="after")
    def _fits(self) -> TeamConfig:
        check(self)
        return self

    @cached_property
    def cast(self) -> Cast:
        """Its agents, by role and by stage."""
        return Cast(tuple(flat(self.stages)))

    @cached_property
    def tasks(self) -> Tasks:
        """The problems."""
        return self.task.build()

    def missing(self) -> Iterable[str]:
        return (f"task.{problem}" for problem in self.task.missing())

    def build(self) -> Any:
        from games.team.game import Team

        return Team(self)

    def casting(self) -> Mapping[str, str]:
        return self.cast.roles

    def held_out(self, n: int) -> Sequence[Mapping[str, Any]]:
        return held_out_starts(self.tasks, n)

    def problems(self, n: int) -> Sequence[Problem]:
        return samples(self.tasks, n)
