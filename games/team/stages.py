"""Stages, loops and decisions of a team workflow, their order of play, and their agents."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from marl.core.config import Config
from marl.text.origins import NO_ORIGINS, Origins


class Stage(Config):
    """Turns of one role. All agents of a stage speak at once, without hearing each other."""

    role: str
    """Role of the speakers."""
    name: str = ""
    """Name of this stage in expressions (default: the role)."""
    n: int = Field(default=1, gt=0, le=1000)
    """Number of agents, named `solver` or `solver_0`, `solver_1`, ..."""
    each: str | None = None
    """Partner role, such as `solver` for critics: each agent of the stage hears one agent of this role, its partner."""
    verifies: str | None = None
    """Like `each`, for a verifier: its scores become facts of its partner."""
    scores: tuple[str, ...] = ()
    """Names of the verifier's checks to use, such as `correct`."""
    hears: dict[str, str] = Field(default_factory=dict)
    """Roles (or agents) whose turns are read here, or a mapping of these names to conditions, with `it` for the speaker
    and `own` for the listener."""
    tell: str = "{{ question }}"
    """Text of the game's observation: a jinja2 template over `question`, `given` and earlier moves."""
    legal: tuple[str, ...] | None = None
    """Legal moves, or null if any text is legal."""
    examples: tuple[str, ...] = ()
    """Templates of moves for random play and the warm-up of tiny models; they may use `answer` and `wrong`."""
    tools: str | None = None
    """Role to answer tool calls made in this stage."""
    calls: int = Field(default=4, gt=0, le=1000)
    """Maximum number of consecutive tool calls."""
    poses: bool = False
    """True if the move here poses the problem for the following stages."""
    when: str | None = None
    """Condition; if false, skip the stage. `split` is "train", "held_out", or "pool" for a problem posed earlier."""

    @property
    def label(self) -> str:
        """Name of the stage in expressions."""
        return self.name or self.role

    @property
    def partner_role(self) -> str | None:
        """Role with one agent per agent of this stage, or None."""
        return self.verifies or self.each

    @field_validator("hears", mode="before", json_schema_input_type=str | list[str] | dict[str, str])
    @classmethod
    def _add_conditions(cls, hears: Any) -> Any:
        if isinstance(hears, str):
            return {hears: "true"}
        return dict.fromkeys(hears, "true") if isinstance(hears, Sequence) else hears

    @field_validator("legal")
    @classmethod
    def _check_legal(cls, legal: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if legal is not None and (not all(legal) or len({*legal}) < max(len(legal), 1)):
            raise ValueError("must be different texts, one at least and none of them empty; null: any text is a move")
        return legal

    @model_validator(mode="after")
    def _check_partner(self) -> Stage:
        if self.verifies and self.each:
            raise ValueError(f"verifies: {self.verifies!r} and each: {self.each!r} exclude each other; set one of them")
        if self.partner_role and self.n > 1:
            raise ValueError(f"n: {self.n} has no effect with each/verifies: there is one agent for each of theirs")
        if bool(self.scores) != bool(self.verifies):
            raise ValueError("scores and verifies belong together: the role to verify, and the checks that count")
        return self


class Loop(Config):
    """A repeated sequence of stages."""

    repeat: int = Field(gt=0, le=1000)
    """Maximum number of rounds."""
    until: str | None = None
    """Condition to end the loop early, evaluated after each round."""
    stages: tuple[WorkflowStep, ...] = Field(min_length=1)
    """Stages of one round, in order."""


class KeepDecision(Config):
    """Decision about a posed problem. If it is not kept, the following stages work on the dealt problem."""

    keep: str
    """Condition to keep the posed problem; a text without a problem is never kept."""


def _discriminate(step: Any) -> str:
    keys = step if isinstance(step, Mapping) else type(step).model_fields if isinstance(step, Config) else ()
    return "loop" if "repeat" in keys else "keep" if "keep" in keys else "stage"


WorkflowStep = Annotated[
    Annotated[Stage, Tag("stage")] | Annotated[Loop, Tag("loop")] | Annotated[KeepDecision, Tag("keep")],
    Discriminator(_discriminate),
]
Loop.model_rebuild()


def iter_stages(steps: Sequence[Stage | Loop | KeepDecision]) -> Iterator[Stage]:
    """Yield every stage once, in the order of the settings."""
    for step in steps:
        if isinstance(step, Loop):
            yield from iter_stages(step.stages)
        elif isinstance(step, Stage):
            yield step


def iter_played_steps(
    steps: Sequence[Stage | Loop | KeepDecision],
    holds: Callable[[str], tuple[bool, Origins]],
    gates: Origins = NO_ORIGINS,
) -> Iterator[tuple[Stage | KeepDecision, Origins]]:
    """Yield (step, origins) in the order of play, with the origins of all conditions that let the step be played.

    `holds` evaluates a condition at the time it is reached, and returns its truth and its origins.
    """
    for step in steps:
        if isinstance(step, Loop):
            before = gates
            for _ in range(step.repeat):
                yield from iter_played_steps(step.stages, holds, before)
                ended, origins = holds(step.until) if step.until else (False, NO_ORIGINS)
                if ended:
                    break
                # The next round is played only because the loop has not ended.
                before |= origins
        elif isinstance(step, KeepDecision) or not step.when:
            yield step, gates
        else:
            reached, origins = holds(step.when)
            if reached:
                yield step, gates | origins


def steps_with_paths(field: str, steps: Sequence[WorkflowStep]) -> Iterator[tuple[str, WorkflowStep]]:
    """Yield (path in the settings, step) for every step; a loop precedes its own steps."""
    for index, step in enumerate(steps):
        yield f"{field}.{index}", step
        if isinstance(step, Loop):
            yield from steps_with_paths(f"{field}.{index}.stages", step.stages)


def stages_with_predecessors(
    steps: Sequence[WorkflowStep], earlier: Sequence[Stage] = ()
) -> Iterator[tuple[Stage, Sequence[Stage]]]:
    """Yield (stage, stages possibly played before it, including earlier rounds) in the order of the settings."""
    for step in steps:
        if isinstance(step, Loop):
            inner = tuple(iter_stages(step.stages))
            yield from stages_with_predecessors(step.stages, (*earlier, *inner) if step.repeat > 1 else earlier)
            earlier = (*earlier, *inner)
        elif isinstance(step, Stage):
            yield step, earlier
            earlier = (*earlier, step)


class TeamSeats:
    """Agents of a workflow, in the order in which their roles first speak.

    A role's only agent has the name of the role; several agents are numbered. A role has the same agents in all stages.
    """

    def __init__(self, stages: Sequence[Stage]) -> None:
        self.all_stages = tuple(stages)
        self.stages = {stage.label: stage for stage in stages}
        """Label -> stage (the last of stages with equal labels)."""
        counts: dict[str, int] = {}
        for stage in stages:
            count = counts.get(stage.partner_role, 1) if stage.partner_role else stage.n
            for role in filter(None, (stage.role, stage.tools)):
                counts[role] = max(counts.get(role, 1), count)
        self.agents_of: dict[str, tuple[str, ...]] = {}
        """Role -> its agents."""
        self.role_of: dict[str, str] = {}
        """Agent -> its role."""
        self.index_of: dict[str, int] = {}
        """Agent -> its index among the agents of its role."""
        for role, count in counts.items():
            agents = (role,) if count == 1 else tuple(f"{role}_{index}" for index in range(count))
            self.agents_of[role] = agents
            self.role_of |= dict.fromkeys(agents, role)
            self.index_of |= {agent: index for index, agent in enumerate(agents)}
        self.checks_of: dict[str, tuple[str, ...]] = {}
        """Role -> checks of all its verifiers."""
        for stage in stages:
            if stage.verifies:
                checks = self.checks_of.get(stage.verifies, ())
                self.checks_of[stage.verifies] = tuple(dict.fromkeys((*checks, *stage.scores)))

    def speakers(self, stage: Stage) -> tuple[str, ...]:
        """Return the agents of a stage."""
        count = len(self.agents_of[stage.partner_role]) if stage.partner_role else stage.n
        return self.agents_of[stage.role][:count]

    def named(self, name: str) -> tuple[str, ...]:
        """Return the agents of the role `name`, or the agent `name` itself."""
        return self.agents_of.get(name) or (name,)

    def partner(self, stage: Stage, agent: str) -> str | None:
        """Return the partner of `agent` in the stage's partner role, or None without a partner role."""
        return self.agents_of[stage.partner_role][self.index_of[agent]] if stage.partner_role else None

    def toolbox(self, stage: Stage, agent: str) -> str:
        """Return the agent to answer the tool calls of `agent`."""
        return self.agents_of[stage.tools or ""][self.index_of[agent]]
