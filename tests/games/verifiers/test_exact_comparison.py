"""Comparison of formulas with three outcomes: equal, different, unknown."""

from __future__ import annotations

from random import Random

import pytest
from grading import verdict

from marl.games.verifiers.formulas import read_formula
from marl.games.verifiers.symbolic import Comparison, _seed_of_points, compare
from marl.protocols.tasks import UNKNOWN_REASON


def outcome(left: str, right: str) -> Comparison:
    left_tree, right_tree = (read_formula(text, None, frozenset("fg")) for text in (left, right))
    return compare(left_tree, right_tree)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (r"\sqrt{5+2\sqrt{6}}", r"\sqrt{2}+\sqrt{3}"),
        (r"\cos\frac{\pi}{7}\cos\frac{2\pi}{7}\cos\frac{3\pi}{7}", r"\frac{1}{8}"),
        (r"e^{i\pi}", "-1"),
        (r"2^{x}", r"e^{x\ln 2}"),
        ("f(2x+2)", "f(2(x+1))"),
    ],
)
def test_equal_values_are_shown_to_be_equal(left: str, right: str) -> None:
    assert outcome(left, right) is Comparison.EQUAL


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (r"\sqrt{2}+10^{-900}", r"\sqrt{2}"),
        (r"e^{\pi\sqrt{163}}", "262537412640768744"),
        ("x+e^{-5000}", "x"),
        ("f(g(x))", "g(f(x))"),
    ],
)
def test_values_that_part_late_are_shown_to_differ(left: str, right: str) -> None:
    assert outcome(left, right) is Comparison.DIFFERENT


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (r"\ln 6", r"\ln 2+\ln 3"),
        (r"\log_2 3", r"\frac{\log 3}{\log 2}"),
        (r"\frac{1}{2}\ln 3", r"\ln\sqrt{3}"),
        (r"1-\frac{1}{e}", r"\frac{e-1}{e}"),
        (r"4^{\sqrt{2}}", r"2^{2\sqrt{2}}"),
        (r"e^{i\theta}", r"\cos\theta+i\sin\theta"),
        (r"\sin(u+v)-\sin(u-v)", r"2\sin v\cos u"),
        (r"\cosh^2 x-\sinh^2 x", "1+0x"),
        (r"\ln(x^2+1)-\ln 2", r"\ln\frac{1+x^2}{2}"),
        ("(n+1)!", "(n+1)n!"),
        (r"\binom{n}{2}", r"\frac{n(n-1)}{2}"),
        (r"2^{n+1}-1", r"2\cdot 2^n-1"),
    ],
)
def test_values_of_transcendental_functions_are_equal_by_the_laws_of_the_functions(left: str, right: str) -> None:
    assert outcome(left, right) is Comparison.EQUAL


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("x", r"x\tanh(5000x^2+5000)"),
        (r"\pi", r"\pi\tanh 5000"),
        (r"\tan\frac{\pi}{5}", r"\tan\frac{\pi}{5}+1-\tanh 9000"),
    ],
)
def test_many_equal_bits_without_a_law_prove_nothing(left: str, right: str) -> None:
    assert outcome(left, right) is Comparison.UNKNOWN


def test_a_formula_that_vanishes_at_the_points_of_another_answer_is_no_zero() -> None:
    points = [Random(f"{_seed_of_points(read_formula('x'))} {index}") for index in range(12)]
    zeros = "".join([f"(x-{random.randint(0, 3072)}/1024)" for random in points])
    assert outcome("x", f"x+{zeros}") is Comparison.DIFFERENT


def test_what_needs_too_many_bits_is_unknown_and_rejected_with_this_reason() -> None:
    radicals = [rf"\sqrt{{{n}}}" for n in range(2, 20)]
    gold, answer = "+".join(radicals), "+".join(reversed(radicals)) + "+0"
    assert outcome(gold, answer) is Comparison.UNKNOWN
    assert not outcome(gold, answer)
    found = verdict("math", "x^2+" + gold, "x^2+" + answer)
    assert found.score == 0
    assert found.why.startswith(UNKNOWN_REASON)
