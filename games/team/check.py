"""What must fit together in a workflow, checked before anything is played."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from games.team.board import Board
from games.team.expressions import check_names, evaluate, render
from games.team.stages import Keep, Loop, Stage, Step
from marl.config import nearest

if TYPE_CHECKING:
    from games.team.cast import Cast
    from games.team.settings import TeamConfig


def check(team: TeamConfig) -> None:
    """Raises:
    ValueError: naming everything that does not fit, a line each.
    """
    # What is tried out below needs roles that exist.
    problems = list(_roles(team)) or list(_texts(team))
    if problems:
        raise ValueError("\n".join(problems))


def _roles(team: TeamConfig) -> Iterator[str]:
    for stage in team.cast.all:
        for problem in _neighbours(stage, team.cast):
            yield f"stage {stage.called!r}: {problem}"
    for role, parts in team.rewards.items():
        if role not in team.cast.of_role:
            yield f"rewards.{role}: no such role; {nearest(role, team.cast.of_role)}"
        for name, payment in parts.items():
            if payment.after and payment.after not in team.cast.stages:
                known = nearest(payment.after, team.cast.stages)
                yield f"rewards.{role}.{name}.after: no stage {payment.after!r}; {known}"


def _neighbours(stage: Stage, cast: Cast) -> Iterator[str]:
    speaking = {each.role for each in cast.all}
    if stage.partner and stage.partner not in speaking:
        field = "verifies" if stage.verifies else "each"
        yield f"{field}: no role {stage.partner!r}; {nearest(stage.partner, speaking)}"
    elif cast.speakers(stage) != cast.speakers(cast.stages[stage.called]):
        yield "spoken by different agents in two places; give one of them another `name`"
    for heard in stage.hears.keys() - {*cast.of_role, *cast.roles}:
        yield f"hears: no role {heard!r}; {nearest(heard, cast.of_role)}"
    if stage.tools in speaking:
        yield f"tools: role {stage.tools!r} speaks in a stage itself; name another one"


def _texts(team: TeamConfig) -> Iterator[str]:
    """Every expression, tried on a problem about which nothing has been said yet."""
    board = Board(team.cast)
    board.deal(team.tasks.problem("train", 0))
    for field, source, (own, it), kind in _sources(team):
        present = {name for name, agent in (("own", own), ("it", it)) if agent}
        known = board.names(gold=kind != "told") - {"own", "it"} | present
        try:
            facts = board.facts(check_names(source, known, template=kind != "value"), own, it)
            evaluate(source, facts) if kind == "value" else render(source, facts)
        except ZeroDivisionError:
            continue  # depends on what will be said
        except ValueError as error:
            yield f"{field}: {error}"


_Source = tuple[str, str, tuple[str | None, str | None], str]
"""Where it stands, the text, whom `own` and `it` are, and what it is: a value, told (without the answer), shown."""


def _sources(team: TeamConfig) -> Iterator[_Source]:
    cast = team.cast
    for role, parts in team.rewards.items():
        for name, payment in parts.items():
            yield f"rewards.{role}.{name}", payment.value, (cast.of_role[role][0], None), "value"
    for name, source in team.measures.items():
        yield f"measures.{name}", source, (None, None), "value"
    yield from _flow("stages", team.stages, team)


def _flow(field: str, steps: tuple[Step, ...], team: TeamConfig) -> Iterator[_Source]:
    nobody = (None, None)
    for place, step in enumerate(steps):
        where = f"{field}.{place}"
        if isinstance(step, Keep):
            yield f"{where}.keep", step.keep, nobody, "value"
        elif isinstance(step, Loop):
            if step.until:
                yield f"{where}.until", step.until, nobody, "value"
            yield from _flow(f"{where}.stages", step.stages, team)
        else:
            yield from _stage(where, step, team)


def _stage(where: str, stage: Stage, team: TeamConfig) -> Iterator[_Source]:
    speaker = team.cast.speakers(stage)[0]
    yield f"{where}.tell", stage.tell, (speaker, None), "told"
    if stage.when:
        yield f"{where}.when", stage.when, (None, None), "value"
    for heard, condition in stage.hears.items():
        yield f"{where}.hears.{heard}", condition, (speaker, team.cast.named(heard)[0]), "value"
    for place, example in enumerate(stage.examples):
        yield f"{where}.examples.{place}", example, (speaker, None), "shown"
