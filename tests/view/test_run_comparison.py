"""Comparison of runs: settings that differ, final figures with intervals, seeds as one column or band."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

import marl
from marl.core.statistics import student_t_interval
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError
from marl.view.curve_data import CurveSelection, select_curves
from marl.view.number_format import format_metric_value
from marl.view.run_comparison import compare_runs

SCENARIO = "scenarios/kuhn_self_play.yaml"


def run(folder: Path, changes: list[str], *rows: dict[str, float]) -> Path:
    RunFolder(folder).create(marl.load(SCENARIO, changes))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def seeds(tmp_path: Path, values: list[float]) -> list[Path]:
    return [
        run(tmp_path / f"seed_{i}", [f"schedule.seed={i}"], {"step": 1, "eval/nashconv": value, "eval/legal_mass": 1.0})
        for i, value in enumerate(values)
    ]


def test_students_interval_is_that_of_the_tables() -> None:
    # Student 1908's sleep data, second drug: mean 2.33, standard deviation 2.002, n 10, t(.975, 9) = 2.262.
    low, mean, high = student_t_interval([1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4])
    assert (low, mean, high) == pytest.approx((0.898, 2.33, 3.762), abs=2e-3)


def test_runs_that_differ_in_their_seeds_are_one_column_with_an_interval(tmp_path: Path) -> None:
    other = run(
        tmp_path / "other", ["policies.actor.learner.lr=0.5"], {"step": 1, "eval/nashconv": 0.5, "eval/legal_mass": 1.0}
    )
    text = compare_runs([*seeds(tmp_path, [0.1, 0.2, 0.3]), other])
    assert "A: seed_0, seed_1, seed_2 (step 1)\nB: other (step 1)" in text
    assert "policies.actor.learner.lr" in text
    assert "schedule.seed" not in text
    # t(.975, 2) = 4.303, standard deviation .1: .2 +- .248
    assert "0.2 [-0.04841, 0.4484]" in text


def test_defaults_of_another_kind_are_no_differences(tmp_path: Path) -> None:
    one = run(tmp_path / "grpo", [], {"step": 1})
    ppo = "{kind: ppo, lr: 1.0e-3, truncated: recompute, critic: {coefficient: 0.2}}"
    other = run(tmp_path / "ppo", [f"policies.actor.learner={ppo}", "credit.assign={kind: gae}"], {"step": 1})
    settings = re.findall(r"^ *([a-z_]+\.[a-z_.]+) ", compare_runs([one, other]), re.MULTILINE)
    learner = [name for name in settings if name.startswith("policies.actor.learner.")]
    assert "policies.actor.learner.kind" in learner
    assert "policies.actor.learner.critic.coefficient" in learner, "which is not its default"
    assert not {"policies.actor.learner.critic.clip", "policies.actor.learner.critic.warm_up"} & {*learner}


def test_a_single_run_shows_the_interval_that_it_measured(tmp_path: Path) -> None:
    name = "eval/random/win"
    row = {"step": 5, name: 0.5, f"{name}_low": 0.4, f"{name}_high": 0.6}
    assert "0.5 [0.4, 0.6]" in compare_runs([run(tmp_path / "one", [], row)])


def test_the_last_tenth_of_the_steps_counts(tmp_path: Path) -> None:
    rows = [{"step": step, "episode/return/player_0": float(step)} for step in range(1, 21)]
    assert re.search(r"episode/return/player_0 +19$", compare_runs([run(tmp_path / "one", [], *rows)]))


def test_a_counter_is_not_averaged_but_the_total_at_the_end(tmp_path: Path) -> None:
    rows = [{"step": step, "step/tokens": 1000.0 * step, "step/eval_tokens": 10.0 * step} for step in range(1, 21)]
    one = run(tmp_path / "one", [], *rows)
    assert re.search(r"step/tokens +20,000$", compare_runs([one]))
    assert re.search(r"step/eval_tokens +200$", compare_runs([one], ["step/eval_tokens"]))


NUMBERS = {
    0.0: "0",
    64.0: "64",
    12345678.0: "12,345,678",
    0.25: "0.25",
    -0.5: "-0.5",
    12345.67: "12350",
    0.000123456: "0.0001235",
    0.0000123456: "1.23e-5",
    -5.78e-14: "-5.78e-14",
    -5.78e-18: "0",
    12345678.9: "1.23e+7",
    999999.9: "1000000",
    math.inf: "inf",
}


@pytest.mark.parametrize(("number", "text"), NUMBERS.items())
def test_numbers_have_one_format(number: float, text: str) -> None:
    assert format_metric_value(number) == text


def test_an_unknown_metric_is_named_with_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"--metric eval/nashconf: .*eval/nashconv"):
        compare_runs(seeds(tmp_path, [0.1]), ["eval/nashconf"])


def test_a_band_is_the_mean_of_seeds_where_all_were_measured(tmp_path: Path) -> None:
    runs = seeds(tmp_path, [0.1, 0.3])
    (runs[0] / "metrics.jsonl").open("a").write('{"step": 2, "eval/nashconv": 7.0}\n')
    curves, _ = select_curves(runs, CurveSelection(["eval/nashconv"], band="seeds"))
    [point] = curves["eval/nashconv"]["seed_0, seed_1"]
    assert (point.step, point.value) == (1, pytest.approx(0.2))
    # t(.975, 1) = 12.706, standard deviation .1414
    assert point.high == pytest.approx(0.2 + 12.706 * 0.1, abs=1e-3)


def test_figures_of_roles_share_a_panel(tmp_path: Path) -> None:
    row = {"step": 1, "role/solver/illegal": 0.1, "role/critic/illegal": 0.2, "role/solver/reward/correct": 1.0}
    curves, _ = select_curves([run(tmp_path / "one", [], row)], CurveSelection(by="role"))
    assert {panel: list(lines) for panel, lines in curves.items()} == {
        "role/*/reward/correct": ["solver"],
        "role/*/illegal": ["solver", "critic"],
    }
