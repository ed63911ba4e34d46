"""Settings of the team game: a workflow as data, checked before anything is played."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from games.tasks.base import TaskGameConfig
from games.team.blackboard import Blackboard
from games.team.expressions import evaluate, names_in, render
from games.team.stages import KeepStage, Loop, Stage, Step, TeamSeats, flatten
from marl.config import Config, nearest


class Payment(Config):
    """A named component of a reward."""

    value: str
    """An expression, in which `own` is the agent that is paid."""
    after: str | None = None
    """Name of a stage: paid after each turn there, to the speaker, or to the agent that it spoke about (`each`,
    `verifies`), or else to all agents of the role. Default: paid once, at the end."""


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
    stages: tuple[Step, ...] = Field(min_length=1)
    rewards: dict[str, dict[str, Payment]] = Field(default_factory=dict)
    """Role -> name of the component -> an expression, or `{value, after}`."""
    measures: dict[str, str] = Field(default_factory=dict)
    """Name -> expression: what to report of every episode besides its rewards, such as `success: solver.correct`."""
    unreadable: Unreadable = Unreadable()

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
        # Snippets are tried out only when all roles exist.
        problems = list(_role_problems(self)) or list(_snippet_problems(self))
        if problems:
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


def _role_problems(team: TeamConfig) -> Iterator[str]:
    """Yield a message for each role or stage that is named but does not exist."""
    seats = team.team_seats
    for stage in seats.all_stages:
        for problem in _stage_problems(stage, seats):
            yield f"stage {stage.label!r}: {problem}"
    for role, parts in team.rewards.items():
        if role not in seats.agents_of:
            yield f"rewards.{role}: no such role; {nearest(role, seats.agents_of)}"
        for name, payment in parts.items():
            if payment.after and payment.after not in seats.stages:
                hint = nearest(payment.after, seats.stages)
                yield f"rewards.{role}.{name}.after: no stage {payment.after!r}; {hint}"


def _stage_problems(stage: Stage, seats: TeamSeats) -> Iterator[str]:
    speaking = {each.role for each in seats.all_stages}
    if stage.partner and stage.partner not in speaking:
        field = "verifies" if stage.verifies else "each"
        yield f"{field}: no role {stage.partner!r}; {nearest(stage.partner, speaking)}"
    elif seats.speakers(stage) != seats.speakers(seats.stages[stage.label]):
        yield "spoken by different agents in two places; give one of them another `name`"
    for speaker in stage.hears.keys() - {*seats.agents_of, *seats.role_of}:
        yield f"hears: no role {speaker!r}; {nearest(speaker, seats.agents_of)}"
    if stage.tools in speaking:
        yield f"tools: role {stage.tools!r} speaks in a stage itself; name another one"


@dataclass(frozen=True, slots=True)
class _Snippet:
    """An expression or template of the workflow, in which `own` is `agent` and `it` is `speaker`."""

    field: str
    source: str
    agent: str | None = None
    speaker: str | None = None
    kind: Literal["expression", "observation", "example"] = "expression"
    """The text of an observation may not use the answer; examples of moves may."""


def _snippet_problems(team: TeamConfig) -> Iterator[str]:
    """Yield a message for each expression or template that fails on a problem before the first turn."""
    blackboard = Blackboard(team.team_seats)
    blackboard.reset(team.tasks.problem("train", 0))
    for snippet in _snippets(team):
        template = snippet.kind != "expression"
        present = {name for name, agent in (("own", snippet.agent), ("it", snippet.speaker)) if agent}
        known = blackboard.names(with_answer=snippet.kind != "observation") - {"own", "it"} | present
        try:
            names = names_in(snippet.source, template=template)
            for name in sorted(names - known):
                raise ValueError(f"{snippet.source!r} uses {name!r}, which does not exist here; {nearest(name, known)}")
            facts = blackboard.facts(names, snippet.agent, snippet.speaker)
            render(snippet.source, facts) if template else evaluate(snippet.source, facts)
        except ZeroDivisionError:
            continue  # depends on the moves
        except ValueError as error:
            yield f"{snippet.field}: {error}"


def _snippets(team: TeamConfig) -> Iterator[_Snippet]:
    for role, parts in team.rewards.items():
        for name, payment in parts.items():
            yield _Snippet(f"rewards.{role}.{name}", payment.value, team.team_seats.agents_of[role][0])
    for name, source in team.measures.items():
        yield _Snippet(f"measures.{name}", source)
    yield from _step_snippets("stages", team.stages, team.team_seats)


def _step_snippets(field: str, steps: tuple[Step, ...], seats: TeamSeats) -> Iterator[_Snippet]:
    for index, step in enumerate(steps):
        path = f"{field}.{index}"
        if isinstance(step, KeepStage):
            yield _Snippet(f"{path}.keep", step.keep)
        elif isinstance(step, Loop):
            if step.until:
                yield _Snippet(f"{path}.until", step.until)
            yield from _step_snippets(f"{path}.stages", step.stages, seats)
        else:
            yield from _stage_snippets(path, step, seats)


def _stage_snippets(path: str, stage: Stage, seats: TeamSeats) -> Iterator[_Snippet]:
    agent = seats.speakers(stage)[0]
    yield _Snippet(f"{path}.tell", stage.tell, agent, kind="observation")
    if stage.when:
        yield _Snippet(f"{path}.when", stage.when)
    for speaker, condition in stage.hears.items():
        yield _Snippet(f"{path}.hears.{speaker}", condition, agent, seats.named(speaker)[0])
    for index, example in enumerate(stage.examples):
        yield _Snippet(f"{path}.examples.{index}", example, agent, kind="example")
