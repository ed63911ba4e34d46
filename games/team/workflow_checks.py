"""Checks of a workflow before play: its roles, and the facts used by its expressions and templates.

Every message names the field, the value and a correct alternative.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

from marl.core.config import choices_hint, did_you_mean
from marl.games.team.blackboard import ANSWER_NAMES, CALL, Blackboard, reported_rewards_all_one_for_checks
from marl.games.team.expressions import (
    FUNCTIONS,
    DivisionByZeroError,
    evaluate_as_number,
    evaluate_expression,
    fact_names_in,
    render_template,
    shortened_repr,
)
from marl.games.team.speaker_checks import read_before_turn_errors
from marl.games.team.stages import KeepPosedProblemStep, Stage, StageLoop, steps_with_setting_paths
from marl.games.team.static_analysis import (
    agents_used_without_readable_check,
    attribute_names_read_from,
    is_always_false,
    secret_fact_names_in_template,
)
from marl.games.team.workflow import WorkflowConfig

_MOVE_IN_CHECKS = "1"
"""Move of every agent in checks before play, if its stage has no list of legal moves."""


def workflow_errors(team: WorkflowConfig) -> list[str]:
    """Return an error message for each mistake in a workflow."""
    errors = list(_role_and_stage_name_errors(team))
    # Expressions are only evaluated if the roles and stages that they name exist.
    if errors:
        return errors
    errors += read_before_turn_errors(team.stages, team.team_seats)
    for path, step in steps_with_setting_paths("stages", team.stages):
        if not isinstance(step, Stage) or not step.poses:
            continue
        if not team.task.problem_posing_instructions:
            errors.append(
                f"{path}.poses: true, but nothing can be posed on task {team.task.kind!r} with these settings; "
                "choices: arithmetic, countdown, strings, or file and dataset with `poses: true`"
            )
        if not (step.when and is_always_false(step.when, "held_out")):
            condition = f"split == 'train' and ({step.when})" if step.when else "split == 'train'"
            errors.append(
                f"{path}.when: {shortened_repr(step.when)} does not keep the problems that are posed here from "
                f"replacing held-out ones, on which the team is measured; write `when: {condition}`"
            )
    errors += _reserved_measure_errors(team)
    snippet_errors = list(_expression_and_template_errors(team))
    # A score that no stage gives breaks every expression that reads it, so only the stage is reported.
    return [*errors, *((snippet_errors and list(_unread_score_errors(team))) or snippet_errors)]


def _reserved_measure_errors(team: WorkflowConfig) -> Iterator[str]:
    """Yield an error for each measure with the name of a role's corrections, under which it would be reported."""
    for role in team.team_seats.agents_of:
        for end in ("fixes", "breaks"):
            if (name := f"{role}_{end}") in team.measures:
                yield (
                    f"measures.{name}: {name!r} is the name under which corrections of role {role!r} are measured; "
                    f"choose another, such as {end}_of_{role}"
                )


def _unread_score_errors(team: WorkflowConfig) -> Iterator[str]:
    """Yield an error for each stage whose `scores` no expression reads while some expression reads an unknown score.

    A misspelling in a single expression is left to the error of this expression, which suggests similar names. Of two
    similar names, the one that fewer expressions read is the misspelling.
    """
    seats, board = team.team_seats, _blackboard_for_checks(team)
    all_readers = _fields_by_read_fact(team, {*seats.stages, *seats.role_of})
    for path, stage in steps_with_setting_paths("stages", team.stages):
        if not isinstance(stage, Stage) or not stage.verifies:
            continue
        partners = {stage.verifies, *seats.agents_by_role_or_name(stage.verifies)}
        facts = board.select_facts(["own"], seats.agents_by_role_or_name(stage.verifies)[0])["own"]
        readers = _fields_by_read_fact(team, partners)
        score_reader_count = max([len(all_readers[score]) for score in stage.scores if score in readers], default=0)
        for score, fields in readers.items():
            reader_count = len(all_readers[score])
            others = {*facts} - {*stage.scores}
            others |= {name for name in readers if len(all_readers[name]) > reader_count}
            if score in facts or score.startswith("_") or get_close_matches(score, others, cutoff=0.75):
                continue
            is_similar = bool(did_you_mean(score, stage.scores))
            if reader_count > max(score_reader_count, 1) if is_similar else score_reader_count == 0:
                remedy = "spell both alike" if is_similar else f"write scores: [{score}]"
                yield (
                    f"{path}.scores: {', '.join(stage.scores)}, but {' and '.join(fields)} "
                    f"{'reads' if len(fields) == 1 else 'read'} the score {score!r}; {remedy}"
                )


