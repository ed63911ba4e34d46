"""A third table of answers by a writer who had seen neither the verifiers nor their tests: verdicts on both halves.

Each row names its verifier (`kind`). At the table's making, before any mending with its rows in sight, the verifiers
were right on 186 of 200 rows of each half (tuned: 2 wrong answers accepted, 12 right ones rejected; held out: 1 and
13). The tuned half was then mended by rule. The held-out half was measured once afterwards: 188 right, 1 wrong answer
accepted, 11 right ones rejected (`tests/games/verifiers/third_table_figures.json`). It is open since then, and both
halves were mended.
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
    rows = [json.loads(line) for line in (HERE / f"third_table_{half}.jsonl").read_text(encoding="utf-8").splitlines()]
    return verdicts_on_rows([row | {"check": row["kind"]} for row in rows])


@pytest.mark.slow
@pytest.mark.parametrize(("half", "most_wrong", "false_accepts"), [("tuned", 0, 0), ("tuned_later", 0, 0)])
def test_verdicts_on_the_third_table_are_right(half: str, most_wrong: int, false_accepts: int) -> None:
    table = verdicts(half)
    assert len(table) == 200
    wrong = [key for key, (right, accepted) in table.items() if right != accepted]
    assert len(wrong) <= most_wrong, wrong
    assert len([key for key in wrong if not table[key][0]]) <= false_accepts, wrong
