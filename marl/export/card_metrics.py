"""First and last values of a run's metrics for its model card, up to the exported step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marl.evaluation.evaluate import LEGAL_MASS, is_reliable
from marl.scenario.load import ScenarioError
from marl.view.curve_data import CurveSelection, select_curves
from marl.view.pictures import save_curves

CURVES = "curves.png"
MAX_METRICS = 40
_BOUNDS = ("_low", "_high")
_SIZES = ("/episodes",)
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CardMetric:
    """First and last measurement of one metric."""

    name: str
    first: float
    first_step: int
    last: float
    last_step: int
    interval: tuple[float, float] | None
    """95 % confidence interval of the last value, or None if the run recorded none."""
    note: str = ""


def card_metrics(rows: Sequence[Row], step: int, roles: Sequence[str]) -> list[CardMetric]:
    """Return the evaluation metrics, mean returns and answer statistics of `roles`, measured up to `step`."""
    until = [row for row in rows if row["step"] <= step]
    return [_figure(name, until) for name in _names(until, roles)]


def _names(rows: Sequence[Row], roles: Sequence[str]) -> list[str]:
    names = dict.fromkeys(name for row in rows for name in row)
    evaluations = [n for n in names if n.startswith("eval/") and not n.endswith((*_BOUNDS, *_SIZES))]
    # Names with fewer parts are more general, so the limit cuts the most specific metrics.
    chosen = sorted(evaluations, key=lambda name: name.count("/"))[:MAX_METRICS]
    chosen += [name for name in names if name.startswith("episode/return/")]
    role_metrics = {f"role/{role}/{figure}" for role in roles for figure in ("illegal", "cut", "tokens")}
    return chosen + [name for name in names if name in role_metrics]


def _figure(name: str, rows: Sequence[Row]) -> CardMetric:
    measured = [row for row in rows if name in row]
    first, last = measured[0], measured[-1]
    low, high = (last.get(f"{name}{bound}") for bound in _BOUNDS)
    interval = None if low is None or high is None else (low, high)
    note = "" if is_reliable(last, name) else f"does not count: legal mass below {LEGAL_MASS}"
    return CardMetric(name, first[name], first["step"], last[name], last["step"], interval, note)


def draw_curves(run: Path, folder: Path) -> bool:
    """Draw the learning curves of `run` into `folder`; return False if the run has no metric to draw."""
    try:
        curves, _ = select_curves([run], CurveSelection())
    except ScenarioError:
        return False
    if curves:
        save_curves(folder / CURVES, curves)
    return bool(curves)


def table_rows(figures: Sequence[CardMetric]) -> Iterator[tuple[str, str, str, str]]:
    """Yield the table row (name, first value, last value, interval or remark) of each metric."""
    for metric in figures:
        last = (
            f"{metric.last:.4g} (step {metric.last_step})" if metric.last_step != metric.first_step else "measured once"
        )
        interval = f"{metric.interval[0]:.4g} to {metric.interval[1]:.4g}" if metric.interval else metric.note
        yield metric.name, f"{metric.first:.4g} (step {metric.first_step})", last, interval
