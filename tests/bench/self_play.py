"""Kuhn self-play end to end: episodes per second, where the time goes, and the gain from computing nothing twice.

    python tests/bench/self_play.py [--out FILE] [--repeats 3] [--steps 60] [--warm-up 5] [--few 12]

`scenarios/kuhn_self_play.yaml` as it stands, without evaluation: 256 episodes a step on one thread. `stages` are shares
of a step's wall time (medians of the `time/` metrics; `rest` is what lies between two steps' clocks). `around` is all
that is neither engine nor learner: the wall time of a whole step minus the engine's `submit`, `step` and `load_weights`
and the learner's `update`, per turn.

`gain` compares the first `--few` steps after the warm-up with those of runs that compute twice, on the same seed:
`rows_apart` has `learner.merge: false`; `prompts_apart` keeps the engine from seeing that two prompts are the same, so
that each request is prefilled by itself (in the same batch; what the tokenizer remembers stays); `both` has both.
Repetitions are interleaved. Wall and CPU time are both reported: on a busy machine trust the second.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _bench import ROOT, parser, report, silent, spread

import marl
from marl.engines.prompts import Prompt
from marl.engines.sampler import Answer, Sampler
from marl.engines.transformers import Transformers
from marl.protocols import Engine, Source
from marl.scenario import Scenario
from marl.types import Metrics, Request, Ticket

if TYPE_CHECKING:
    from marl.protocols import Weights

SCENARIO = ROOT / "scenarios" / "kuhn_self_play.yaml"
VARIANTS = {
    "as_it_is": (True, True),
    "rows_apart": (False, True),
    "prompts_apart": (True, False),
    "both": (False, False),
}
"""Whether rows are merged, and prompts shared."""


class Clocked(Transformers):
    """The ordinary engine; says how long it took, and can be kept from sharing prompts."""

    kind: str = f"{__name__}:Clocked"
    share: bool = True

    def build(self, source: Source | None) -> Engine:
        assert source is not None
        return Watched(source.model(), source.tokenizer(), self)


class Watched(Sampler):
    """Counts its own seconds, for the one run that is under way."""

    spent_s = 0.0

    def __init__(self, model: Any, tokenizer: Any, settings: Clocked) -> None:
        super().__init__(model, tokenizer, settings)
        if not settings.share:
            known = self.prompts.prompt
            # Prompts are shared by identity.
            self.prompts.prompt = lambda request: Prompt(known(request).ids)

    def submit(self, ticket: Ticket, request: Request) -> None:
        started = time.perf_counter()
        super().submit(ticket, request)
        Watched.spent_s += time.perf_counter() - started

    def step(self, wait_s: float) -> list[Answer]:
        started = time.perf_counter()
        answers = super().step(wait_s)
        Watched.spent_s += time.perf_counter() - started
        return answers

    def load_weights(self, policy: str, weights: Weights, version: int) -> None:
        started = time.perf_counter()
        super().load_weights(policy, weights, version)
        Watched.spent_s += time.perf_counter() - started


@dataclass
class Watch:
    """Clocks after each step; index 0 is before the first."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    engine: list[float] = field(default_factory=list)
    rows: list[Metrics] = field(default_factory=list)

    def step(self, done: int, metrics: Metrics) -> None:
        self.wall.append(time.perf_counter())
        self.cpu.append(time.process_time())
        self.engine.append(Watched.spent_s)
        self.rows.append(metrics)

    def per_s(self, clock: Sequence[float], first: int, last: int) -> float:
        """Episodes a second in steps [first, last)."""
        played = sum(row["episode/count"] for row in self.rows[first + 1 : last + 1])
        return played / (clock[last] - clock[first])


def scenario(steps: int, seed: int, merge: bool, share: bool) -> Scenario:
    changes = [
        f"schedule.steps={steps}",
        f"schedule.seed={seed}",
        "evaluate.nashconv=false",
        f"checkpoint.every={10**6}",
        f"policies.actor.learner.merge={str(merge).lower()}",
        f"policies.actor.engine={{kind: '{__name__}:Clocked', share: {str(share).lower()}}}",
    ]
    return marl.load(SCENARIO, changes)


