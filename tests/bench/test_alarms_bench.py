"""The list of alarms that rang in a run, from its rows of metrics."""

from __future__ import annotations

from typing import Any, get_args

from alarms import AFTER, BEFORE, FAULTS, rings

from marl.core.types import Metrics
from marl.metrics.alarms import AlarmMonitor, ProxyMonitor, WatchedRole
from marl.scenario.alarms import AlarmKind, AlarmSettings

ROLES = {"critic": WatchedRole(True)}


def watched_rows(values: list[float], metric: str) -> list[dict[str, Any]]:
    """Rows of a run in which the critic's `metric` has these values, with the states of its alarms."""
    watch, rows = AlarmMonitor(AlarmSettings(), ROLES), list[dict[str, Any]]()
    for step, value in enumerate(values, start=1):
        row: Metrics = {"role/critic/turns": 64.0, f"role/critic/{metric}": value}
        rows.append({"step": step, **row, **watch(row)[0]})
    return rows


def test_an_alarm_is_listed_with_its_first_step_its_steps_and_the_curve_around_it() -> None:
    values = [0.5] * 20 + [0.99] * 8 + [0.5] * 5
    found = rings(watched_rows(values, "constant"))
    # The fifth step from .98 on is step 25; the alarm holds until step 28.
    assert {name: (entry["step"], entry["steps"]) for name, entry in found.items()} == {
        "alarm/critic/constant": (25, 4)
    }
    assert found["alarm/critic/constant"]["curve"] == values[25 - BEFORE - 1 : 25 + AFTER]


def test_the_curve_of_a_fallen_return_is_its_mean_over_ten_steps() -> None:
    rows = watched_rows([1.0] * 10 + [0.0] * 20, "return")
    [entry] = rings(rows).values()
    # If a share p of ten returns is 0 and the others are 1, the mean is p below its best, and the returns deviate by
    # the root of p(1 - p). Half of that is less than p if p > .2: from step 13 on, so the fifth such step is step 17.
    assert (entry["step"], entry["curve"]) == (17, [1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0, 0.0])


def test_the_curve_of_a_proxy_is_the_metric_that_falls() -> None:
    pair = {"rises": "eval/held_out/score", "falls": "eval/held_out/success"}
    watch, rows = ProxyMonitor(AlarmSettings.model_validate({"proxy": [pair], "patience": 1})), list[dict[str, Any]]()
    for step, value in ((2, 0.1), (4, 0.9)):
        row = {pair["rises"]: value, pair["falls"]: 1 - value}
        row |= {f"{name}_{end}": row[name] for name in pair.values() for end in ("low", "high")}
        rows.append({"step": step, **row, **watch(row)[0]})
    [(name, entry)] = rings(rows, pair["falls"]).items()
    assert (name, entry["step"], entry["curve"]) == ("alarm/score-success/proxy", 4, [0.9, 0.1])


def test_a_run_is_made_for_each_kind_of_alarm() -> None:
    assert {kind for fault in FAULTS for kind in fault.kinds} == {*get_args(AlarmKind)}
