"""Stages, loops and decisions of a team workflow, their order of play, and their agents."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from marl.core.config import Config, DistinctValues, refuse_repeated_values
from marl.text.origins import NO_ORIGINS, Origins


class ModelCallPatterns(Config):
    """Patterns of the model calls that one caller answers for a program. In a pattern, `*` stands for any text."""

    system: str | None = None
    """Pattern of the first system message (default: any)."""
    model: str | None = None
    """Pattern of the model's name in the call (default: any)."""


class ModelCallAnswerer(Config):
    """Caller: a role that answers model calls of a stage's program, and has no stage of its own."""

    match: ModelCallPatterns = ModelCallPatterns()
    """Patterns of the model calls that this caller answers, unless a call names another caller."""
    examples: tuple[str, ...] = ()
    """Templates of example moves for random play and the warm-up of tiny models; they may use `answer` and `wrong`."""


class ToolCallSettings(Config):
    """Limit of the tool calls of a stage, and the verdicts on them."""

    most: int = Field(default=4, gt=0, le=1000)
    """Maximum number of tool calls of one agent in one turn. An answer with more calls than are left is final."""
    verifier: str | None = None
    """Role that gives a verdict on the results of every answer with calls, at once (default: no verdicts)."""
    scores: DistinctValues[str] = ()
    """Names of the verifier's checks whose scores become facts of the calling agent, such as `new`."""

    @model_validator(mode="after")
    def _check_verifier_has_scores(self) -> ToolCallSettings:
        if bool(self.scores) != bool(self.verifier):
            raise ValueError("scores and verifier belong together: the role that scores, and the checks that count")
        return self


