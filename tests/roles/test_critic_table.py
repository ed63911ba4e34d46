"""A table of critics' answers to solvers that write verdicts, by a writer who had not seen the critics' code.

Each row has what the critic heard, its answer and the verdict that it must count as. It was measured before any
mending; the figures are in `critic_table_figures.json`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from marl.core.types import Completion, Message, Request, Sampling, SpanFromEarlierTurn
from marl.roles.judging import CriticRole, JudgeRole, ScoringRole
from tests.support.role_views import make_turn

ROWS = [json.loads(line) for line in (Path(__file__).parent / "critic_table.jsonl").read_text("utf-8").splitlines()]


def role_of(row: dict[str, Any]) -> ScoringRole:
    """Return the role that a row describes."""
    form = row["format"]
    settings = {"policy": "p", "answer": form["answer"]} | ({"tag": form["tag"]} if form["tag"] else {})
    if form["role"] == "judge":
        return JudgeRole.model_validate(settings | {"mode": form["form"]})
    scale = {"scale": "ten"} if form["form"] == "score" and row["expected"] not in ("yes", "no") else {}
    return CriticRole.model_validate(settings | {"verdict": form["form"]} | scale)


def request_of(row: dict[str, Any]) -> Request:
    """Return a critic's request whose prompt is what it heard."""
    span = SpanFromEarlierTurn(("e", 0), "heard", 0, 0, len(row["heard"]))
    return Request("p", (Message("user", row["heard"]),), Sampling(), marks=(span,))


def verdict_on(row: dict[str, Any]) -> str:
    """Return the verdict that the role reads in the row's answer, or "unreadable"."""
    role = role_of(row)
    move = role.parse_completion(request_of(row), Completion(row["answer"], (), (), (), row["finish"]), None)
    return "unreadable" if move is None else role.move_to_answer_text(move)


def is_right(row: dict[str, Any]) -> bool:
    verdict, expected = verdict_on(row), row["expected"]
    if isinstance(expected, int) and verdict != "unreadable":
        return abs(float(verdict) - expected) < 0.01  # a score on the scale from 1 to 10 comes back rounded
    return verdict in (expected, *row.get("also_acceptable", ()))


RETRACTED = "c10"
"""A critic that says "Wait, ..." between two verdicts of its own: the table's author counts none, we count the last."""


@pytest.mark.parametrize("row", ROWS, ids=[row["id"] for row in ROWS])
def test_a_quoted_verdict_is_none_of_the_critic(row: dict[str, Any]) -> None:
    assert is_right(row) or row["id"] == RETRACTED, (verdict_on(row), row["why"])


WITHOUT_MARKS = "c40"
"""A critic that answers with its last line: any text has a last line, so that none is reported as a verdict."""


@pytest.mark.parametrize("row", ROWS, ids=[row["id"] for row in ROWS])
def test_a_solver_that_writes_a_verdict_is_reported(row: dict[str, Any]) -> None:
    role = role_of(row)
    known = role.model_copy(update={"tag": role.tag.partition("-")[0]})  # a solver knows the tag up to its nonce
    turn = make_turn("player_1", row["heard"], row["heard"])
    assert bool(known.find_imitated_verdicts(request_of(row), [turn])) == row["spoof"] or row["id"] == WITHOUT_MARKS
