"""Checks of a workflow, made before anything is played: its roles, and what its expressions and templates look at.

Every message names the field, the value and what would be right.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from games.team.analysis import never_holds, secrets_in, unguarded
from games.team.blackboard import Blackboard
from games.team.expressions import FUNCTIONS, DivisionError, evaluate, evaluate_number, names_in, render, shorten
from games.team.speakers import order_problems
from games.team.stages import KeepStage, Loop, Stage, TeamSeats, steps_with_paths
from marl.config import nearest

if TYPE_CHECKING:
    from games.team.settings import TeamConfig

_ANYTHING = "1"
"""A move that may be said where any text is one."""


def problems_of(team: TeamConfig) -> list[str]:
    """Return a message for each thing that is wrong with a workflow."""
    # Snippets are tried out only when all roles exist.
    return list(_role_problems(team)) or [*order_problems(team), *_posing_problems(team), *_snippet_problems(team)]


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
    for name in {stage.role, stage.label} & {*Blackboard.RESERVED, *FUNCTIONS}:
        yield f"role, name: {name!r} stands for something else in expressions; choose another name"


def _posing_problems(team: TeamConfig) -> Iterator[str]:
    """Yield a message for each stage in which nothing can be posed, or that may replace a held-out problem: what is
    measured would be easier."""
    for path, step in steps_with_paths("stages", team.stages):
        if isinstance(step, Stage) and step.poses and not team.task.posing:
            yield (
                f"{path}.poses: true, but nothing can be posed on task {team.task.kind!r} with these settings; "
                "choices: arithmetic, countdown, strings, or file and dataset with `poses: true`"
            )
        if isinstance(step, Stage) and step.poses and not (step.when and never_holds(step.when, "held_out")):
            condition = f"split == 'train' and ({step.when})" if step.when else "split == 'train'"
            yield (
                f"{path}.when: {shorten(step.when)} does not keep the problems that are posed here from replacing "
                f"held-out ones, on which the team is measured; write `when: {condition}`"
            )


@dataclass(frozen=True, slots=True)
class _Snippet:
    """An expression or template of the workflow, in which `own` is `agent` and `it` is `speaker`."""

    field: str
    source: str
    kind: Literal["number", "condition", "observation", "example"]
    """Number: of a reward or a measure. Observations may not use what gives the answer away; examples of moves may."""
    agent: str | None = None
    speaker: str | None = None

    @property
    def template(self) -> bool:
        return self.kind in ("observation", "example")


def _snippet_problems(team: TeamConfig) -> Iterator[str]:
    """Yield a message for each expression or template that looks at what it must not, or that fails."""
    boards = [_board(team), _board(team, after_turns=True)]
    for snippet in _snippets(team):
        try:
            _check_names(snippet, boards[0])
            _check_secrets(snippet, team)
            _try_out(snippet, boards)
        except ValueError as error:
            yield f"{snippet.field}: {error}"
            continue
        if not snippet.template:
            yield from (f"{snippet.field}: {problem}" for problem in _unguarded(snippet, boards[0]))


def _board(team: TeamConfig, *, after_turns: bool = False) -> Blackboard:
    """Return the facts of a problem before the first turn, or after everybody said something and was right."""
    blackboard = Blackboard(team.team_seats)
    blackboard.reset(team.tasks.problem("train", 0))
    for stage in team.team_seats.all_stages if after_turns else ():
        for agent in team.team_seats.speakers(stage):
            blackboard.record(stage, agent, (stage.legal or (_ANYTHING,))[0])
            if partner := stage.verifies and team.team_seats.partner(stage, agent):
                verdict = {"scores": dict.fromkeys(stage.scores, 1)}
                blackboard.record_verdict(partner, json.dumps(verdict), stage.scores)
    return blackboard


def _check_names(snippet: _Snippet, blackboard: Blackboard) -> None:
    present = {name for name, agent in (("own", snippet.agent), ("it", snippet.speaker)) if agent}
    known = blackboard.names(with_answer=snippet.kind != "observation") - {"own", "it"} | present
    for name in sorted(names_in(snippet.source, template=snippet.template) - known):
        shown = shorten(snippet.source)
        raise ValueError(f"{shown} uses {name!r}, which does not exist here; {nearest(name, known)}")


def _check_secrets(snippet: _Snippet, team: TeamConfig) -> None:
    secret = team.secret_facts
    for name in secrets_in(snippet.source, secret) if snippet.kind == "observation" else ():
        shown = "all of `given`" if name == "given" else f"`given.{name}`"
        raise ValueError(
            f"{shorten(snippet.source)} uses {shown}, and so tells what gives the answer away; secret facts of task "
            f"{team.task.kind!r}: {', '.join(sorted(secret))}; name others, as `given.NAME`"
        )


def _try_out(snippet: _Snippet, boards: list[Blackboard]) -> None:
    failures: list[DivisionError] = []
    for blackboard in boards:
        names = names_in(snippet.source, template=snippet.template)
        facts = blackboard.facts(names, snippet.agent, snippet.speaker)
        try:
            if snippet.template:
                render(snippet.source, facts)
            elif snippet.kind == "number":
                evaluate_number(snippet.source, facts)
            else:
                evaluate(snippet.source, facts)
        except DivisionError as error:
            failures.append(error)
    if len(failures) == len(boards):
        raise failures[0]  # else it depends on the moves


def _unguarded(snippet: _Snippet, blackboard: Blackboard) -> Iterator[str]:
    condition = snippet.kind == "condition"
    for agent in unguarded(snippet.source, blackboard.agents(), condition=condition):
        instead = f"`{agent}.readable and ...`" if condition else f"`{agent}.readable * (...)`"
        words = f", or compare {agent}.move with given words by == or in" if condition else ""
        yield (
            f"{shorten(snippet.source)} looks at what {agent!r} said, which may be unreadable: its move is then '' and "
            f"its score 0; say what follows from that by {agent}.readable, such as {instead}{words}"
        )


def _snippets(team: TeamConfig) -> Iterator[_Snippet]:
    for role, parts in team.rewards.items():
        for name, payment in parts.items():
            yield _Snippet(f"rewards.{role}.{name}", payment.value, "number", team.team_seats.agents_of[role][0])
    for name, source in team.measures.items():
        yield _Snippet(f"measures.{name}", source, "number")
    for path, step in steps_with_paths("stages", team.stages):
        if isinstance(step, KeepStage):
            yield _Snippet(f"{path}.keep", step.keep, "condition")
        elif isinstance(step, Loop):
            yield from [_Snippet(f"{path}.until", step.until, "condition")] if step.until else ()
        else:
            yield from _stage_snippets(path, step, team.team_seats)


def _stage_snippets(path: str, stage: Stage, seats: TeamSeats) -> Iterator[_Snippet]:
    agent = seats.speakers(stage)[0]
    yield _Snippet(f"{path}.tell", stage.tell, "observation", agent)
    if stage.when:
        yield _Snippet(f"{path}.when", stage.when, "condition")
    for speaker, condition in stage.hears.items():
        yield _Snippet(f"{path}.hears.{speaker}", condition, "condition", agent, seats.named(speaker)[0])
    for index, example in enumerate(stage.examples):
        yield _Snippet(f"{path}.examples.{index}", example, "example", agent)