def _fields_by_read_fact(team: WorkflowConfig, agents: set[str]) -> Mapping[str, Sequence[str]]:
    """Return, for each fact of `agents` that an expression reads, the expressions' fields."""
    fields: dict[str, list[str]] = {}
    for snippet in _iter_expressions_and_templates(team):
        names = agents | {"own"} if snippet.agent in agents else agents
        with suppress(ValueError):  # invalid jinja2 is reported by `_expression_and_template_errors`, not here
            for fact in sorted(attribute_names_read_from(snippet.source, names, is_template=snippet.is_template)):
                fields.setdefault(fact, []).append(snippet.field)
    return fields


def _role_and_stage_name_errors(team: WorkflowConfig) -> Iterator[str]:
    """Yield an error message for each unknown, ambiguous or reserved name of a role or stage."""
    seats = team.team_seats
    spoken = {stage.role for stage in seats.all_stages}
    roles = spoken | seats.caller_roles
    for stage in seats.all_stages:
        where = f"stage {stage.name_in_expressions!r}: "
        if (role := stage.read_or_verified_role) and role not in roles:
            field = "verifies" if stage.verifies else "each"
            yield f"{where}{field}: no role {role!r}; {choices_hint(role, roles)}"
        elif seats.stage_agents(stage) != seats.stage_agents(seats.stages[stage.name_in_expressions]):
            yield f"{where}spoken by different agents in two places; give one of them another `name`"
        for speaker in stage.hears.keys() - {*seats.agents_of, *seats.role_of}:
            yield f"{where}hears: no role {speaker!r}; {choices_hint(speaker, seats.agents_of)}"
        for role in {*(stage.callers or ())} & spoken:
            yield f"{where}callers: role {role!r} speaks in a stage itself; name another one"
        if stage.calls.verifier in {stage.role, stage.tools} - {None}:
            yield f"{where}calls.verifier: {stage.calls.verifier!r} cannot score its own calls or results"
        if stage.tools in roles:
            yield f"{where}tools: role {stage.tools!r} speaks in a stage itself; name another one"
        for name in {stage.role, stage.name_in_expressions, *(stage.callers or ())} & {
            *Blackboard.RESERVED,
            *FUNCTIONS,
        }:
            yield f"{where}role, name: {name!r} stands for something else in expressions; choose another name"
    for role, components in team.rewards.items():
        if role not in seats.agents_of:
            yield f"rewards.{role}: no such role; {choices_hint(role, seats.agents_of)}"
        for name, component in components.items():
            moments = [*seats.stages, *([CALL] if any(stage.tools for stage in seats.all_stages) else [])]
            if component.after and component.after not in moments:
                hint = choices_hint(component.after, moments)
                yield f"rewards.{role}.{name}.after: no stage {component.after!r}; {hint}"


@dataclass(frozen=True, slots=True)
class _ExpressionOrTemplate:
    """Expression or template of the workflow, with the agents that its names `own` and `it` stand for."""

    field: str
    """Path of the expression in the settings, such as `rewards.solver.right`."""
    source: str
    kind: Literal["number", "condition", "observation", "example"]
    """Use of the snippet. A reward or measure is a `number`. An `example` may reveal answers; no `observation` may."""
    agent: str | None = None
    speaker: str | None = None

    @property
    def is_template(self) -> bool:
        """True if the snippet is a jinja2 template, False if it is an expression."""
        return self.kind in ("observation", "example")


def _expression_and_template_errors(team: WorkflowConfig) -> Iterator[str]:
    """Yield an error message for each expression or template that fails or uses forbidden facts."""
    boards = [_blackboard_for_checks(team), _blackboard_for_checks(team, after_turns=True)]
    agents = {*team.team_seats.stages, *team.team_seats.role_of, "own", "it"}
    for snippet in _iter_expressions_and_templates(team):
        divisions_by_zero: list[DivisionByZeroError] = []
        try:
            names = _validated_names_in(snippet, agents, team)
            for blackboard in boards:
                facts = blackboard.select_facts(names, snippet.agent, snippet.speaker)
                try:
                    if snippet.is_template:
                        render_template(snippet.source, facts)
                    elif snippet.kind == "number":
                        evaluate_as_number(snippet.source, facts)
                    else:
                        evaluate_expression(snippet.source, facts)
                except DivisionByZeroError as error:
                    divisions_by_zero.append(error)
            # A division by zero is an error if all tried facts cause it; otherwise it depends on the moves.
            if len(divisions_by_zero) == len(boards):
                raise divisions_by_zero[0]
        except ValueError as error:
            yield f"{snippet.field}: {error}"
            continue
        if snippet.is_template:
            continue
        condition = snippet.kind == "condition"
        for agent in agents_used_without_readable_check(snippet.source, agents, is_condition=condition):
            instead = f"`{agent}.readable and ...`" if condition else f"`{agent}.readable * (...)`"
            words = f", or compare {agent}.move with given words by == or in" if condition else ""
            yield (
                f"{snippet.field}: {shortened_repr(snippet.source)} looks at what {agent!r} said, which may be "
                f"unreadable: its move is then '' and its score 0; say what follows from that by {agent}.readable, "
                f"such as {instead}{words}"
            )


