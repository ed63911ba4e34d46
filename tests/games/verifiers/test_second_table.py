"""A second table of answers by a writer who had seen neither the verifiers nor their tests: verdicts on both halves.

Rows name no verifier: a question with options is a `choice`, and all others are read by `math`. At the table's making,
before any mending, the verifiers were right on 168 of 205 rows (tuned: 4 wrong answers accepted, 33 right ones
rejected) and on 176 of 215 rows (held out: 2 accepted, 37 rejected).
The tuned half was then mended by rule. The held-out half was measured once afterwards: 191 right, 1 wrong answer
accepted, 23 right ones rejected. It is open since then, and both halves were mended.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from answer_table import HERE
from test_fresh_eyes_table import options_in, verdicts_on_rows


def _with_check(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"check": "choice" if len(options_in(row["question"])) > 1 else "math"}


@cache
def verdicts(half: str) -> dict[str, tuple[bool, bool]]:
    """Return a row's id -> (whether its answer is right, whether it was accepted), for one half of the table."""
    lines = (HERE / f"second_table_{half}.jsonl").read_text(encoding="utf-8").splitlines()
    return verdicts_on_rows([_with_check(json.loads(line)) for line in lines])


@pytest.mark.slow
@pytest.mark.parametrize(("half", "share", "false_accepts"), [("tuned", 1.0, 0), ("held_out", 0.99, 0)])
def test_verdicts_on_the_second_table_are_right(half: str, share: float, false_accepts: int) -> None:
    table = verdicts(half)
    wrong = [key for key, (right, accepted) in table.items() if right != accepted]
    assert len(wrong) <= (1 - share) * len(table), wrong
    assert len([key for key in wrong if not table[key][0]]) <= false_accepts, wrong
