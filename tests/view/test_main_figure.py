"""The main figure of a run: which one it is, and whether its first and last value differ by more than chance."""

from __future__ import annotations

from typing import Any

import pytest

from marl.scenario.schema import EvaluationSettings
from marl.view.main_figure import main_figure

# 48 of 80 and 56 of 70: Newcombe 1998, table II, gives the difference's interval by method 10 as 0.0524 to 0.3339.
SUCCESS = {
    "eval/held_out/success": [(0, 0.6), (50, 0.8)],
    "eval/held_out/success_low": [(0, 0.4904), (50, 0.6918)],
    "eval/held_out/success_high": [(0, 0.7004), (50, 0.8770)],
}


def figure(history: dict[str, list[tuple[int, float]]], **settings: Any) -> Any:
    return main_figure(history, EvaluationSettings(**settings))


def test_a_success_rate_got_better_if_the_interval_of_its_difference_leaves_out_zero() -> None:
    found = figure({"eval/random/mean": [(0, 1.0)], **SUCCESS})
    assert (found.metric, found.verdict, found.basis) == ("eval/held_out/success", "better", "over episodes")
    assert (found.first.step, found.first.value, found.last.step, found.last.value) == (0, 0.6, 50, 0.8)
    assert (found.difference_low, found.difference_high) == pytest.approx((0.0524, 0.3339), abs=1e-4)


def test_a_difference_within_its_interval_is_no_clear_change() -> None:
    smaller = SUCCESS | {
        "eval/held_out/success": [(0, 0.6), (50, 0.7)],
        "eval/held_out/success_low": [(0, 0.49), (50, 0.58)],
        "eval/held_out/success_high": [(0, 0.7), (50, 0.8)],
    }
    assert figure(smaller).verdict == "no clear change"


def test_a_figure_without_an_interval_is_no_clear_change() -> None:
    found = figure({"eval/held_out/success": SUCCESS["eval/held_out/success"]})
    assert (found.verdict, found.difference_low, found.basis) == (
        "no clear change",
        None,
        "no interval was recorded",
    )


def test_a_lower_nashconv_is_better_and_counts_only_with_legal_answers() -> None:
    history = {"eval/nashconv": [(0, 0.9), (50, 0.4)], "eval/legal_mass": [(0, 1.0), (50, 1.0)]}
    assert (figure(history).verdict, figure(history).basis) == ("better", "exact")
    assert figure(history | {"eval/legal_mass": [(0, 1.0), (50, 0.2)]}).verdict == "does not count"


def test_the_figure_that_chooses_the_best_checkpoint_comes_first_with_its_goal() -> None:
    history = SUCCESS | {f"eval/held_out/turns{end}": [(0, 9.0), (50, 4.0)] for end in ("", "_low", "_high")}
    assert figure(history, keep_best="turns", goal="min").verdict == "better"
    del history["eval/held_out/success"]
    assert figure(history).verdict == "fell"


def test_a_figure_that_was_measured_once_is_compared_with_nothing() -> None:
    once = {name: points[:1] for name, points in SUCCESS.items()}
    assert figure(once).verdict == "measured once"


def test_without_evaluations_the_returns_tell_by_means_over_steps_unless_the_game_is_zero_sum() -> None:
    returns = [0.1, 0.3, 0.2, 0.1, 0.3, 0.8, 0.9, 1.0, 0.9, 0.8]
    history = {"episode/return/solver": [(step, value) for step, value in enumerate(returns, 1)]}
    found = figure(history)
    assert (found.verdict, found.basis) == ("better", "over the 5 steps at either end")
    # Student's t with 4 degrees of freedom: 2.776 * stdev (0.1) / sqrt(5).
    assert (found.first.low, found.first.value, found.first.high) == pytest.approx((0.0758, 0.2, 0.3242), abs=1e-4)
    history["episode/return/other"] = [(step, -value) for step, value in history["episode/return/solver"]]
    assert figure(history) is None
    assert figure({}) is None
