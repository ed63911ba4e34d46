"""What a run says when it ends."""

from __future__ import annotations

from statistics import fmean

from marl.evaluate import LEGAL_MASS
from marl.folder import RunFolder
from marl.view.chart import chart

_TITLES = {
    "eval/nashconv": "NashConv",
    "eval/optimal": "Probability of an optimal move",
    "eval/random/win": "Wins against random",
    "eval/minimax/draw": "Draws against minimax",
}


def closing(folder: RunFolder, finished: bool) -> str:
    """The curve of the run's main figure, and each figure's start and end (mean of the last tenth)."""
    rows = list(folder.rows())
    figures = {name: [(r["step"], r[name]) for r in rows if name in r] for name in _TITLES}
    figures = {name: curve for name, curve in figures.items() if curve}
    steps = rows[-1]["step"] if rows else 0
    lines = [] if finished else [f"stopped at step {steps}; go on with: marl train ... --resume auto"]
    if figures:
        lines += ["", chart(next(iter(figures.values()))), ""]
    masses = [r["eval/legal_mass"] for r in rows if "eval/legal_mass" in r and r["step"] >= 0.9 * steps]
    mass = f" (legal mass {fmean(masses):.3f})" if masses else ""
    for name, curve in figures.items():
        # A run that was stopped may have been measured last before its last tenth.
        end = fmean([value for step, value in curve if step >= 0.9 * steps] or [curve[-1][1]])
        shown = mass if name in ("eval/nashconv", "eval/optimal") else ""
        lines.append(f"{_TITLES[name]} {curve[0][1]:.3f} -> {end:.3f}{shown}")
    if masses and min(masses) < LEGAL_MASS:
        lines.append(f"the exact figure does not count: the legal mass fell below {LEGAL_MASS}")
    return "\n".join([*lines, f"run folder: {folder.path}"])
