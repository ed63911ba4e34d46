"""Near misses of every kind, made by rule: none is accepted, and the right answer is accepted in other spellings."""

from __future__ import annotations

from functools import cache

import pytest
from near_miss_programs import programs
from near_miss_structures import STRUCTURES
from near_misses import RULES
from neighbourhoods import Judged, Rule, judged

GOLDS = {"programs": 1}
"""Rule -> number of golds, where it is not 6: each verdict on code starts a sandbox."""
EACH = pytest.mark.parametrize("rule", [*RULES, *STRUCTURES, programs], ids=lambda rule: rule.__name__)


@cache
def verdicts(rule: Rule) -> tuple[Judged, ...]:
    return tuple(judged(rule, GOLDS.get(rule.__name__, 6), seed=1))


@EACH
def test_no_near_miss_is_accepted(rule: Rule) -> None:
    assert [(one.gold, one.answer) for one in verdicts(rule) if one.accepted and not one.right] == []


@EACH
def test_the_right_answer_is_accepted_in_other_spellings(rule: Rule) -> None:
    assert [(one.gold, one.answer) for one in verdicts(rule) if one.right and not one.accepted] == []


@EACH
def test_every_verdict_takes_less_than_two_seconds_of_processor_time(rule: Rule) -> None:
    assert max(one.seconds for one in verdicts(rule)) < 2
