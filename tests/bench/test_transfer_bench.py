"""The measurement of transfer compares the same problems before and after training."""

from __future__ import annotations

import pytest
from transfer import compared

from marl.evaluation.suite import Suite
from marl.evaluation.suite_play import EpisodeScoresOfProblem


def test_gains_are_paired_by_problem_so_that_easy_and_hard_problems_do_not_widen_their_intervals() -> None:
    suite = Suite.model_validate({"tests": {"sums": {}}, "samples": 2, "k": [1]})
    levels = {f"problem {index}": index / 100 for index in range(75)}
    before = {"sums": [EpisodeScoresOfProblem(start, (level, level)) for start, level in levels.items()]}
    after = {"sums": [EpisodeScoresOfProblem(start, (level + 0.25,) * 2) for start, level in levels.items()]}
    figures = compared(suite, before, after)
    assert figures["sums/mean/before"] == pytest.approx(0.37)
    assert figures["sums/mean/after"] == pytest.approx(0.62)
    assert {figures[f"sums/mean{bound}/gain"] for bound in ("", "_low", "_high")} == {0.25}
    assert figures["sums/mean_high/before"] - figures["sums/mean_low/before"] > 0.08, "problems differ"
