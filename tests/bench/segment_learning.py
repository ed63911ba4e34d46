"""Does credit for steps inside an answer learn faster than the outcome alone? Tokens to a threshold.

    python tests/bench/segment_learning.py [--out FILE.json] [--plot FILE.png]

The two games of `marl credit-check` whose answers have steps with enumerated values, with answers of five lines: paid
is the share of right lines (`sum of steps`), or 1 if all five are right (`all steps`), and nothing for answers of
another length. A tiny model begins with uniformly random lines. `BUDGET` is in tokens sampled or scored, replays
included, and a run ends when the mean reward of three steps in a row reaches `THRESHOLD`. Each method learns at the
rate at which its tokens to the threshold are least on seed 0 (the budget, if it was not reached), and is compared on
the other seeds. Settings of `gae` and `process` were chosen by looks at seed 0 of `sum of steps`; all else was fixed
before any of the runs.
"""

from __future__ import annotations

import math
import os
import signal
import tempfile
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

from _bench import parser, report, silent
from credit_learning import smooth

import marl
from marl.commands.credit_check.segment_tasks import SegmentTask
from marl.core.types import Metrics
from marl.scenario.load import validate

RIGHT = ("b", "a", "b", "b", "a")
TASKS = (SegmentTask("sum of steps", False, RIGHT), SegmentTask("all steps", True, RIGHT))
ANSWERS_PER_STEP, BUDGET, THRESHOLD = 64, 60_000, 0.9
LRS = (1e-3, 3e-3)
TUNED, SEEDS = (0,), (1, 2, 3)
GRPO = {"kind": "grpo", "betas": [0.9, 0.99], "aggregation": "seq_mean_token_sum"}
PPO = GRPO | {"kind": "ppo", "critic": {"lr": 1e-2}}
WHITEN = {"kind": "whiten", "unit": "sequence", "guard": "std"}
Curve = list[tuple[float, float]]
"""(tokens so far, mean reward) of each step."""


class Method(NamedTuple):
    """Credit rule with its baseline, and the learner."""

    assign: dict[str, Any]
    baseline: dict[str, Any]
    learner: dict[str, Any] = GRPO


METHODS = {
    "outcome": Method({"kind": "outcome"}, {"kind": "group"}),
    # A segment's own score, and the outcome. This form compares the nth segments of answers, so no baseline follows.
    "process": Method(
        {
            **{"kind": "process", "level": "segment", "scores": {"checker": ["steps"]}},
            **{"combine": "decoupled", "discount": 0.0},
        },
        {"kind": "none"},
    ),
    "replay": Method({"kind": "replay", "level": "segment", "samples": 1}, WHITEN),
    "gae": Method({"kind": "gae", "level": "segment", "lam": 0.9}, WHITEN, PPO),
}


def train(task: SegmentTask, method: Method, lr: float, seed: int) -> Curve:
    """Train until the threshold is reached or the budget is spent, and return the curve."""
    data: dict[str, Any] = dict(task.scenario(BUDGET, 1, ANSWERS_PER_STEP, seed))
    length = 2 * len(task.right) - 1
    # Without the length, an answer of one right line would have the highest share.
    paid = f"own.readable * ((own.move | length) == {length}) * ({data['game']['rewards']['writer']['outcome']})"
    data["game"]["rewards"]["writer"]["outcome"] = paid
    data["policies"]["actor"]["learner"] = method.learner | {"lr": lr}
    data |= {"credit": {"assign": method.assign, "baseline": method.baseline}}
    data |= {"checkpoint": {"every": BUDGET, "trajectories": 0.0}}
    curve: Curve = []

    def follow(done: int, metrics: Metrics) -> None:
        if done:
            curve.append((metrics["step/tokens"], metrics["episode/return/writer"]))
            if curve[-1][0] >= BUDGET or tokens_to_threshold(curve) < math.inf:
                os.kill(os.getpid(), signal.SIGTERM)  # ends the run after this step

    with tempfile.TemporaryDirectory() as folder, silent():
        marl.train(validate(data), Path(folder) / "run", on_step=follow)
    return curve


def tokens_to_threshold(curve: Curve) -> float:
    """Return the tokens until the threshold is reached; infinite if it never is."""
    return next((tokens for tokens, reward in smooth(curve) if reward >= THRESHOLD), math.inf)


def compared(task: SegmentTask, method: Method) -> tuple[dict[str, Any], list[Curve]]:
    """Return the figures of one method on one task, and its curves on `SEEDS`."""
    tuned: dict[float, float] = {}
    for lr in LRS:
        tokens = [tokens_to_threshold(train(task, method, lr, seed)) for seed in TUNED]
        tuned[lr] = fmean([min(number, BUDGET) for number in tokens])
    lr = min(tuned, key=lambda each: tuned[each])
    curves = [train(task, method, lr, seed) for seed in SEEDS]
    tokens = [tokens_to_threshold(curve) for curve in curves]
    figures = {
        "lr": lr,
        "tuned": {f"{each:g}": round(number) for each, number in tuned.items()},
        "median_tokens": _number(median(tokens)),
        "tokens": list(map(_number, tokens)),
        "last_reward": [round([*smooth(curve)][-1][1], 4) for curve in curves],
    }
    return figures, curves


def _number(tokens: float) -> int | None:
    return round(tokens) if math.isfinite(tokens) else None


def plot(curves: dict[str, dict[str, list[Curve]]], out: Path) -> None:
    """Draw reward over tokens by task: the mean over seeds, and the range between the least and the greatest."""
    import matplotlib

    matplotlib.use("Agg")
    import numpy as np
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(curves), figsize=(10, 4), sharey=True)
    grid = np.linspace(0, BUDGET, 60)
    for axes, (task, by_method) in zip(panels, curves.items(), strict=True):
        for method, runs in by_method.items():
            points = [list(zip(*smooth(curve), strict=True)) for curve in runs]
            # A run ends at the threshold, and its last value is drawn on.
            values = np.array([np.interp(grid, tokens, reward, left=np.nan) for tokens, reward in points])
            axes.plot(grid, values.mean(0), label=method)
            axes.fill_between(grid, values.min(0), values.max(0), alpha=0.12)
        axes.axhline(THRESHOLD, color="grey", linestyle=":")
        axes.set(xlabel="tokens sampled or scored, replays included", title=task)
    panels[0].set_ylabel("mean reward of three steps")
    panels[0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(out, dpi=120)


def main() -> None:
    line = parser(__doc__)
    line.add_argument("--plot", type=Path)
    given = line.parse_args()
    figures: dict[str, dict[str, Any]] = {}
    curves: dict[str, dict[str, list[Curve]]] = {}
    for task in TASKS:
        figures[task.name], curves[task.name] = {}, {}
        for name, method in METHODS.items():
            figures[task.name][name], curves[task.name][name] = compared(task, method)
    if given.plot:
        plot(curves, given.plot)
    settings = {"budget": BUDGET, "threshold": THRESHOLD, "lrs": LRS, "steps_of_answer": len(RIGHT)}
    report(figures, given.out, seeds=SEEDS, tuned_on=TUNED, answers_per_step=ANSWERS_PER_STEP, **settings)


if __name__ == "__main__":
    main()
