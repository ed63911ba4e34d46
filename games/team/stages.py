"""Stages, loops and decisions of a team workflow, the order in which they are played, and the agents of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from marl.config import Config
from marl.provenance import NO_ORIGINS, Origins


class Stage(Config):
    """Turns of one role: all its agents speak at once, and none hears the others of this stage."""

    role: str
    """Role that speaks here."""
    name: str = ""
    """Name of this stage in expressions. Default: the role."""
    n: int = Field(default=1, gt=0, le=1000)
    """Number of agents: `solver`, or `solver_0`, `solver_1`, ..."""
    each: str | None = None
    """A role: one agent here for each agent of that role, which it hears (alone), such as a critic for every solver."""
    verifies: str | None = None
    """Like `each`, for a seat that verifies: its scores become facts of the agent that it verifies."""
    scores: tuple[str, ...] = ()
    """Names of the checks whose scores are used, such as `correct`."""
    hears: dict[str, str] = Field(default_factory=dict)
    """Roles (or agents) whose turns are read here; as a mapping, with a condition for each, in which `it` is the
    speaker and `own` the listener."""
    tell: str = "{{ question }}"
    """Text of the game's observation: a jinja2 template over `question`, `given` and earlier moves."""
    legal: tuple[str, ...] | None = None
    """Legal moves; null: any text is one."""
    examples: tuple[str, ...] = ()
    """Templates of moves, for random play and so for the warm-up of tiny models; they may use `answer` and `wrong`."""
    tools: str | None = None
    """The role that answers this one's tool calls."""
    calls: int = Field(default=4, gt=0, le=1000)
    """Limit of tool calls in a row."""
    poses: bool = False
    """The move here poses the problem of the stages that follow."""
    when: str | None = None
    """The stage is skipped unless this holds. `split` is "train", "held_out", or "pool" for a problem posed earlier."""

    @property
    def label(self) -> str:
        """Name of the stage in expressions."""
        return self.name or self.role

    @property
    def partner(self) -> str | None:
        """The role with one agent for each agent here."""
        return self.verifies or self.each

    @field_validator("hears", mode="before", json_schema_input_type=str | list[str] | dict[str, str])
    @classmethod
    def _add_conditions(cls, hears: Any) -> Any:
        if isinstance(hears, str):
            return {hears: "true"}
        return dict.fromkeys(hears, "true") if isinstance(hears, Sequence) else hears

    @field_validator("legal")
    @classmethod
    def _can_be_said(cls, legal: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if legal is not None and (not all(legal) or len({*legal}) < max(len(legal), 1)):
            raise ValueError("must be different texts, one at least and none of them empty; null: any text is a move")
        return legal

    @model_validator(mode="after")
    def _check_partner(self) -> Stage:
        if self.verifies and self.each:
            raise ValueError(f"verifies: {self.verifies!r} and each: {self.each!r} exclude each other; set one of them")
        if self.partner and self.n > 1:
            raise ValueError(f"n: {self.n} has no effect with each/verifies: there is one agent for each of theirs")
        if bool(self.scores) != bool(self.verifies):
            raise ValueError("scores and verifies belong together: the role to verify, and the checks that count")
        return self


class Loop(Config):
    """Stages that are repeated."""

    repeat: int = Field(gt=0, le=1000)
    """The largest number of rounds."""
    until: str | None = None
    """The loop ends early if this holds after a round."""
    stages: tuple[Step, ...] = Field(min_length=1)
    """Stages of one round, in order."""


class KeepStage(Config):
    """Decision about a posed problem: unless it is kept, the stages that follow work on the problem that was dealt."""

    keep: str
    """Condition for keeping it; a text that poses no problem is never kept."""


def _discriminate(step: Any) -> str:
    keys = step if isinstance(step, Mapping) else type(step).model_fields if isinstance(step, Config) else ()
    return "loop" if "repeat" in keys else "keep" if "keep" in keys else "stage"


Step = Annotated[
    Annotated[Stage, Tag("stage")] | Annotated[Loop, Tag("loop")] | Annotated[KeepStage, Tag("keep")],
    Discriminator(_discriminate),
]
Loop.model_rebuild()


def flatten(steps: Sequence[Stage | Loop | KeepStage]) -> Iterator[Stage]:
    """Yield every stage once, in order."""
    for step in steps:
        if isinstance(step, Loop):
            yield from flatten(step.stages)
        elif isinstance(step, Stage):
            yield step


def walk(
    steps: Sequence[Stage | Loop | KeepStage], holds: Callable[[str], tuple[bool, Origins]], gates: Origins = NO_ORIGINS
) -> Iterator[tuple[Stage | KeepStage, Origins]]:
    """Yield the steps in the order of play, each with what the conditions depend on that let it be played.

    `holds` evaluates a condition when it is reached, and returns whether it holds and what that depends on.
    """
    for step in steps:
        if isinstance(step, Loop):
            before = gates
            for _ in range(step.repeat):
                yield from walk(step.stages, holds, before)
                ended, looked_at = holds(step.until) if step.until else (False, NO_ORIGINS)
                if ended:
                    break
                before |= looked_at
        elif isinstance(step, KeepStage) or not step.when:
            yield step, gates
        else:
            reached, looked_at = holds(step.when)
            if reached:
                yield step, gates | looked_at


def steps_with_paths(field: str, steps: Sequence[Step]) -> Iterator[tuple[str, Step]]:
    """Yield every step with its place in the settings, those within loops after their loop."""
    for index, step in enumerate(steps):
        yield f"{field}.{index}", step
        if isinstance(step, Loop):
            yield from steps_with_paths(f"{field}.{index}.stages", step.stages)


def with_earlier(steps: Sequence[Step], earlier: Sequence[Stage] = ()) -> Iterator[tuple[Stage, Sequence[Stage]]]:
    """Yield every stage, in order, with the stages that may have been played before it, earlier rounds included."""
    for step in steps:
        if isinstance(step, Loop):
            inner = tuple(flatten(step.stages))
            yield from with_earlier(step.stages, (*earlier, *inner) if step.repeat > 1 else earlier)
            earlier = (*earlier, *inner)
        elif isinstance(step, Stage):
            yield step, earlier
            earlier = (*earlier, step)


class TeamSeats:
    """Agents of a workflow, in the order in which their roles first speak.

    A role with one agent gives it its name; several are numbered. A role that speaks in several stages has the same
    agents in all of them.
    """

    def __init__(self, stages: Sequence[Stage]) -> None:
        self.all_stages = tuple(stages)
        self.stages = {stage.label: stage for stage in stages}
        """Label -> stage; of stages with the same label, the last."""
        counts: dict[str, int] = {}
        for stage in stages:
            count = counts.get(stage.partner, 1) if stage.partner else stage.n
            for role in filter(None, (stage.role, stage.tools)):
                counts[role] = max(counts.get(role, 1), count)
        self.agents_of: dict[str, tuple[str, ...]] = {
            role: (role,) if n == 1 else tuple(f"{role}_{i}" for i in range(n)) for role, n in counts.items()
        }
        """Role -> its agents."""
        self.role_of: dict[str, str] = {agent: role for role, agents in self.agents_of.items() for agent in agents}
        """Agent -> its role."""
        self.index_of: dict[str, int] = {a: i for agents in self.agents_of.values() for i, a in enumerate(agents)}
        """Agent -> its index among the agents of its role."""
        self.checks_of: dict[str, tuple[str, ...]] = {}
        """Role -> the checks that verify it, in one stage or several."""
        for stage in stages:
            if stage.verifies:
                known = self.checks_of.get(stage.verifies, ())
                self.checks_of[stage.verifies] = tuple(dict.fromkeys((*known, *stage.scores)))

    def speakers(self, stage: Stage) -> tuple[str, ...]:
        """Return the agents that speak in a stage."""
        count = len(self.agents_of[stage.partner]) if stage.partner else stage.n
        return self.agents_of[stage.role][:count]

    def named(self, name: str) -> tuple[str, ...]:
        """Return the agents of a role, or the one agent of this name."""
        return self.agents_of.get(name) or (name,)

    def partner(self, stage: Stage, agent: str) -> str | None:
        """Return the agent of the stage's partner role that belongs to `agent`; None without a partner role."""
        return self.agents_of[stage.partner][self.index_of[agent]] if stage.partner else None

    def toolbox(self, stage: Stage, agent: str) -> str:
        """Return the agent that answers the tool calls of `agent`."""
        return self.agents_of[stage.tools or ""][self.index_of[agent]]
