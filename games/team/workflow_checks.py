"""Checks of a workflow before play: its roles, and the facts used by its expressions and templates.

Every message names the field, the value and a correct alternative.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from marl.core.config import choices_hint
from marl.games.team.blackboard import Blackboard
from marl.games.team.expressions import FUNCTIONS, DivisionError, evaluate, evaluate_number, names_in, render, shorten
from marl.games.team.speaker_checks import order_errors
from marl.games.team.stages import KeepDecision, Loop, Stage, TeamSeats, steps_with_paths
from marl.games.team.static_analysis import agents_without_readable_check, is_always_false, secret_facts_in
from marl.games.team.workflow import Workflow

_TRIAL_MOVE = "1"
"""Move for trial evaluations of stages without a list of legal moves."""


def workflow_errors(team: Workflow) -> list[str]:
    """Return a message for each error in a workflow."""
    problems = list(_role_problems(team))
    # Snippets can be tried out only if all roles exist.
    if problems:
        return problems
    return [*order_errors(team.stages, team.team_seats), *_posing_problems(team), *_snippet_problems(team)]


def _role_problems(team: Workflow) -> Iterator[str]:
    """Yield a message for each unknown role or stage."""
    seats = team.team_seats
    for stage in seats.all_stages:
        for problem in _stage_problems(stage, seats):
            yield f"stage {stage.label!r}: {problem}"
    for role, components in team.rewards.items():
        if role not in seats.agents_of:
            yield f"rewards.{role}: no such role; {choices_hint(role, seats.agents_of)}"
        for name, payment in components.items():
            if payment.after and payment.after not in seats.stages:
                hint = choices_hint(payment.after, seats.stages)
                yield f"rewards.{role}.{name}.after: no stage {payment.after!r}; {hint}"


def _stage_problems(stage: Stage, seats: TeamSeats) -> Iterator[str]:
    """Yield a message for each unknown, ambiguous or reserved name in a stage."""
    speaking = {other.role for other in seats.all_stages}
    if stage.partner_role and stage.partner_role not in speaking:
        field = "verifies" if stage.verifies else "each"
        yield f"{field}: no role {stage.partner_role!r}; {choices_hint(stage.partner_role, speaking)}"
    elif seats.speakers(stage) != seats.speakers(seats.stages[stage.label]):
        yield "spoken by different agents in two places; give one of them another `name`"
    for speaker in stage.hears.keys() - {*seats.agents_of, *seats.role_of}:
        yield f"hears: no role {speaker!r}; {choices_hint(speaker, seats.agents_of)}"
    if stage.tools in speaking:
        yield f"tools: role {stage.tools!r} speaks in a stage itself; name another one"
    for name in {stage.role, stage.label} & {*Blackboard.RESERVED, *FUNCTIONS}:
        yield f"role, name: {name!r} stands for something else in expressions; choose another name"


def _posing_problems(team: Workflow) -> Iterator[str]:
    """Yield a message for each stage without a way to pose problems, or with a way to replace a held-out problem."""
    for path, step in steps_with_paths("stages", team.stages):
        if isinstance(step, Stage) and step.poses and not team.task.posing_instructions:
            yield (
                f"{path}.poses: true, but nothing can be posed on task {team.task.kind!r} with these settings; "
                "choices: arithmetic, countdown, strings, or file and dataset with `poses: true`"
            )
        if isinstance(step, Stage) and step.poses and not (step.when and is_always_false(step.when, "held_out")):
            condition = f"split == 'train' and ({step.when})" if step.when else "split == 'train'"
            yield (
                f"{path}.when: {shorten(step.when)} does not keep the problems that are posed here from replacing "
                f"held-out ones, on which the team is measured; write `when: {condition}`"
            )


@dataclass(frozen=True, slots=True)
class _Snippet:
    """An expression or template of the workflow; in it, `own` stands for `agent` and `it` for `speaker`."""

    field: str
    source: str
    kind: Literal["number", "condition", "observation", "example"]
    """`number`: a reward or measure. An `observation` must not reveal the answer; an `example` of a move may."""
    agent: str | None = None
    speaker: str | None = None

    @property
    def template(self) -> bool:
        return self.kind in ("observation", "example")


def _snippet_problems(team: Workflow) -> Iterator[str]:
    """Yield a message for each expression or template that uses forbidden facts or fails."""
    boards = [_board(team), _board(team, after_turns=True)]
    for snippet in _snippets(team):
        try:
            _check_names(snippet, boards[0], team)
            _try_out(snippet, boards)
        except ValueError as error:
            yield f"{snippet.field}: {error}"
            continue
        if snippet.template:
            continue
        condition = snippet.kind == "condition"
        for agent in agents_without_readable_check(snippet.source, boards[0].agents(), condition=condition):
            instead = f"`{agent}.readable and ...`" if condition else f"`{agent}.readable * (...)`"
            words = f", or compare {agent}.move with given words by == or in" if condition else ""
            yield (
                f"{snippet.field}: {shorten(snippet.source)} looks at what {agent!r} said, which may be unreadable: "
                f"its move is then '' and its score 0; say what follows from that by {agent}.readable, such as "
                f"{instead}{words}"
            )


def _board(team: Workflow, *, after_turns: bool = False) -> Blackboard:
    """Return the facts of a problem before the first turn, or after a legal move and full scores of every agent."""
    blackboard = Blackboard(team.team_seats)
    blackboard.reset(team.tasks.problem("train", 0))
    for stage in team.team_seats.all_stages if after_turns else ():
        for agent in team.team_seats.speakers(stage):
            blackboard.record(stage, agent, (stage.legal or (_TRIAL_MOVE,))[0])
            if partner := stage.verifies and team.team_seats.partner(stage, agent):
                verdict = {"scores": dict.fromkeys(stage.scores, 1)}
                blackboard.record_verdict(partner, json.dumps(verdict), stage.scores)
    return blackboard


def _check_names(snippet: _Snippet, blackboard: Blackboard, team: Workflow) -> None:
    """Raise ValueError if a snippet uses an unknown name, or if an observation uses a secret fact of the problem."""
    names = set(blackboard.names(with_answer=snippet.kind != "observation")) - {"own", "it"}
    if snippet.agent:
        names.add("own")
    if snippet.speaker:
        names.add("it")
    for name in sorted(names_in(snippet.source, template=snippet.template) - names):
        shown = shorten(snippet.source)
        raise ValueError(f"{shown} uses {name!r}, which does not exist here; {choices_hint(name, names)}")
    if snippet.kind != "observation":
        return
    for name in secret_facts_in(snippet.source, team.secret_facts):
        shown = "all of `given`" if name == "given" else f"`given.{name}`"
        raise ValueError(
            f"{shorten(snippet.source)} uses {shown}, and so tells what gives the answer away; secret facts of task "
            f"{team.task.kind!r}: {', '.join(sorted(team.secret_facts))}; name others, as `given.NAME`"
        )


def _try_out(snippet: _Snippet, boards: list[Blackboard]) -> None:
    """Evaluate a snippet on trial facts; raise ValueError if evaluation fails."""
    failures: list[DivisionError] = []
    for blackboard in boards:
        names = names_in(snippet.source, template=snippet.template)
        facts = blackboard.select_facts(names, snippet.agent, snippet.speaker)
        try:
            if snippet.template:
                render(snippet.source, facts)
            elif snippet.kind == "number":
                evaluate_number(snippet.source, facts)
            else:
                evaluate(snippet.source, facts)
        except DivisionError as error:
            failures.append(error)
    # A division by zero on only some of the boards depends on the moves, so it need not fail in play.
    if len(failures) == len(boards):
        raise failures[0]


def _snippets(team: Workflow) -> Iterator[_Snippet]:
    """Yield all expressions and templates of a workflow."""
    for role, components in team.rewards.items():
        for name, payment in components.items():
            yield _Snippet(f"rewards.{role}.{name}", payment.value, "number", team.team_seats.agents_of[role][0])
    for name, source in team.measures.items():
        yield _Snippet(f"measures.{name}", source, "number")
    for path, step in steps_with_paths("stages", team.stages):
        if isinstance(step, KeepDecision):
            yield _Snippet(f"{path}.keep", step.keep, "condition")
        elif isinstance(step, Loop):
            if step.until:
                yield _Snippet(f"{path}.until", step.until, "condition")
        else:
            yield from _stage_snippets(path, step, team.team_seats)


def _stage_snippets(path: str, stage: Stage, seats: TeamSeats) -> Iterator[_Snippet]:
    """Yield the expressions and templates of one stage, for its first agent."""
    agent = seats.speakers(stage)[0]
    yield _Snippet(f"{path}.tell", stage.tell, "observation", agent)
    if stage.when:
        yield _Snippet(f"{path}.when", stage.when, "condition")
    for speaker, condition in stage.hears.items():
        yield _Snippet(f"{path}.hears.{speaker}", condition, "condition", agent, seats.named(speaker)[0])
    for index, example in enumerate(stage.examples):
        yield _Snippet(f"{path}.examples.{index}", example, "example", agent)
