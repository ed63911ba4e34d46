"""The steps of a workflow: stages, loops, and what becomes of a posed problem."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import Discriminator, Field, PositiveInt, Tag, field_validator, model_validator

from marl.config import Config


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
    """The stage is left out unless this holds. `split` is "train", "held_out", or "pool" for one posed earlier."""

    @property
    def called(self) -> str:
        """Its name in expressions."""
        return self.name or self.role

    @property
    def partner(self) -> str | None:
        """The role of which each agent here has one for itself."""
        return self.verifies or self.each

    @field_validator("hears", mode="before", json_schema_input_type=str | list[str] | dict[str, str])
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


def flat(steps: Sequence[Stage | Loop | Keep]) -> Iterator[Stage]:
    """Every stage once, in order."""
    for step in steps:
        if isinstance(step, Loop):
            yield from flat(step.stages)
        elif isinstance(step, Stage):
            yield step


Loop.model_rebuild()
