"""Does better credit learn faster? Tokens until a team is as good as outcome credit makes it in the end.

    python tests/bench/credit_learning.py tune [--methods ...] [--jobs 2]
    python tests/bench/credit_learning.py run [--methods ...] [--jobs 2]
    python tests/bench/credit_learning.py report --out FILE.json --plot FILE.png
    python tests/bench/credit_learning.py report --methods graph_gae --known FILE.json --out FILE.json

Every method learns `scenarios/carry_chain.yaml` with the same baseline (GAE, which has values to compare with, with
whitening); only who earned it differs. Fixed before any of the runs: the scenario, the methods' settings, the three
learning rates, the budget (`BUDGET` tokens sampled or scored, forks and probes of credit included) and the threshold:
the mean over seeds of outcome credit's final success (mean of the evaluations in the last tenth of the budget), at the
learning rate at which that is highest. Each method learns at the learning rate at which, on seeds 0 and 1, the mean of
its tokens to the threshold is least (if none gets there: the one with the highest final success), and is then compared
on seeds 0 to 4. The threshold is reached when the mean of three evaluations in a row is, so that luck in one of them
does not count.

`tune` makes the runs to choose by, `run` the others. Both add to runs/credit_learning/ and repeat nothing that is
there. `--known` takes the threshold and all other methods from an earlier report; make sure by one run of outcome
credit that it still ends as it did there.
"""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

from _bench import ROOT, parser, report, silent

import marl
from marl.core.types import Metrics
from marl.runs.run_folder import RunFolder

BUDGET = 150_000
EVALUATIONS = 24
LRS = (2.5e-4, 5e-4, 1e-3)
SEEDS = (0, 1, 2, 3, 4)
TUNED = (0, 1)
"""Seeds on which learning rates are chosen."""
RUNS = ROOT / "runs" / "credit_learning"
TOKENS, SUCCESS = "step/tokens", "eval/held_out/success"
OUTCOME_STEP = 640
"""Tokens of a step of outcome credit: 32 episodes of five turns of four tokens."""


class Method(NamedTuple):
    """How one method differs from the scenario."""

    overrides: tuple[str, ...] = ()
    dearer: float = 1.0
    """About how many times as many tokens its steps take as those of outcome credit: so much more often it is
    evaluated."""


OWN = {
    "units": "(given.left % 10 + given.right % 10)",
    "tens": "((given.left % 100 + given.right % 100) // 10)",
    "hundreds": "((given.left % 1000 + given.right % 1000) // 100)",
    "thousands": "(given.value // 1000)",
}
"""What each agent ought to say."""
VERDICTS = tuple(
    f"game.rewards.{agent}.own='{agent}.readable * ({agent}.move == {right} | string)'" for agent, right in OWN.items()
)
"""Each agent is told whether its own place is right: process rewards, which no other method gets."""
PROCESS = "credit.assign={kind: process, rewards: [own], common: mean}"
VALUES = "level: turn, values: own, common: mean"
"""Values of GAE: a linear head on the model's states, as the learner of the scenario has no critic."""
METHODS = {
    "outcome": Method(),
    "flow": Method(("credit.assign={kind: flow, teams: [[units, watcher, tens, hundreds, thousands]]}",)),
    "process": Method((*VERDICTS, PROCESS)),
    "vdn": Method(("credit.assign={kind: vdn, rest: keep}",)),
    "qmix": Method(("credit.assign={kind: qmix, rest: keep}",)),
    "coma": Method(("credit.assign={kind: coma, rest: keep}",)),
    "leave_one_out": Method(("credit.assign={kind: leave_one_out}",), 2.0),
    "shapley": Method(("credit.assign={kind: shapley}",), 7.0),
    "replay": Method(("credit.assign={kind: replay, samples: 1}",), 4.0),
    "chain_gae": Method((f"credit={{assign: {{kind: chain_gae, lam: 0.5, {VALUES}}}, baseline: whiten}}",)),
    "graph_gae": Method((f"credit={{assign: {{kind: graph_gae, lam: 0.5, {VALUES}}}, baseline: whiten}}",)),
}


class Run(NamedTuple):
    """One training."""

    method: str
    lr: float
    seed: int

    @property
    def folder(self) -> Path:
        return RUNS / f"{self.method}_{self.lr:g}_{self.seed}"


def train(run: Run) -> None:
    """Train until the budget is spent."""
    method = METHODS[run.method]
    steps = math.ceil(BUDGET / OUTCOME_STEP)
    every = max(1, round(steps / EVALUATIONS / method.dearer))
    settings = [f"policies.team.learner.lr={run.lr}", f"schedule.seed={run.seed}", f"schedule.steps={steps}"]
    scenario = marl.load(
        ROOT / "scenarios" / "carry_chain.yaml", [*method.overrides, *settings, f"evaluate.every={every}"]
    )

    def stop(_: int, metrics: Metrics) -> None:
        if metrics[TOKENS] >= BUDGET:
            os.kill(os.getpid(), signal.SIGTERM)  # ends the run after this step

    if not (run.folder / "done").exists():
        with silent():
            marl.train(scenario, run.folder, overwrite=True, on_step=stop)
        (run.folder / "done").touch()
    print(run, flush=True)


