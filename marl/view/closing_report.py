"""Report of a run, printed when the run ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from marl.evaluation.evaluate import LEGAL_MASS, is_exact
from marl.metrics.alarms import is_alarm_metric
from marl.metrics.trajectory_metrics import held_out_metrics, matching_metrics
from marl.runs.best_checkpoint import BestTracker
from marl.runs.checkpoint import intact_steps
from marl.runs.run_folder import RunFolder
from marl.scenario.schema import EvaluationSettings
from marl.view.curves import Curve, text_chart

_TITLES = {
    "eval/nashconv": "NashConv",
    "eval/average/nashconv": "NashConv of the average policy",
    "eval/optimal": "Probability of an optimal move",
    "eval/random/win": "Wins against random",
    "eval/minimax/draw": "Draws against minimax",
}
_ROLE_FIGURES = ("illegal", "tokens", "entropy")
_CREDIT_FIGURES = {
    "conservation": "conservation",
    "zero": "zero share",
    "purity": "purity",
    "stopping_bias_t": "stopping bias t",
}
_BIASED = 4.0
"""Absolute t value above which chance is an unlikely explanation."""
Row = Mapping[str, Any]


def closing_report(folder: RunFolder, finished: bool, evaluate: EvaluationSettings | None = None) -> str:
    """Return the report: the main metric's curve, then lines on metrics, roles, credit, the best checkpoint and alarms.

    Each metric is shown at the first step and at the end (mean over the last tenth of the steps).
    """
    rows = list(folder.rows())
    titles = _titles(rows)
    curves = {name: curve for name in titles if (curve := [(r["step"], r[name]) for r in rows if name in r])}
    lines = [] if finished else [_stopped(folder, rows)]
    if curves and len(main_curve := next(iter(curves.values()))) > 1:
        lines += ["", text_chart(main_curve), ""]
    lines += _evaluations(rows, curves, titles)
    lines += _roles(rows)
    lines += _credit(rows)
    lines += _best(folder, BestTracker.from_rows(evaluate or EvaluationSettings(), rows), rows)
    lines += alarm_lines(rows)
    return "\n".join([*lines, f"run folder: {folder.path}"])


def _stopped(folder: RunFolder, rows: Sequence[Row]) -> str:
    """Return the step at which the run stopped and the command that resumes it."""
    if not rows:
        return "stopped before the first step"
    step, checkpoints = rows[-1]["step"], intact_steps(folder.checkpoints)
    if not checkpoints:
        return f"stopped at step {step}, before the first checkpoint: --resume auto begins anew"
    newest = checkpoints[-1]
    again = "" if newest == step else f" from checkpoint {newest:06d} (the steps after it are done again)"
    return f"stopped at step {step}; go on{again} with: marl train ... --resume auto"


def _titles(rows: Sequence[Row]) -> dict[str, str]:
    """Return metric -> title, in the order of the report."""
    names = {name: None for row in rows for name in row if name.startswith("eval/")}
    titles = {}
    for figure, title in _TITLES.items():
        for name in matching_metrics([figure], names):
            titles[name] = title if name == figure else f"{name.split('/')[1]}: {title}"
    for name in held_out_metrics(names):
        *game, scope, measure = name.split("/")[1:]
        titles[name] = f"{measure} on held-out starts" + (", greedy" if scope.endswith("greedy") else "")
        titles[name] = ": ".join([*game, titles[name]])
    return titles


def _evaluations(rows: Sequence[Row], curves: Mapping[str, Curve], titles: Mapping[str, str]) -> Iterator[str]:
    last = _last_tenth(rows)
    for name, curve in curves.items():
        if len(curve) == 1:
            yield f"{titles[name]} {curve[0][1]:.3f} at step {curve[0][0]}, measured once: nothing to compare it with"
            continue
        # A stopped run may have no evaluation in its last tenth.
        end = fmean(_values(last, name) or [curve[-1][1]])
        note = ""
        if is_exact(name):
            masses = _values(last, _legal_mass_of(name))
            note = f" (legal mass {fmean(masses):.3f})" if masses else ""
        elif lows := _values(rows, f"{name}_low"):
            note = f" (last [{lows[-1]:.3f}, {_values(rows, f'{name}_high')[-1]:.3f}])"
        late = "" if _values(last, name) else f" at step {curve[-1][0]}"
        yield f"{titles[name]} {curve[0][1]:.3f} -> {end:.3f}{late}{note}"
    exact = dict.fromkeys(_legal_mass_of(name) for name in curves if is_exact(name))
    if any(mass < LEGAL_MASS for name in exact for mass in _values(last, name)):
        yield f"the exact figure does not count: the legal mass fell below {LEGAL_MASS}"


def _legal_mass_of(name: str) -> str:
    """Return the metric with the legal probability mass behind the exact metric `name`."""
    return f"{name.rpartition('/')[0]}/legal_mass"


def _roles(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line for each role of a model: rewards and statistics, at the first step and at the end."""
    names = {name: None for row in rows for name in row if name.startswith("role/")}
    for role in sorted({name.split("/")[1] for name in names if name.endswith("/entropy")}):
        rewards = [name for name in names if name.startswith(f"role/{role}/reward/")]
        changes = []
        for name in (*rewards, *(f"role/{role}/{figure}" for figure in _ROLE_FIGURES)):
            if (end := _end(rows, name)) is not None:
                first, *later = _values(rows, name)
                changes.append(f"{name.split('/', 2)[2]} {first:.3g}" + (f" -> {end:.3g}" if later else ""))
        yield f"role {role}: {', '.join(changes)}"


