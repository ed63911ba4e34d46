"""Verdicts on rows of `classes.yaml`: the classes of the issue's lists in many wordings and languages."""

from __future__ import annotations

import pytest
from answer_table import HERE, Row, rows

ROWS = rows(HERE / "classes.yaml")


def faults(expected: bool) -> list[str]:
    """Return the rows that are right, or wrong, and get the other verdict."""
    found: list[str] = []
    for row in ROWS:
        if row.right == expected and (row.check(row.case).score == 1) != expected:
            found.append(described(row))
    return found


def described(row: Row) -> str:
    return f"{row.case.problem.question[:60]} | {row.case.problem.answer} <- {row.case.text}"


@pytest.mark.xdist_group("answer_classes")
def test_right_answers_in_many_wordings_are_accepted() -> None:
    assert faults(True) == []


@pytest.mark.xdist_group("answer_classes")
def test_their_wrong_neighbours_are_rejected() -> None:
    assert faults(False) == []
