"""A fourth table of answers by a writer who had read the documented rules of the verifiers, but not the code.

Each row names its verifier (`kind`); rows for unit tests hold their `facts`. The verifiers were mended with the tuned
half in sight. The held-out half was measured before and once after the mending: 370, then 375 of 381 verdicts right, 1,
then 0 wrong answers accepted. Most questions have rows in both halves; 58 held-out rows have questions of their own
(56 right, before and after). All figures are in `tests/games/verifiers/fourth_table_figures.json`.
"""

from __future__ import annotations

import json
from functools import cache

import pytest
from answer_table import HERE
from test_fresh_eyes_table import verdicts_on_rows


@cache
def verdicts(half: str) -> dict[str, tuple[bool, bool]]:
    """Return a row's id -> (whether its answer is right, whether it was accepted), for one half of the table."""
    lines = (HERE / f"fourth_table_{half}.jsonl").read_text(encoding="utf-8").splitlines()
    return verdicts_on_rows([row | {"check": row["kind"]} for row in map(json.loads, lines)])


@pytest.mark.slow
@pytest.mark.parametrize(("half", "max_wrong"), [("tuned", 0), ("held_out", 6)])
def test_verdicts_on_the_fourth_table_are_right(half: str, max_wrong: int) -> None:
    table = verdicts(half)
    assert len(table) == 381
    wrong = [key for key, (right, accepted) in table.items() if right != accepted]
    assert len(wrong) <= max_wrong, wrong
    assert all(table[key][0] for key in wrong), "a wrong answer is accepted"
