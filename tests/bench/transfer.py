"""What self-play in games does to tasks that it does not train on: the same problems before and after, seed by seed.

    python tests/bench/transfer.py [--seeds 1 2 3] [--budget 1] [--resume] [--add] [--out FILE] [a.b=c]

All seeds of `scenarios/spiral.yaml` begin with one model, as SPIRAL's runs do; its warm-up is done once and cached. The
tests of `scenarios/suites/transfer.yaml` are played by the model before and after training: means of each with 95 %
intervals, and the gain with an interval of the paired bootstrap over problems. Exact figures of the run are added.
Overrides change the scenario: `games.kuhn.weight=0` leaves a game out of training.

Runs go to runs/transfer/. `--budget 0.1` does a tenth of the steps. `--resume` goes on with runs that an interrupted
measurement has left, and `--add` keeps the seeds that the result file has.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from operator import itemgetter
from typing import Any

from _bench import ROOT, parser, report
from learning import whole_run

import marl
from marl.commands.eval.suite import SuiteScores, read_suite, suite_player
from marl.core.types import Metrics
from marl.evaluation.suite import Suite
from marl.evaluation.suite_play import paired_gain_metrics, suite_metrics
from marl.runs.run_folder import RunFolder
from marl.scenario.schema import Scenario

SCENARIO = ROOT / "scenarios" / "spiral.yaml"
SUITE = ROOT / "scenarios" / "suites" / "transfer.yaml"
RUNS = ROOT / "runs" / "transfer"
EXACT = ("eval/kuhn/nashconv", "eval/kuhn/legal_mass", "eval/nim/optimal")
KEPT = ("mean", "unreadable")
"""Figures of a test that are reported: mean score, and share of turns without a readable legal move."""


def scenario(seed: int, budget: float, overrides: list[str]) -> Scenario:
    """Return the scenario with a seed, and with a share of its steps."""
    steps = max(1, round(marl.load(SCENARIO, overrides).schedule.steps * budget))
    return marl.load(SCENARIO, [*overrides, f"schedule.seed={seed}", f"schedule.steps={steps}"])


def measure(checked: Scenario, before: SuiteScores, *, resume: bool = False) -> dict[str, Any]:
    """Train one seed, and return the suite's figures before and after, their gains, and exact figures.

    `before` are the scores of the untrained model, which is the same for all seeds. Seconds are those of the steps,
    without evaluations.
    """
    seed, suite = checked.schedule.seed, read_suite(SUITE)
    run = RUNS / f"spiral_{seed}"
    whole_run(checked, run, resume=resume)
    after = suite_player(str(run), suite).play_suite(suite)
    rows = list(RunFolder(run).rows())
    figures: dict[str, Any] = {"seed": seed, "steps": checked.schedule.steps, "tokens": rows[-1]["step/tokens"]}
    figures["seconds"] = round(sum(row.get("time/step", 0.0) for row in rows), 1)
    for name in EXACT:
        curve = [row[name] for row in rows if name in row]
        figures |= {f"{name}/before": round(curve[0], 4), f"{name}/after": round(curve[-1], 4)}
    return figures | compared(suite, before, after)


def compared(suite: Suite, before: SuiteScores, after: SuiteScores) -> dict[str, float]:
    """Return `TEST/FIGURE/before`, `.../after` and `.../gain` with their intervals, for the figures in `KEPT`."""
    metrics: Mapping[str, Metrics] = {
        "before": suite_metrics(suite, before),
        "after": suite_metrics(suite, after),
        "gain": paired_gain_metrics(suite, before, after),
    }
    figures: dict[str, float] = {}
    for when, values in metrics.items():
        for name, value in values.items():
            _, test, figure = name.split("/")
            if figure.removesuffix("_low").removesuffix("_high") in KEPT:
                figures[f"{test}/{figure}/{when}"] = round(value, 4)
    return figures


def main() -> None:
    line = parser(__doc__)
    line.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    line.add_argument("--budget", type=float, default=1.0)
    line.add_argument("--resume", action="store_true", help="go on with runs that were interrupted")
    line.add_argument("--add", action="store_true", help="keep the other seeds of the result file")
    line.add_argument("overrides", nargs="*")
    given = line.parse_intermixed_args()
    suite = read_suite(SUITE)
    before = suite_player(str(SCENARIO), suite, given.overrides).play_suite(suite)  # warms the model up, if it is new
    runs: list[dict[str, Any]] = []
    for seed in given.seeds:
        runs.append(measure(scenario(seed, given.budget, given.overrides), before, resume=given.resume))
    if given.add and given.out.exists():
        runs += [run for run in json.loads(given.out.read_text())["figures"]["runs"] if run["seed"] not in given.seeds]
    runs.sort(key=itemgetter("seed"))
    settings = {"scenario": SCENARIO.stem, "suite": SUITE.stem, "budget": given.budget}
    report({"runs": runs}, given.out, seeds=[run["seed"] for run in runs], **settings, overrides=given.overrides)


if __name__ == "__main__":
    main()
