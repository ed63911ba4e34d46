"""Each learning figure of the README again, with one seed and a tenth of the budget."""

from __future__ import annotations

import math
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT

sys.path.insert(0, str(ROOT / "tests" / "bench"))
from credit_learning import METHODS
from learning import OTHERS, TASKS, follow, imitate, learn

PROCESS = METHODS["process"]

pytestmark = [pytest.mark.slow, pytest.mark.one_in(5)]


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("learning.RUNS", tmp_path)


def tenth(task: str, budget: float = 0.1) -> dict[str, Any]:
    return learn(task, seed=0, budget=budget, overrides=[])


def test_kuhn_self_play_goes_most_of_the_way_to_equilibrium_in_a_tenth_of_the_demo() -> None:
    figures = tenth("kuhn")
    assert figures["eval/nashconv/start"] > 0.8, "the warm-up teaches the format, not the game"
    assert figures["eval/nashconv/end"] < 0.4
    assert figures["eval/nashconv/legal_mass"] > 0.98


def test_liars_dice_self_play_loses_a_third_of_its_exploitability_in_a_tenth_of_the_budget() -> None:
    figures = tenth("liars_dice")
    assert figures["eval/nashconv/start"] > 1.0, "uniform play has 1.11"
    assert figures["eval/nashconv/end"] < 0.8
    assert figures["eval/nashconv/legal_mass"] > 0.98


def test_nim_self_play_finds_most_optimal_moves_in_a_tenth_of_the_budget() -> None:
    figures = tenth("nim")
    assert figures["eval/optimal/start"] < 0.5
    assert figures["eval/optimal/end"] > 0.42, "ten updates"


def test_pspo_finds_more_optimal_moves_of_nim_in_a_tenth_of_the_budget() -> None:
    figures = tenth("pspo_nim")
    assert figures["eval/optimal/start"] < 0.36
    assert figures["eval/optimal/end"] > 0.38, "ten updates, of which the critic has five for itself"


def test_tic_tac_toe_self_play_beats_random_more_often_after_a_twentieth_of_the_budget() -> None:
    figures = tenth("tic_tac_toe", 0.05)
    # Measured: .375 before, .523 after; the standard error of 1000 games is .016.
    assert figures["random/win"] > figures["before/random/win"] + 0.05


@pytest.mark.parametrize(
    # train_solver_only with adapters and with shared weights: test_one_role.py.
    ("team", "least"),
    [("team_arithmetic", 0.38), ("ppo_team", 0.35)],
)
def test_a_team_gets_better_on_problems_it_never_trained_on_in_a_tenth_of_the_budget(team: str, least: float) -> None:
    figures = tenth(team)
    assert figures["held_out/success/start"] < figures["held_out/success/end"]
    assert figures["held_out/success/end"] > least


@pytest.mark.parametrize(
    ("team", "least", "budget"), [("debate", 0.3, 0.1), ("solver_critic", 0.24, 0.1), ("r_zero", 0.42, 0.06)]
)
def test_a_team_keeps_what_it_could_do_in_its_first_dozen_updates(team: str, least: float, budget: float) -> None:
    assert tenth(team, budget)["held_out/success/end"] > least


def test_the_best_of_four_answers_is_learnt_from_in_a_tenth_of_the_budget() -> None:
    figures = tenth("tree_sampling")
    assert figures["held_out/success/end"] > 0.05


def test_who_is_told_of_its_own_place_learns_faster_than_who_shares_in_all() -> None:
    """A quarter of the budget of `credit_learning.py`, at one learning rate: the curves part slowly."""
    verdicts = [*PROCESS.overrides, "policies.team.learner.lr=1e-3"]
    told = learn("carry_chain", seed=0, budget=0.25, overrides=verdicts)
    shared = learn("carry_chain", seed=0, budget=0.25, overrides=["policies.team.learner.lr=1e-3"])
    assert told["held_out/success/end"] > shared["held_out/success/end"] + 0.02


def test_a_critic_that_is_paid_for_each_right_verdict_is_on_its_way_to_one_verdict_after_ten_updates() -> None:
    figures = tenth("critic_verdict")
    assert figures["held_out/says_yes/end"] < 0.35 < figures["held_out/says_yes/start"]


@pytest.mark.parametrize(
    ("scenario", "least"), [("dpo_pairs", 0.25), ("sft_best", 0.21), ("prime", 0.15), ("iterative_dpo", 0.5)]
)
def test_learners_of_other_kinds_get_better_in_a_tenth_of_the_budget(scenario: str, least: float) -> None:
    figures = tenth(scenario)
    assert figures["held_out/success/start"] < figures["held_out/success/end"]
    assert figures["held_out/success/end"] > least


def test_imitation_of_a_file_says_what_it_was_shown_after_a_tenth_of_the_budget() -> None:
    figures = imitate(0, 0.1, [])
    assert figures["policy/solver/loss/first"] > 3.0
    assert figures["policy/solver/loss/last"] < 1.3


def test_a_tenth_of_the_rlhf_recipe_has_a_reward_model_that_is_more_often_right_than_not() -> None:
    figures = follow("rlhf", 0, 0.1, [])
    assert figures["rlhf_1_sft/held_out/success/start"] < figures["rlhf_1_sft/held_out/success/end"]
    assert figures["rlhf_2_reward/policy/solver/accuracy/last"] > 0.58
    assert figures["rlhf_3_ppo/held_out/success/end"] > 0.25


CHECKED = (
    *("kuhn", "liars_dice", "nim", "pspo_nim", "tic_tac_toe", "team_arithmetic", "ppo_team", "debate", "solver_critic"),
    *("r_zero", "tree_sampling", "carry_chain", "critic_verdict", "dpo_pairs", "sft_best", "prime", "iterative_dpo"),
    *("sft", "rlhf"),
)
"""Learning runs of which the tests above demand more. Those of SmolLM2: tests/scenario/test_real_model.py."""
REMAINING = sorted(name for name in {*TASKS, *OTHERS}.difference(CHECKED) if not name.startswith("smollm2"))


@pytest.mark.skipif(not os.environ.get("ALL_LONG_RUNS"), reason="run by `make learning-smoke`")
@pytest.mark.parametrize("task", REMAINING)
def test_a_tenth_of_every_other_learning_run_ends_with_finite_figures(task: str) -> None:
    run = OTHERS.get(task) or partial(learn, task)
    figures = run(0, 0.1, [])
    # A student that never reaches its teacher needs infinitely many tokens.
    numbers = {name: value for name, value in figures.items() if not name.endswith("tokens_to_the_teacher")}
    assert len(numbers) > 1
    assert not [name for name, value in numbers.items() if not math.isfinite(value)]
