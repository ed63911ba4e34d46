"""Forecasts on held-out starts: a critic's scores against the outcomes of a team."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from marl.commands.simulators import untrained_simulator
from marl.evaluation.held_out import HeldOutEvaluator
from marl.scenario.load import validate

TEAM: dict[str, Any] = {
    "game": {
        "kind": "team",
        "task": {"kind": "arithmetic", "numbers": [10, 49], "train": 20, "held_out": 40},
        "stages": [
            {"role": "solver", "legal": ["yes", "no"]},
            {"role": "critic", "hears": ["solver"], "legal": ["0", "0.5", "1"]},
        ],
        "measures": {
            "success": "solver.readable * (solver.move == 'yes')",
            "said": "critic.readable * critic.score",
            "squared": "(critic.readable * critic.score - solver.readable * (solver.move == 'yes')) ** 2",
        },
    },
    "roles": {
        "solver": {"kind": "solver", "policy": "anyone"},
        "critic": {"kind": "critic", "policy": "anyone", "verdict": "score"},
    },
    "policies": {"anyone": {"engine": {"kind": "random"}}},
    "schedule": {"steps": 1, "groups": 1, "group_size": 2},
    "evaluate": {"held_out": 40, "forecasts": {"verdict": {"score": "said", "outcome": "success"}}},
}


def with_evaluate(**changes: Any) -> dict[str, Any]:
    data = deepcopy(TEAM)
    data["evaluate"] |= changes
    return data


def test_a_critics_scores_are_compared_with_what_came_of_the_answers() -> None:
    scenario = validate(TEAM, to_train=False)
    metrics = HeldOutEvaluator(scenario, untrained_simulator(scenario), 40)()
    forecast = {name.rpartition("/")[2]: v for name, v in metrics.items() if "/forecast/verdict/" in name}
    success = metrics["eval/held_out/success"]
    assert 0 < success < 1
    assert forecast["brier"] == pytest.approx(metrics["eval/held_out/squared"])
    assert forecast["brier_skill"] == pytest.approx(1 - forecast["brier"] / (success * (1 - success)))
    assert {"correlation", "calibration_error", "outcome_in_1", "outcome_in_5"} <= forecast.keys()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"forecasts": {"verdict": {"score": "sayd", "outcome": "success"}}},
            r"evaluate.forecasts.verdict.score: the game has no measure 'sayd'; .*said",
        ),
        ({"held_out": None}, "evaluate.forecasts.verdict: measured on held-out starts only; give evaluate.held_out"),
    ],
)
def test_a_forecast_without_measures_is_refused_by_field_and_choices(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        validate(with_evaluate(**changes), to_train=False)


def test_the_best_checkpoint_may_be_that_of_the_most_skilful_critic() -> None:
    metric = "eval/held_out/forecast/verdict/brier_skill"
    assert validate(with_evaluate(keep_best=metric), to_train=False).evaluate.keep_best == metric
