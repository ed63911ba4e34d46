"""What a run says when it ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from marl.evaluation.evaluate import LEGAL_MASS
from marl.metrics.summaries import held_out_measures
from marl.runs.best_checkpoint import Best
from marl.runs.run_folder import RunFolder
from marl.scenario.schema import Evaluate
from marl.view.chart import chart

_TITLES = {
    "eval/nashconv": "NashConv",
    "eval/optimal": "Probability of an optimal move",
    "eval/random/win": "Wins against random",
    "eval/minimax/draw": "Draws against minimax",
}
_OF_A_ROLE = ("illegal", "tokens", "entropy")
_OF_CREDIT = {
    "conservation": "conservation",
    "zero": "zero share",
    "purity": "purity",
    "stopping_bias_t": "stopping bias t",
}
_BIASED = 4.0
"""A t value that luck alone hardly reaches."""
Row = Mapping[str, Any]
Figures = Mapping[str, Sequence[tuple[int, float]]]


def closing(folder: RunFolder, finished: bool, evaluate: Evaluate | None = None) -> str:
    """The curve of the run's main figure; each figure's start and end (mean of the last tenth), each role's, how sound
    its credit was, what was best, and the alarms that there were."""
    rows = list(folder.rows())
    steps = rows[-1]["step"] if rows else 0
    titles = _titles(rows)
    figures = {name: curve for name in titles if (curve := [(r["step"], r[name]) for r in rows if name in r])}
    lines = [] if finished else [f"stopped at step {steps}; go on with: marl train ... --resume auto"]
    if figures:
        lines += ["", chart(next(iter(figures.values()))), ""]
    lines += _measured(rows, figures, titles)
    lines += _roles(rows)
    lines += _credit(rows)
    lines += _best(folder, Best.of(evaluate or Evaluate(), rows))
    lines += _alarms(rows)
    return "\n".join([*lines, f"run folder: {folder.path}"])


def _titles(rows: Sequence[Row]) -> dict[str, str]:
    """Metric -> what a person calls it; in the order in which they are told."""
    names = {name: None for row in rows for name in row if name.startswith("eval/")}
    titles = {name: title for name, title in _TITLES.items() if name in names}
    for name in held_out_measures(names):
        _, scope, measure = name.split("/")
        titles[name] = f"{measure} on held-out starts" + (", greedy" if scope.endswith("greedy") else "")
    return titles


def _measured(rows: Sequence[Row], figures: Figures, titles: Mapping[str, str]) -> Iterator[str]:
    masses = [r["eval/legal_mass"] for r in _last(rows) if "eval/legal_mass" in r]
    mass = f" (legal mass {fmean(masses):.3f})" if masses else ""
    late = _last(rows)[0]["step"] if rows else 0
    for name, curve in figures.items():
        # A run that was stopped may have been measured last before its last tenth.
        end = fmean([value for step, value in curve if step >= late] or [curve[-1][1]])
        shown = mass if name in ("eval/nashconv", "eval/optimal") else _interval(rows, name)
        yield f"{titles[name]} {curve[0][1]:.3f} -> {end:.3f}{shown}"
    if masses and min(masses) < LEGAL_MASS:
        yield f"the exact figure does not count: the legal mass fell below {LEGAL_MASS}"


def _interval(rows: Sequence[Row], name: str) -> str:
    """Of the last measurement."""
    bounds = [(row[f"{name}_low"], row[f"{name}_high"]) for row in rows if f"{name}_low" in row]
    return f" (last [{bounds[-1][0]:.3f}, {bounds[-1][1]:.3f}])" if bounds else ""


def _last(rows: Sequence[Row]) -> list[Row]:
    """Of the last tenth."""
    return [row for row in rows if row["step"] >= 0.9 * rows[-1]["step"]]


def _roles(rows: Sequence[Row]) -> Iterator[str]:
    """For each role that a model speaks for: what it was paid and how it spoke, at the first step and at the end."""
    names = {name: None for row in rows for name in row if name.startswith("role/")}
    for role in sorted({name.split("/")[1] for name in names if name.endswith("/entropy")}):
        paid = [name for name in names if name.startswith(f"role/{role}/reward/")]
        told = [_change(rows, name) for name in (*paid, *(f"role/{role}/{figure}" for figure in _OF_A_ROLE))]
        yield f"role {role}: {', '.join(filter(None, told))}"


def _change(rows: Sequence[Row], name: str) -> str:
    values, end = _values(rows, name), _end(rows, name)
    if end is None:
        return ""
    return f"{name.split('/', 2)[2]} {values[0]:.3g} -> {end:.3g}"


def _credit(rows: Sequence[Row]) -> Iterator[str]:
    """For each role that is judged: how sound its credit was, mean of the last tenth, and what is wrong with it."""
    names = {name for row in rows for name in row if name.startswith("credit/") and name.endswith("/zero")}
    for role in sorted(name.split("/")[1] for name in names):
        figures = {title: _end(rows, f"credit/{role}/{name}") for name, title in _OF_CREDIT.items()}
        told = [f"{title} {value:.3g}" for title, value in figures.items() if value is not None]
        yield f"credit of role {role}: {', '.join(told)}"
        if (purity := min(_values(rows, f"credit/{role}/purity"), default=1.0)) < 1:
            yield (
                f"WARNING role {role}: purity {purity:.3g} in the worst step: turns were compared that do not have in "
                "common what the baseline says; if that is the start, the game's start_key gives several starts one key"
            )
        if abs(t := figures["stopping bias t"] or 0.0) > _BIASED:
            yield (
                f"WARNING role {role}: stopping bias t {t:.3g}: of two turns that earned the same, the one after which "
                f"the agent went on is credited {'more' if t > 0 else 'less'}"
            )


def _end(rows: Sequence[Row], name: str) -> float | None:
    """Mean of the last tenth; of a run that had it only before, the last one. None if it never had it."""
    values = _values(_last(rows), name) or _values(rows, name)[-1:]
    return fmean(values) if values else None


def _values(rows: Sequence[Row], name: str) -> list[float]:
    return [row[name] for row in rows if name in row]


def _best(folder: RunFolder, best: Best) -> Iterator[str]:
    if best.step is None:
        return
    where = folder.checkpoints / f"{best.step:06d}"
    kept = str(where) if where.is_dir() else "before training" if best.step == 0 else "its checkpoint is not kept"
    yield f"best {best.figure} {best.value:.3f} at step {best.step}: {kept}"
    if best.given_up:
        yield best.why


def _alarms(rows: Sequence[Row]) -> Iterator[str]:
    names = sorted({name for row in rows for name in row if name.startswith("alarm/")})
    for name in names:
        _, role, kind = name.split("/")
        held = [row["step"] for row in rows if row.get(name)]
        goes_on = ", to the end" if held[-1] == rows[-1]["step"] else ""
        yield f"ALARM role {role}: {kind}, in {len(held)} steps from {held[0]} to {held[-1]}{goes_on}"
