"""A small search against every grader: no reward without the right answer, and proof that the search would find one."""

from __future__ import annotations

import random

import pytest
from attack import KINDS, targets
from attack_search import Finding, Search, as_json
from claims import Claim, Mark, active, judge
from countdown_targets import judge_expression
from grammar import claims, write

from marl.games.verifiers.text_verifiers import PatternVerifier

TRIES = {"unit_tests": 60, "math": 1200}
"""Kind -> tries, where they are not 2000: each verdict on code starts a sandbox."""


def findings(search: Search, tries: int) -> list[Finding]:
    search.run(tries)
    return list(search.findings.values())


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_no_reward_without_the_right_answer(kind: str) -> None:
    search = Search(targets(kind), seed=0)
    assert [as_json(finding) for finding in findings(search, TRIES.get(kind, 2000))] == []


def test_the_search_finds_what_a_careless_grader_pays_for() -> None:
    """The pattern accepts any answer that holds the right one, such as a list of all."""
    (target,) = targets("pattern")
    careless = PatternVerifier(pattern=r"(?s:.*{answer}.*)")
    search = Search([type(target)(target.name, target.grammar, target.make, {"careless": careless})], seed=0)
    broken = findings(search, 1500)
    assert len(broken) >= 10
    assert "wrong accepted" in {finding.what for finding in broken}


def test_the_search_finds_right_answers_too() -> None:
    search = Search(targets("numeric"), seed=0)
    search.run(3000)
    assert search.counts["right, paid"] >= 10


FIVE, SIX = Claim(5, "boxed"), Claim(6, "boxed")


@pytest.mark.parametrize(
    ("events", "judgement"),
    [
        ([FIVE], "right"),
        ([SIX], "wrong"),
        ([], "wrong"),
        ([FIVE, FIVE], "right"),
        ([FIVE, SIX], "wrong"),
        ([SIX, Mark.WITHDRAWS, FIVE], "right"),
        ([FIVE, Mark.WITHDRAWS], "wrong"),
        ([FIVE, Mark.WITHDRAWS, SIX], "wrong"),
        ([Mark.OPENS, FIVE, Mark.CLOSES], "wrong"),
        ([Mark.OPENS, SIX, Mark.CLOSES, FIVE], "right"),
        ([FIVE, Mark.CLOSES], "wrong"),
        ([FIVE, Mark.OPENS, SIX], "right"),
        ([Claim(None)], "wrong"),
        ([FIVE, Claim(None)], "open"),
        ([Claim(5, sure=False)], "open"),
    ],
)
def test_what_counts_as_a_right_statement(events: list[Claim | Mark], judgement: str) -> None:
    assert judge(events, 5, "all") == judgement


def test_a_reader_of_boxes_sees_no_other_statement() -> None:
    assert judge([Claim(6, "prose"), FIVE], 5, "boxed") == "open"
    assert judge([Claim(6, "prose"), FIVE], 5, "all") == "wrong"
    assert active([FIVE, Mark.OPENS, SIX]) == [FIVE]


@pytest.mark.parametrize(
    ("text", "judgement"),
    [
        ("3*5+7", "right"),
        ("(3 × 5) + 7 = 22", "right"),  # noqa: RUF001
        ("22", "wrong"),
        ("3*5+7+7-7", "wrong"),
        ("3*5+7 = 23", "wrong"),
        ("3*5+٧", "wrong"),  # noqa: RUF001
        ("3**5", "wrong"),
        ("7/(3-3)", "wrong"),
        ("", "wrong"),
    ],
)
def test_the_judge_of_countdown(text: str, judgement: str) -> None:
    assert judge_expression(text, [3, 5, 7], 22) == judgement


@pytest.mark.parametrize("kind", KINDS)
def test_every_grammar_writes_texts_and_says_what_they_claim(kind: str) -> None:
    rng = random.Random(0)
    for target in targets(kind):
        tree = other = target.grammar.derive(rng)
        for _ in range(50):
            puzzle = target.make(rng)
            assert isinstance(write(tree, puzzle), str)
            claims(tree, puzzle)
            tree, other = target.grammar.mutate(rng, tree), target.grammar.cross(rng, tree, other)
