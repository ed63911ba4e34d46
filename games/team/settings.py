"""A workflow as data: who speaks when, who hears whom, and what is paid for what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any

from pydantic import Discriminator, Field, PositiveInt, Tag, field_validator, model_validator

from games.team.cast import Cast
from games.team.check import check
from marl.config import Config
from marl.parts import Part
from marl.protocols import GameConfig, TaskConfig, Tasks
from marl.types import Problem


class Stage(Config):
    """One role speaks: all its agents at once, none hearing the others of this stage."""

    role: str
    name: str = ""
    """What expressions call what is said here. Default: the role."""
    n: PositiveInt = 1
    """How many agents: `solver`, or `solver_0`, `solver_1`, ..."""
    each: str | None = None
    """One agent for each of this role's, hearing (only) its own one: a critic for every solver."""
    verifies: str | None = None
    """As `each`, for a seat that verifies: its scores become facts of the agent that it verifies."""
    scores: tuple[str, ...] = ()
    """Names of the checks whose scores are used, such as `correct`."""
    hears: dict[str, str] = Field(default_factory=dict)
    """Roles (or agents) whose turns are read here; as a mapping, under a condition each, in which `it` is the one
    heard and `own` the listener."""
    tell: str = "{{ question }}"
    """What the game says (a jinja2 template over `question`, `given` and what was said)."""
    legal: tuple[str, ...] | None = None
    """The only moves there are; none: any text."""
    examples: tuple[str, ...] = ()
    """Templates of moves, for random play and so for the warm-up of tiny models; they may use `answer` and `wrong`."""
    tools: str | None = None
    """The role that answers this one's tool calls."""
    calls: PositiveInt = 4
    """How many of them in a row."""
    poses: bool = False
    """What is said here poses the problem of the stages that follow."""
    when: str | None = None
    """The stage is left out unless this holds."""

    @property
    def called(self) -> str:
        """Its name in expressions."""
        return self.name or self.role

    @property
    def partner(self) -> str | None:
        """The role of which each agent here has one for itself."""
        return self.verifies or self.each

    @field_validator("hears", mode="before")
    @classmethod
    def _unconditional(cls, hears: Any) -> Any:
        if isinstance(hears, str):
            return {hears: "true"}
        return dict.fromkeys(hears, "true") if isinstance(hears, Sequence) else hears

    @model_validator(mode="after")
    def _one_partner(self) -> Stage:
        if self.verifies and self.each:
            raise ValueError(f"verifies: {self.verifies!r} and each: {self.each!r} say the same; give one of them")
        if self.partner and self.n > 1:
            raise ValueError(f"n: {self.n} has no effect beside each/verifies: there is one agent for each of theirs")
        if bool(self.scores) != bool(self.verifies):
            raise ValueError("scores and verifies belong together: whom to verify, and which checks count")
        return self


class Loop(Config):
    """Stages again and again."""

    repeat: PositiveInt
    """At most so often ..."""
    until: str | None = None
    """... or until this holds after a round."""
    stages: tuple[Step, ...] = Field(min_length=1)


class Keep(Config):
    """Goes back to the problem that was dealt unless the one that was posed is worth keeping."""

    keep: str
    """The condition under which it is; always also that it is a problem at all."""


def _which(step: Any) -> str:
    keys = step if isinstance(step, Mapping) else type(step).model_fields if isinstance(step, Config) else ()
    return "loop" if "repeat" in keys else "keep" if "keep" in keys else "stage"


Step = Annotated[
    Annotated[Stage, Tag("stage")] | Annotated[Loop, Tag("loop")] | Annotated[Keep, Tag("keep")],
    Discriminator(_which),
]


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

    @field_validator("rewards", mode="before")
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

    def build(self) -> Any:
        from games.team.game import Team

        return Team(self)

    def casting(self) -> Mapping[str, str]:
        return self.cast.roles

    def held_out(self, n: int) -> Sequence[Mapping[str, Any]]:
        return [{"split": "held_out", "index": index} for index in range(min(n, self.tasks.size("held_out")))]

    def problems(self, n: int) -> Sequence[Problem]:
        return [self.tasks.problem("train", index) for index in range(min(n, self.tasks.size("train")))]


def flat(steps: Sequence[Stage | Loop | Keep]) -> Iterator[Stage]:
    """Every stage once, in order."""
    for step in steps:
        if isinstance(step, Loop):
            yield from flat(step.stages)
        elif isinstance(step, Stage):
            yield step


Loop.model_rebuild()