def curve(run: Run) -> list[tuple[float, float]]:
    """(tokens, success) of each evaluation."""
    rows = [row for row in RunFolder(run.folder).rows() if SUCCESS in row]
    return [(row[TOKENS], row[SUCCESS]) for row in rows if row[TOKENS] <= BUDGET * 1.02]


def smooth(points: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Each with the two before it."""
    for end in range(3, len(points) + 1):
        yield points[end - 1][0], fmean(success for _, success in points[end - 3 : end])


def final(run: Run) -> float:
    """Mean success in the last tenth of the budget."""
    points = curve(run)
    return fmean([success for tokens, success in points if tokens >= 0.9 * BUDGET] or [points[-1][1]])


def reached(run: Run, threshold: float) -> float:
    """Tokens to the threshold; infinite if it was never reached."""
    return next((tokens for tokens, success in smooth(curve(run)) if success >= threshold), math.inf)


def finals(method: str, lr: float, seeds: Sequence[int]) -> list[float]:
    return [final(Run(method, lr, seed)) for seed in seeds]


def outcome_lr() -> float:
    """The learning rate at which outcome credit ends best."""
    return max(LRS, key=lambda lr: fmean(finals("outcome", lr, TUNED)))


def tuned_threshold(known: dict[str, Any] | None = None) -> float:
    """Outcome credit's threshold on the seeds that methods are tuned on."""
    if known:
        return fmean(known["methods"]["outcome"]["final"][SEEDS.index(seed)] for seed in TUNED)
    return fmean(finals("outcome", outcome_lr(), TUNED))


def chosen(method: str, threshold: float) -> float:
    """The learning rate of a method, by the seeds it is tuned on and by outcome credit's threshold on these."""
    if method == "outcome":
        return outcome_lr()

    def cost(lr: float) -> tuple[float, float]:
        tokens = [reached(Run(method, lr, seed), threshold) for seed in TUNED]
        return fmean(tokens), -fmean(finals(method, lr, TUNED))

    return min(LRS, key=cost)


def figures(methods: Sequence[str], known: dict[str, Any] | None = None) -> dict[str, Any]:
    """The comparison, with every run's numbers; `known`: figures of an earlier report, to which these are added."""
    threshold = known["threshold"] if known else fmean(finals("outcome", outcome_lr(), SEEDS))
    told: dict[str, Any] = known or {"threshold": round(threshold, 4), "methods": {}}
    for method in methods:
        best = chosen(method, tuned_threshold(known))
        tokens = [reached(Run(method, best, seed), threshold) for seed in SEEDS]
        told["methods"][method] = {
            "lr": best,
            "median_tokens": _number(median(tokens)),
            "tokens": [_number(value) for value in tokens],
            "final": [round(value, 4) for value in finals(method, best, SEEDS)],
            "tuned": {f"{lr:g}": [round(value, 4) for value in finals(method, lr, TUNED)] for lr in LRS},
        }
    base = told["methods"]["outcome"]["median_tokens"] or BUDGET
    for found in told["methods"].values():
        found["of_outcome"] = round(found["median_tokens"] / base, 3) if found["median_tokens"] else None
    return told


def _number(tokens: float) -> float | None:
    return round(tokens) if math.isfinite(tokens) else None


def plot(told: dict[str, Any], out: Path) -> None:
    """Success over tokens: the mean over seeds and the range between the least and the greatest."""
    import matplotlib

    matplotlib.use("Agg")
    import numpy as np
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5))
    grid = np.linspace(0, BUDGET, 60)
    for method, found in told["methods"].items():
        curves = [list(zip(*smooth(curve(Run(method, found["lr"], seed))), strict=True)) for seed in SEEDS]
        values = np.array([np.interp(grid, tokens, success, right=np.nan) for tokens, success in curves])
        axes.plot(grid, values.mean(0), label=f"{method} (lr {found['lr']:g})")
        axes.fill_between(grid, values.min(0), values.max(0), alpha=0.12)
    axes.axhline(told["threshold"], color="grey", linestyle=":", label="outcome credit in the end")
    axes.set(xlabel="tokens sampled or scored, credit's included", ylabel="share of places right (held out)")
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(out, dpi=120)


def planned(what: str, methods: Sequence[str]) -> list[Run]:
    """The runs to make."""
    if what == "tune":
        return [Run(method, lr, seed) for seed, method, lr in product(TUNED, methods, LRS)]
    rest = [seed for seed in SEEDS if seed not in TUNED]
    lrs = {method: chosen(method, tuned_threshold()) for method in methods}
    return [Run(method, lrs[method], seed) for seed, method in product(rest, methods)]


def main() -> None:
    line = parser(__doc__)
    line.add_argument("what", choices=("tune", "run", "report"))
    line.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    line.add_argument("--jobs", type=int, default=2)
    line.add_argument("--plot", type=Path)
    line.add_argument("--known", type=Path, help="an earlier report")
    given = line.parse_args()
    if given.what == "report":
        known = json.loads(given.known.read_text())["figures"] if given.known else None
        told = figures(given.methods, known)
        if given.plot:
            plot(told, given.plot)
        report(told, given.out, seeds=SEEDS, budget=BUDGET, lrs=list(LRS), tuned_on=list(TUNED))
        return
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        list(pool.map(train, planned(given.what, given.methods)))


if __name__ == "__main__":
    main()
