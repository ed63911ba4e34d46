"""Steps per minute of one scenario, synchronous and playing ahead, with a slow verifier and a slow tail of answers.

    python tests/bench/overlap.py [--ahead 0 1 2] [--steps 20] [--repeats 1] [--out FILE]

A tiny model does sums; two simulators on Ray, one learner in the run's process. Trajectories, credit, updates and
publications are real. What a larger model would take is simulated: each answer is held back for a time of a log-normal
distribution (median 0.4 s, one in a hundred 4 s) and keeps one of 16 places of its engine meanwhile, and a verdict
takes 0.2 s in one of 4 processes. The update takes what it takes on this machine. `ahead` 0 is `experience: rollouts`.

Steps per minute are of the steps between the third and the last but two, so that neither the start nor the steps after
which nothing is left to play ahead count. `idle`: share of time in which a simulator had nothing to play. `waits_s`:
time of a step in which the run waits for episodes.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from statistics import fmean
from typing import Any

from _bench import ROOT, parser, report, silent

from marl.core.types import Metrics

SUPPORT = ROOT / "tests" / "support"
sys.path.append(str(SUPPORT))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(SUPPORT)]))
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray  # noqa: E402 (after the paths that its processes inherit)

import marl  # noqa: E402
from marl.runs.run_folder import RunFolder  # noqa: E402
from marl.scenario.load import validate  # noqa: E402

RUNS = ROOT / "runs" / "overlap"
FIRST, LAST = 3, 2
"""Steps at the start and at the end that do not count."""


def scenario(ahead: int, steps: int) -> dict[str, Any]:
    """Return the scenario, which differs in its experience alone."""
    learner = {"kind": "grpo", "lr": 1e-3, "old": "read", "mismatch": {"kind": "tis"}, "epochs": 4}
    model = {"kind": "tiny", "hidden": 64, "layers": 2, "warm_up": {"steps": 250, "episodes": 1024, "lr": 3e-3}}
    words = {"prompt": "{{ observation }} sum", "sampling": {"max_tokens": 8}}
    engine = {"kind": "tests.support.slow_plugins:LateAnswers", "median_s": 0.4, "sigma": 1.0, "places": 16}
    check = {"kind": "tests.support.slow_plugins:SlowExact", "seconds": 0.2}
    return {
        "game": {
            "kind": "team",
            "task": {"kind": "arithmetic", "numbers": [10, 99], "style": "expanded", "train": 3000, "held_out": 100},
            "stages": [
                {"role": "solver", "examples": ["{{ answer }}", "{{ answer }}", "{{ wrong[0] }}"]},
                {"role": "verifier", "verifies": "solver", "scores": ["correct"]},
            ],
            "rewards": {"solver": {"correct": "own.correct"}},
            "measures": {"success": "solver.correct"},
        },
        "roles": {
            "solver": {"kind": "solver", "policy": "actor", "answer": "bracket", "instructions": "", **words},
            "verifier": {"kind": "verifier", "policy": "checker"},
        },
        "policies": {
            "actor": {"model": model, "engine": engine, "learner": learner},
            "checker": {"engine": {"kind": "verifiers", "checks": {"correct": check}, "workers": 4}},
        },
        "credit": {"baseline": {"kind": "group"}},
        "experience": {"kind": "queue", "max_staleness": ahead} if ahead else "rollouts",
        "schedule": {"steps": steps, "groups": 16, "group_size": 4, "threads": 1},
        "cluster": {"simulators": 2, "cpus": 0.5},
    }


def measured(ahead: int, steps: int) -> dict[str, Any]:
    """Train once, and return its figures."""
    run, ends = RUNS / str(ahead), dict[int, float]()

    def note_end(step: int, metrics: Metrics) -> None:
        ends.setdefault(step, time.perf_counter())

    shutil.rmtree(run, ignore_errors=True)
    with silent():
        checked = validate(scenario(ahead, steps))
        if not marl.train(checked, run, on_step=note_end):
            raise KeyboardInterrupt
    counted = [row for row in RunFolder(run).rows() if FIRST < row["step"] <= steps - LAST]
    seconds = ends[steps - LAST] - ends[FIRST]

    def mean(*names: str) -> float:
        return round(fmean(row[name] for row in counted for name in names if name in row), 3)

    stale = {"staleness": mean("role/solver/staleness")} if ahead else {}
    return {
        **{"ahead": ahead, "steps_per_minute": round(60 * len(counted) / seconds, 2)},
        "step_s": round(seconds / len(counted), 3),
        "waits_s": mean("time/play"),
        "learns_s": round(mean("time/read") + mean("time/credit") + mean("time/learn") + mean("time/publish"), 3),
        "idle": mean("cluster/idle"),
        "success": mean("episode/measure/success"),
        **stale,
    }


def main() -> None:
    line = parser(__doc__)
    line.add_argument("--ahead", type=int, nargs="+", default=[0, 1, 2])
    line.add_argument("--steps", type=int, default=20)
    line.add_argument("--repeats", type=int, default=1)
    options = line.parse_args()
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
    runs = [measured(ahead, options.steps) for _ in range(options.repeats) for ahead in options.ahead]
    ray.shutdown()
    pace = {ahead: fmean(run["steps_per_minute"] for run in runs if run["ahead"] == ahead) for ahead in options.ahead}
    ratios = {str(ahead): round(pace[ahead] / pace[options.ahead[0]], 2) for ahead in options.ahead}
    report({"runs": runs, "ratio": ratios}, options.out, seeds=[0], steps=options.steps, repeats=options.repeats)


if __name__ == "__main__":
    main()