def run(steps: int, seed: int, variant: str) -> Watch:
    watch = Watch()
    with tempfile.TemporaryDirectory() as folder, silent():
        marl.train(scenario(steps, seed, *VARIANTS[variant]), Path(folder) / "run", on_step=watch.step)
    return watch


def stages(watch: Watch, warm_up: int) -> dict[str, float]:
    """Shares of the wall time of a step, and what each of its turns cost outside engine and learner."""
    shares: dict[str, list[float]] = {}
    around: list[float] = []
    for step in range(warm_up + 1, len(watch.rows)):
        row, wall = watch.rows[step], watch.wall[step] - watch.wall[step - 1]
        parts = {name.removeprefix("time/"): value for name, value in row.items() if name.startswith("time/")}
        del parts["step"]
        engine = watch.engine[step] - watch.engine[step - 1]
        around.append((wall - engine - parts["learn"]) / (row["episode/turns"] * row["episode/count"]) * 1e6)
        parts |= {"rest": wall - sum(parts.values()), "engine_in_play": engine, "wall": wall}
        for name, value in parts.items():
            shares.setdefault(name, []).append(value)
    medians = {name: statistics.median(values) for name, values in shares.items()}
    wall = medians.pop("wall")
    figures = {name: round(value / wall, 4) for name, value in medians.items()}
    return figures | {"step_ms": round(wall * 1e3, 2), "around_us_per_turn": round(statistics.median(around), 1)}


def gains(runs: dict[str, list[Watch]], first: int, last: int) -> dict[str, Any]:
    """How many times faster we are than each variant, on the same steps and seed."""
    figures: dict[str, Any] = {}
    for name, watches in runs.items():
        if name == "as_it_is":
            continue
        pairs = list(zip(runs["as_it_is"], watches, strict=True))
        figures[name] = {
            "wall": spread([a.per_s(a.wall, first, last) / b.per_s(b.wall, first, last) for a, b in pairs]),
            "cpu": spread([a.per_s(a.cpu, first, last) / b.per_s(b.cpu, first, last) for a, b in pairs]),
            "learn": spread([_seconds(b, "time/learn", first, last) / _seconds(a, "time/learn", first, last)
                             for a, b in pairs]),
            "play": spread([_seconds(b, "time/play", first, last) / _seconds(a, "time/play", first, last)
                            for a, b in pairs]),
        }  # fmt: skip
    return figures


def _seconds(watch: Watch, stage: str, first: int, last: int) -> float:
    return sum(row[stage] for row in watch.rows[first + 1 : last + 1])


def measured(repeats: int, steps: int, warm_up: int, few: int) -> dict[str, Any]:
    run(1, 0, "as_it_is")  # makes the model, once for all
    runs: dict[str, list[Watch]] = {name: [] for name in VARIANTS}
    for seed in range(repeats):
        for name in VARIANTS:
            runs[name].append(run(warm_up + (steps if name == "as_it_is" else few), seed, name))
    ours, last = runs["as_it_is"], warm_up + steps
    rows = [row for watch in ours for row in watch.rows[warm_up + 1 :]]
    return {
        "episodes_per_s": spread([watch.per_s(watch.wall, warm_up, last) for watch in ours], 1),
        "episodes_per_cpu_s": spread([watch.per_s(watch.cpu, warm_up, last) for watch in ours], 1),
        "turns_per_episode": round(statistics.fmean(row["episode/turns"] for row in rows), 3),
        "rows_of_samples": [round(statistics.fmean(row[f"policy/actor/{what}"] for row in rows), 1)
                            for what in ("rows", "samples")],
        "stages": [stages(watch, warm_up) for watch in ours],
        "gain": gains(runs, warm_up, warm_up + few),
    }  # fmt: skip


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--steps", type=int, default=60)
    options.add_argument("--warm-up", type=int, default=5)
    options.add_argument("--few", type=int, default=12)
    chosen = options.parse_args()
    figures = measured(chosen.repeats, chosen.steps, chosen.warm_up, chosen.few)
    settings = {"scenario": SCENARIO.name, "steps": chosen.steps, "warm_up": chosen.warm_up, "few": chosen.few}
    report(figures, chosen.out, seeds=range(chosen.repeats), threads=1, **settings)


if __name__ == "__main__":
    main()
