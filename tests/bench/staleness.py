"""What a policy learns from stale episodes: Kuhn poker against itself on Ray, at equal samples, by `max_staleness`.

    python tests/bench/staleness.py [--ahead 0 1 2 4] [--seeds 0 1 2] [--steps 250] [--out FILE]

Every run has two simulators, the learner of `scenarios/kuhn_self_play.yaml` with `old: read` and `mismatch: {kind:
tis}`, and as many steps of as many episodes. `mean` is the mean NashConv of all evaluations, `end` of those from 80 %
of the steps on; less is better.

`compared`: difference of the means over seeds from those of the first `--ahead`, its standard error from the spread of
seeds within each `max_staleness` (pooled over all of them), their ratio t, and `worse`: whether t exceeds the 95 %
quantile of Student's t (one-sided).
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from statistics import fmean, variance
from typing import Any

import ray
from _bench import ROOT, parser, report, silent
from scipy.stats import t as student

import marl
from marl.runs.run_folder import RunFolder

RUNS = ROOT / "runs" / "staleness"
EVALUATIONS = 10
FIGURES = {
    "staleness": "role/player/staleness",
    "staleness_max": "role/player/staleness_max",
    "kl_sampler": "policy/actor/kl_sampler",
    "clip_fraction": "policy/actor/clip_fraction",
    "weight": "policy/actor/weight",
}


def trained(ahead: int, seed: int, steps: int) -> dict[str, Any]:
    """Train once, and return its figures."""
    run = RUNS / f"{ahead}_{seed}"
    shutil.rmtree(run, ignore_errors=True)
    overrides = [
        *(f"experience={{kind: queue, max_staleness: {ahead}}}", "cluster={simulators: 2, cpus: 0.5}"),
        *("policies.actor.learner.old=read", "policies.actor.learner.mismatch={kind: tis}"),
        *(f"schedule.seed={seed}", f"schedule.steps={steps}", f"evaluate.every={steps // EVALUATIONS}"),
    ]
    began = time.perf_counter()
    with silent():
        if not marl.train(marl.load(ROOT / "scenarios" / "kuhn_self_play.yaml", overrides), run):
            raise KeyboardInterrupt
    seconds, rows = round(time.perf_counter() - began, 1), list(RunFolder(run).rows())
    curve = [(row["step"], row["eval/nashconv"]) for row in rows if "eval/nashconv" in row]
    means = {name: fmean([row[key] for row in rows if key in row] or [0.0]) for name, key in FIGURES.items()}
    return {
        **{"ahead": ahead, "seed": seed, "steps": steps, "seconds": seconds},
        "episodes": sum(row["episode/count"] for row in rows if row["step"]),
        "mean": round(fmean(value for _, value in curve), 4),
        "end": round(fmean(value for step, value in curve if step >= 0.8 * steps), 4),
        "curve": [[step, round(value, 4)] for step, value in curve],
        **{name: round(value, 5) for name, value in means.items()},
    }


def compared(runs: Sequence[dict[str, Any]], figure: str) -> list[dict[str, Any]]:
    """Compare a figure of each `max_staleness` with that of the first."""
    values: dict[int, list[float]] = {}
    for run in runs:
        values.setdefault(run["ahead"], []).append(run[figure])
    first, freedom = next(iter(values)), sum(len(group) - 1 for group in values.values())
    pooled = sum((len(group) - 1) * variance(group) for group in values.values()) / freedom
    rows = []
    for ahead, group in values.items():
        error = (pooled * (1 / len(group) + 1 / len(values[first]))) ** 0.5
        difference = fmean(group) - fmean(values[first])
        row = {"mean": fmean(group), "difference": difference, "standard_error": error, "t": difference / error}
        worse = ahead != first and row["t"] > student.ppf(0.95, freedom)
        rows.append({"ahead": ahead, **{name: round(value, 4) for name, value in row.items()}, "worse": bool(worse)})
    return rows


def main() -> None:
    line = parser(__doc__)
    line.add_argument("--ahead", type=int, nargs="+", default=[0, 1, 2, 4])
    line.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    line.add_argument("--steps", type=int, default=250)
    options = line.parse_args()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
    # Seed by seed: whatever else the machine does meets all alike.
    runs = [trained(ahead, seed, options.steps) for seed in options.seeds for ahead in options.ahead]
    ray.shutdown()
    several = len(options.seeds) > 1
    tests = {figure: compared(runs, figure) for figure in ("mean", "end")} if several else {}
    report({"runs": runs, "compared": tests}, options.out, seeds=options.seeds, steps=options.steps)


if __name__ == "__main__":
    main()