def _credit(rows: Sequence[Row]) -> Iterator[str]:
    """Yield each role's credit diagnostics (mean over the last tenth of the steps), and a warning for each bad one."""
    names = {name for row in rows for name in row if name.startswith(("credit/", "game/")) and name.endswith("/zero")}
    for scope in sorted(name.removesuffix("/zero") for name in names):
        *game, _, role = scope.removeprefix("game/").split("/")
        role += f" in game {game[0]}" if game else ""
        figures = {title: _end(rows, f"{scope}/{name}") for name, title in _CREDIT_FIGURES.items()}
        diagnostics = [f"{title} {value:.3g}" for title, value in figures.items() if value is not None]
        yield f"credit of role {role}: {', '.join(diagnostics)}"
        if (pure := min(_values(rows, f"{scope}/purity"), default=1.0)) < 1:
            yield (
                f"WARNING role {role}: purity {pure:.3g} in the worst step: turns were compared that do not have in "
                "common what the baseline says, or that work on different problems which others posed (then compare by "
                "`like: problem`); if not even their starts are the same, the game's start_key gives several one key"
            )
        if abs(t := figures["stopping bias t"] or 0.0) > _BIASED:
            yield (
                f"WARNING role {role}: stopping bias t {t:.3g}: of two turns that earned the same, the one after which "
                f"the agent went on is credited {'more' if t > 0 else 'less'}"
            )


def _last_tenth(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["step"] >= 0.9 * rows[-1]["step"]]


def _end(rows: Sequence[Row], name: str) -> float | None:
    """Return the metric's mean over the last tenth of the steps, else its last value, or None if never measured."""
    values = _values(_last_tenth(rows), name) or _values(rows, name)[-1:]
    return fmean(values) if values else None


def _values(rows: Sequence[Row], name: str) -> list[float]:
    return [row[name] for row in rows if name in row]


def _best(folder: RunFolder, best: BestTracker, rows: Sequence[Row]) -> Iterator[str]:
    # A single evaluation has nothing to compare with.
    if best.step is None or sum(best.metric in row for row in rows) < 2:
        return
    checkpoint = folder.checkpoints / f"{best.step:06d}"
    if checkpoint.is_dir():
        location = str(checkpoint)
    else:
        location = "its checkpoint is not kept" if best.step else "before training"
    yield f"best {best.metric} {best.value:.3f} at step {best.step}: {location}"
    if best.out_of_patience:
        yield best.stop_message


def alarm_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line for each alarm that was active in `rows`."""
    for name in sorted({name for row in rows for name in row if is_alarm_metric(name)}):
        *game, _, role, kind = name.removeprefix("game/").split("/")
        active_steps = [row["step"] for row in rows if row.get(name)]
        goes_on = ", to the end" if active_steps[-1] == rows[-1]["step"] else ""
        steps = f"step {active_steps[0]}"
        if len(active_steps) > 1:
            steps = f"{len(active_steps)} steps from {active_steps[0]} to {active_steps[-1]}"
        yield f"ALARM role {role}{f' in game {game[0]}' if game else ''}: {kind}, in {steps}{goes_on}"