class Stage(Config):
    """Stage of a workflow: one turn of every agent of the stage. All its agents have one role and answer at once."""

    role: str
    """Role of the agents that take a turn in this stage."""
    name: str = ""
    """Name of the stage in expressions (default: its role)."""
    n: int = Field(default=1, gt=0, le=1000)
    """Number of agents of the stage; several agents are named `solver_0`, `solver_1`, ..."""
    each: str | None = None
    """Partner role, such as `solver` for critics: each agent of the stage reads the turn of one agent of this role."""
    verifies: str | None = None
    """Role whose agents the stage verifies. As with `each`, every agent of the stage has a partner of this role. The
    scores in an agent's answer become facts of its partner."""
    scores: DistinctValues[str] = ()
    """Names of the verifier's checks whose scores become facts of the verified agent, such as `correct`."""
    hears: dict[str, str] = Field(default_factory=dict)
    """Roles (or agents) whose turns the stage's agents read; or a mapping role -> condition on which its turns are
    read, where `own` is the reader and `it` is the agent whose turn is read."""
    tell: str = "{{ question }}"
    """Observation of the stage's agents: a jinja2 template over `question`, `given` and earlier moves."""
    legal: tuple[str, ...] | None = None
    """Legal moves in this stage (default: any text)."""
    examples: tuple[str, ...] = ()
    """Templates of example moves for random play and the warm-up of tiny models; they may use `answer` and `wrong`."""
    tools: str | None = None
    """Role whose agents answer the tool calls made in this stage (default: no tools)."""
    calls: ToolCallSettings = ToolCallSettings()
    """Maximum number of tool calls of one agent in one turn; or a mapping with this number as `most`, and the verifier
    of the calls."""
    callers: dict[str, ModelCallAnswerer] | None = None
    """Role -> caller that answers model calls of the stage's program (default: no program plays in this stage)."""
    poses: bool = False
    """True if the move of this stage poses the problem on which the following stages work."""
    when: str | None = None
    """Condition on which the stage is played (default: always). In conditions, `split` is "train", "held_out" or, for a
    problem posed earlier, "pool"."""

    @property
    def name_in_expressions(self) -> str:
        """Name of this stage in expressions: the setting `name`, or its role."""
        return self.name or self.role

    @property
    def read_or_verified_role(self) -> str | None:
        """Role of the partners: each agent of the stage reads or verifies one agent of this role. None: no partners."""
        return self.verifies or self.each

    @field_validator("calls", mode="before", json_schema_input_type=int | ToolCallSettings)
    @classmethod
    def _expand_calls_setting(cls, calls: Any) -> Any:
        return {"most": calls} if isinstance(calls, int) else calls

    @field_validator("hears", mode="before", json_schema_input_type=str | list[str] | dict[str, str])
    @classmethod
    def _expand_hears_setting(cls, hears: Any) -> Any:
        if isinstance(hears, str):
            return {hears: "true"}
        if not isinstance(hears, Sequence):
            return hears
        if wrong := [name for name in hears if not isinstance(name, str)]:
            raise ValueError(f"{wrong[0]} is no role; conditions are given as a mapping {{ROLE: CONDITION}}")
        return dict.fromkeys(refuse_repeated_values(hears), "true")

    @field_validator("legal")
    @classmethod
    def _check_legal_moves_are_distinct(cls, legal: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if legal is not None and (not all(legal) or len({*legal}) < max(len(legal), 1)):
            raise ValueError("must be different texts, one at least and none of them empty; null: any text is a move")
        return legal

    @model_validator(mode="after")
    def _check_read_or_verified_role(self) -> Stage:
        if self.verifies and self.each:
            raise ValueError(f"verifies: {self.verifies!r} and each: {self.each!r} exclude each other; set one of them")
        if self.read_or_verified_role and self.n > 1:
            raise ValueError(f"n: {self.n} has no effect with each/verifies: there is one agent for each of theirs")
        if self.calls.verifier and not self.tools:
            raise ValueError(f"calls.verifier: {self.calls.verifier!r} has no calls to score; set `tools`")
        if bool(self.scores) != bool(self.verifies):
            raise ValueError("scores and verifies belong together: the role to verify, and the checks that count")
        return self


class StageLoop(Config):
    """Loop of a workflow: a sequence of stages that is played for several rounds."""

    repeat: int = Field(gt=0, le=1000)
    """Maximum number of rounds of the loop."""
    until: str | None = None
    """Condition that ends the loop early, evaluated after each round (default: the loop never ends early)."""
    stages: tuple[WorkflowStep, ...] = Field(min_length=1)
    """Stages of one round of the loop, in order of play."""


class KeepPosedProblemStep(Config):
    """Step of a workflow that keeps or drops a posed problem; the dealt problem replaces a dropped problem."""

    keep: str
    """Condition on which the posed problem is kept. A posing move that holds no problem is never kept."""


def _step_kind_discriminator(step: Any) -> str:
    keys = step if isinstance(step, Mapping) else type(step).model_fields if isinstance(step, Config) else ()
    return "loop" if "repeat" in keys else "keep" if "keep" in keys else "stage"


WorkflowStep = Annotated[
    Annotated[Stage, Tag("stage")] | Annotated[StageLoop, Tag("loop")] | Annotated[KeepPosedProblemStep, Tag("keep")],
    Discriminator(_step_kind_discriminator),
]
StageLoop.model_rebuild()


def iter_played_steps(
    steps: Sequence[Stage | StageLoop | KeepPosedProblemStep],
    evaluate_condition: Callable[[str], tuple[bool, Origins]],
    condition_origins: Origins = NO_ORIGINS,
) -> Iterator[tuple[Stage | KeepPosedProblemStep, Origins]]:
    """Yield (step, origins of the conditions that decided that the step is played) in the order of play.

    `evaluate_condition` returns a condition's truth value at this point of play, and the origins of its facts.
    """
    for step in steps:
        if isinstance(step, StageLoop):
            before = condition_origins
            for _ in range(step.repeat):
                yield from iter_played_steps(step.stages, evaluate_condition, before)
                ended, origins = evaluate_condition(step.until) if step.until else (False, NO_ORIGINS)
                if ended:
                    break
                # Later rounds are played because the loop condition was false, so its origins are theirs, too.
                before |= origins
        elif isinstance(step, KeepPosedProblemStep) or not step.when:
            yield step, condition_origins
        else:
            reached, origins = evaluate_condition(step.when)
            if reached:
                yield step, condition_origins | origins


def steps_with_setting_paths(field: str, steps: Sequence[WorkflowStep]) -> Iterator[tuple[str, WorkflowStep]]:
    """Yield (path in the settings, such as `stages.0`, step) for every step; a loop precedes its own steps."""
    for index, step in enumerate(steps):
        yield f"{field}.{index}", step
        if isinstance(step, StageLoop):
            yield from steps_with_setting_paths(f"{field}.{index}.stages", step.stages)


def stages_with_possible_predecessors(
    steps: Sequence[WorkflowStep], earlier: Sequence[Stage] = ()
) -> Iterator[tuple[Stage, Sequence[Stage]]]:
    """Yield (stage, all stages that can be played before it, also in earlier rounds) in the order of the settings.

    Stages of loops are included; `earlier` are the stages before `steps`.
    """
    for step in steps:
        if isinstance(step, StageLoop):
            inner = tuple(stage for stage, _ in stages_with_possible_predecessors(step.stages))
            yield from stages_with_possible_predecessors(
                step.stages, (*earlier, *inner) if step.repeat > 1 else earlier
            )
            earlier = (*earlier, *inner)
        elif isinstance(step, Stage):
            yield step, earlier
            earlier = (*earlier, step)


class TeamSeats:
    """Agents of a workflow, in the order in which their roles first take a turn.

    The only agent of a role has the role's name; several agents are numbered. A role has the same agents in all stages.
    """

    def __init__(self, stages: Sequence[Stage]) -> None:
        self.all_stages = tuple(stages)
        self.stages = {stage.name_in_expressions: stage for stage in stages}
        """Label of a stage -> the last stage with this label."""
        counts: dict[str, int] = {}
        for stage in stages:
            count = counts.get(stage.read_or_verified_role, 1) if stage.read_or_verified_role else stage.n
            for role in filter(None, (stage.role, stage.tools, stage.calls.verifier, *(stage.callers or ()))):
                counts[role] = max(counts.get(role, 1), count)
        self.agents_of: dict[str, tuple[str, ...]] = {}
        """Role -> agents of this role."""
        self.role_of: dict[str, str] = {}
        """Agent -> role of this agent."""
        self.index_of: dict[str, int] = {}
        """Agent -> index of this agent among those of its role."""
        for role, count in counts.items():
            agents = (role,) if count == 1 else tuple(f"{role}_{index}" for index in range(count))
            self.agents_of[role] = agents
            self.role_of |= dict.fromkeys(agents, role)
            self.index_of |= zip(agents, range(count), strict=True)
        self.program_roles = frozenset(stage.role for stage in stages if stage.callers is not None)
        """Roles of agents at whose seats programs run."""
        self.caller_roles = frozenset(role for stage in stages for role in stage.callers or ())
        """Roles that only answer the model calls of programs."""
        self.checks_of: dict[str, tuple[str, ...]] = {}
        """Role -> names of all checks by which verifiers score its agents."""
        for stage in stages:
            if stage.verifies:
                checks = self.checks_of.get(stage.verifies, ())
                self.checks_of[stage.verifies] = tuple(dict.fromkeys((*checks, *stage.scores)))
            if stage.calls.verifier:
                checks = self.checks_of.get(stage.role, ())
                self.checks_of[stage.role] = tuple(dict.fromkeys((*checks, *stage.calls.scores)))

    def stage_agents(self, stage: Stage) -> tuple[str, ...]:
        """Return the agents that take a turn in `stage`."""
        count = len(self.agents_of[stage.read_or_verified_role]) if stage.read_or_verified_role else stage.n
        return self.agents_of[stage.role][:count]

    def agents_by_role_or_name(self, name: str) -> tuple[str, ...]:
        """Return the agents of the role `name`, or the agent `name` alone."""
        return self.agents_of.get(name) or (name,)

    def read_or_verified_agent(self, stage: Stage, agent: str) -> str | None:
        """Return the agent that `agent` reads or verifies in `stage`, or None if the stage has no partner role."""
        role = stage.read_or_verified_role
        return self.agents_of[role][self.index_of[agent]] if role else None

    def program_caller_by_role(self, stage: Stage, program_agent: str) -> dict[str, str]:
        """Return role -> agent, for the agents that answer model calls of the program `program_agent`."""
        return {role: self.agents_of[role][self.index_of[program_agent]] for role in stage.callers or ()}

    def program_callers_in_stage(self, stage: Stage) -> tuple[str, ...]:
        """Return the agents that answer model calls of the programs in `stage`."""
        return tuple(
            [
                caller
                for agent in self.stage_agents(stage)
                for caller in self.program_caller_by_role(stage, agent).values()
            ]
        )

    def agent_answering_tool_calls(self, stage: Stage, calling_agent: str) -> str:
        """Return the agent that answers the tool calls of `calling_agent` in `stage`."""
        return self.agents_of[stage.tools or ""][self.index_of[calling_agent]]

    def agent_scoring_tool_calls(self, stage: Stage, calling_agent: str) -> str | None:
        """Return the agent that scores the tool calls of `calling_agent` in `stage`, or None if no agent does."""
        role = stage.calls.verifier
        return self.agents_of[role][self.index_of[calling_agent]] if role else None