def _blackboard_for_checks(team: WorkflowConfig, *, after_turns: bool = False) -> Blackboard:
    """Return a blackboard to check expressions: before any turn or, with `after_turns`, after a turn of each agent."""
    blackboard = Blackboard(team.team_seats)
    blackboard.reset(team.task_problems.problem("train", 0))
    for facts in blackboard.latest.values():
        if "reported" in facts.facts:
            facts.facts["reported"] = reported_rewards_all_one_for_checks()
    for stage in team.team_seats.all_stages if after_turns else ():
        for agent in team.team_seats.stage_agents(stage):
            for caller in team.team_seats.program_caller_by_role(stage, agent).values():
                blackboard.latest[caller].facts.update(
                    {"move": _MOVE_IN_CHECKS, "readable": 1.0, "score": 1.0, "spoke": 1}
                )
            blackboard.record_move(stage, agent, (stage.legal or (_MOVE_IN_CHECKS,))[0])
            if partner := stage.verifies and team.team_seats.read_or_verified_agent(stage, agent):
                verdict = {"scores": dict.fromkeys(stage.scores, 1)}
                blackboard.record_verdict(partner, json.dumps(verdict), stage.scores)
    return blackboard


def _validated_names_in(snippet: _ExpressionOrTemplate, agents: set[str], team: WorkflowConfig) -> frozenset[str]:
    """Return the names in `snippet`; raise ValueError for an unknown name, or a secret fact in an observation."""
    used = fact_names_in(snippet.source, is_template=snippet.is_template)
    reserved = Blackboard.RESERVED - {*ANSWER_NAMES} if snippet.kind == "observation" else Blackboard.RESERVED
    names = (reserved | agents) - {"own", "it"}
    if snippet.agent:
        names |= {"own"}
    if snippet.speaker:
        names |= {"it"}
    for name in sorted(used - names):
        shown = shortened_repr(snippet.source)
        raise ValueError(f"{shown} uses {name!r}, which does not exist here; {choices_hint(name, names)}")
    for name in (
        secret_fact_names_in_template(snippet.source, team.secret_fact_names) if snippet.kind == "observation" else ()
    ):
        shown = "all of `given`" if name == "given" else f"`given.{name}`"
        raise ValueError(
            f"{shortened_repr(snippet.source)} uses {shown}, and so tells what gives the answer away; secret facts of "
            f"task {team.task.kind!r}: {', '.join(sorted(team.secret_fact_names))}; name others, as `given.NAME`"
        )
    return used


def _iter_expressions_and_templates(team: WorkflowConfig) -> Iterator[_ExpressionOrTemplate]:
    """Yield all expressions and templates of a workflow; in those of a stage, `own` is the stage's first agent."""
    seats = team.team_seats
    for role, components in team.rewards.items():
        for name, component in components.items():
            yield _ExpressionOrTemplate(f"rewards.{role}.{name}", component.value, "number", seats.agents_of[role][0])
    for name, source in team.measures.items():
        yield _ExpressionOrTemplate(f"measures.{name}", source, "number")
    for path, step in steps_with_setting_paths("stages", team.stages):
        if isinstance(step, KeepPosedProblemStep):
            yield _ExpressionOrTemplate(f"{path}.keep", step.keep, "condition")
        elif isinstance(step, StageLoop):
            if step.until:
                yield _ExpressionOrTemplate(f"{path}.until", step.until, "condition")
        else:
            agent = seats.stage_agents(step)[0]
            yield _ExpressionOrTemplate(f"{path}.tell", step.tell, "observation", agent)
            if step.when:
                yield _ExpressionOrTemplate(f"{path}.when", step.when, "condition")
            for speaker, condition in step.hears.items():
                yield _ExpressionOrTemplate(
                    f"{path}.hears.{speaker}", condition, "condition", agent, seats.agents_by_role_or_name(speaker)[0]
                )
            for index, example in enumerate(step.examples):
                yield _ExpressionOrTemplate(f"{path}.examples.{index}", example, "example", agent)
            for role, caller in seats.program_caller_by_role(step, agent).items():
                for index, example in enumerate((step.callers or {})[role].examples):
                    yield _ExpressionOrTemplate(f"{path}.callers.{role}.examples.{index}", example, "example", caller)
