"""Kuhn self-play end to end: episodes per second, where the time goes, and the gain from computing nothing twice.

    python tests/bench/self_play.py [--out FILE] [--repeats 3] [--steps 60] [--warm-up 5] [--few 20]

`scenarios/kuhn_self_play.yaml` as it stands, without evaluation: 256 episodes a step on one thread. `stages` are shares
of a step's wall time (medians of the `time/` metrics; `rest` lies between two steps' clocks). `around` is CPU time that
is neither engine (`submit`, `step`, `load_weights`) nor learner (`update`), per turn: games, roles, graph, credit,
batching and metrics. `around_parts` divides it: `play` (deals, games, roles, prompts, graph), `credit`, `samples`,
`metrics` (their computation, `metrics.jsonl`, event files, alarms), `recording` (one step in a hundred is written to
files), `freeing` (of the step's records), `collect` (garbage collection), and `rest`.

`gain` compares the first `--few` steps after the warm-up with those of runs that compute twice, on the same seed, in
CPU time unless it says wall: `rows_apart` has `learner.merge: false`, and keeps the learner from seeing that two rows
hold the same tokens (which share a forward pass even then); `prompts_apart` keeps the engine from seeing that two
prompts are the same, so that each request is prefilled by itself (still in batches, and the tokenizer still remembers);
`both` has both. Repetitions are interleaved.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from _bench import ROOT, parser, report, silent, spread

import marl
from marl.core.types import Metrics, Request, Ticket
from marl.credit_stage.stage import StepCredit
from marl.engines.transformers.settings import Transformers
from marl.experience.rollouts import Rollouts
from marl.metrics.alarms import AlarmMonitor
from marl.models.chat_template import Prompt
from marl.protocols import LearnerBuildArguments, ModelSource
from marl.runs.run_folder import RunFolder
from marl.scenario.schema import Scenario
from marl.trainers.policy_gradient.settings import Grpo
from marl.training import loop
from marl.training.loop import TrainingLoop
from marl.training.run import Run

SCENARIO = ROOT / "scenarios" / "kuhn_self_play.yaml"
VARIANTS = {
    "as_it_is": (True, True),
    "rows_apart": (False, True),
    "prompts_apart": (True, False),
    "both": (False, False),
}
"""Whether rows share what they have in common, and prompts."""
SPENT: Counter[str] = Counter()
"""CPU seconds of engine, learner and the parts around them; one run at a time."""
PARTS: dict[str, list[tuple[Any, str]]] = {
    "play": [(Rollouts, "gather")],
    "credit": [(Run, "assign_credit")],
    "samples": [(Run, "samples")],
    "metrics": [
        (loop, "summarize_trajectories"),
        (loop, "edited_history_metrics"),
        (AlarmMonitor, "__call__"),
        (TrainingLoop, "_evaluate_and_log"),
    ],
    "recording": [
        (RunFolder, "record_trajectories"),
        (RunFolder, "record_credit"),
        (StepCredit, "to_credit_record"),
        (loop, "with_token_statistics"),
    ],
    "collect": [(loop, "collect_garbage_of_step")],
}
"""Part of what is around engine and learner -> its functions. `play` calls the engine, whose time is subtracted."""
P = ParamSpec("P")
R = TypeVar("R")


class Apart(tuple[int, ...]):
    """Token ids that are equal to nothing but themselves."""

    __slots__ = ()
    __eq__ = object.__eq__
    __ne__ = object.__ne__
    __hash__ = object.__hash__

    def __add__(self, other: tuple[int, ...]) -> Apart:  # type: ignore[override]
        return Apart(tuple(self) + other)


def clocked(part: str, method: Callable[P, R]) -> Callable[P, R]:
    """The method, counting its CPU time as `part`'s."""

    @wraps(method)
    def timed(*args: P.args, **kwargs: P.kwargs) -> R:
        started = time.process_time()
        result = method(*args, **kwargs)
        SPENT[part] += time.process_time() - started  # type: ignore[assignment]
        return result

    return timed


class ClockedEngine(Transformers):
    """The ordinary engine; says how long it took, and can be kept from sharing prompts."""

    kind: str = f"{__name__}:ClockedEngine"
    share: bool = True

    def build(self, source: ModelSource | None) -> Any:
        sampler: Any = super().build(source)
        submitted: list[tuple[Ticket, Request]] = []
        submit, step = sampler.submit, sampler.step

        def submit_all_and_step(wait_s: float) -> Any:
            for ticket, request in submitted:
                submit(ticket, request)
            submitted.clear()
            return step(wait_s)

        # The clock is read once a batch: to read the CPU time for each request takes longer than to queue it.
        sampler.submit = lambda ticket, request: submitted.append((ticket, request))
        sampler.step = clocked("engine", submit_all_and_step)
        sampler.load_weights = clocked("loading", sampler.load_weights)
        if not self.share:
            known = sampler.chat_tokenizer.prompt
            # Prompts are told apart by identity, so a copy is another prompt.
            sampler.chat_tokenizer.prompt = lambda *asked: Prompt(known(*asked).ids)
        return sampler


class ClockedLearner(Grpo):
    """The ordinary learner; says how long it took, and can be kept from sharing anything between rows."""

    kind: str = f"{__name__}:ClockedLearner"
    share: bool = True

    def build(self, context: LearnerBuildArguments) -> Any:
        learner: Any = super().build(context)
        learner.update = update = clocked("learner", learner.update)
        if not self.share:
            learner.update = lambda said: update([replace(one, prompt_ids=Apart(one.prompt_ids)) for one in said])
        return learner


@dataclass
class Watch:
    """Clocks after each step; index 0 is before the first."""

    rows: list[Metrics] = field(default_factory=list)
    clocks: list[dict[str, float]] = field(default_factory=list)

    def step(self, done: int, metrics: Metrics) -> None:
        self.rows.append(metrics)
        clock = {"wall": time.perf_counter(), "cpu": time.process_time()}
        self.clocks.append(clock | {part: SPENT[part] for part in ("engine", "learner", "loading", "freeing", *PARTS)})

    def seconds(self, clock: str, first: int, last: int) -> float:
        """Of steps [first, last)."""
        return self.clocks[last][clock] - self.clocks[first][clock]

    def episodes(self, first: int, last: int) -> float:
        return sum(row["episode/count"] for row in self.rows[first + 1 : last + 1])

    def turns(self, first: int, last: int) -> float:
        return sum(row["episode/count"] * row["episode/turns"] for row in self.rows[first + 1 : last + 1])


def scenario(steps: int, seed: int, rows: bool, prompts: bool) -> Scenario:
    merged, shared = str(rows).lower(), str(prompts).lower()
    changes = [
        f"schedule.steps={steps}",
        f"schedule.seed={seed}",
        "evaluate={}",
        f"checkpoint.every={10**6}",
        f"policies.actor.learner.kind='{__name__}:ClockedLearner'",
        f"policies.actor.learner.merge={merged}",
        f"policies.actor.learner.share={merged}",
        f"policies.actor.engine={{kind: '{__name__}:ClockedEngine', share: {shared}}}",
    ]
    return marl.load(SCENARIO, changes)


def clock_parts() -> None:
    """Count the CPU time of the parts around engine and learner, in all later runs."""
    for part, functions in PARTS.items():
        for owner, name in functions:
            setattr(owner, name, clocked(part, getattr(owner, name)))
    began: list[float] = []

    def begin_after(method: Callable[P, R]) -> Callable[P, R]:
        def timed(*args: P.args, **kwargs: P.kwargs) -> R:
            result = method(*args, **kwargs)
            began.append(time.process_time())
            return result

        return timed

    def end() -> None:
        if began:
            SPENT["freeing"] += time.process_time() - began.pop()  # type: ignore[assignment]

    def end_before(method: Callable[P, R]) -> Callable[P, R]:
        def timed(*args: P.args, **kwargs: P.kwargs) -> R:
            end()
            return method(*args, **kwargs)

        return timed

    def end_after(method: Callable[P, R]) -> Callable[P, R]:
        def timed(*args: P.args, **kwargs: P.kwargs) -> R:
            result = method(*args, **kwargs)
            end()
            return result

        return timed

    # The loop deletes credit and samples between publication and alarms, and episodes when a step returns.
    loop_class: Any = TrainingLoop
    loop_class._publish_once = begin_after(loop_class._publish_once)
    loop_class._report_alarms = begin_after(loop_class._report_alarms)
    loop_class.step = end_after(loop_class.step)
    setattr(AlarmMonitor, "__call__", end_before(AlarmMonitor.__call__))  # noqa: B010 (a method, not an attribute)


def run(steps: int, seed: int, variant: str) -> Watch:
    watch = Watch()
    with tempfile.TemporaryDirectory() as folder, silent():
        marl.train(scenario(steps, seed, *VARIANTS[variant]), Path(folder) / "run", on_step=watch.step)
    return watch


def stages(watches: list[Watch], warm_up: int) -> dict[str, float]:
    """Shares of the wall time of a step, and its length."""
    parts: dict[str, list[float]] = {}
    for watch in watches:
        for step in range(warm_up, len(watch.rows) - 1):
            spent = {k.removeprefix("time/"): v for k, v in watch.rows[step + 1].items() if k.startswith("time/")}
            del spent["step"]
            wall = watch.seconds("wall", step, step + 1)
            spent |= {"rest": wall - sum(spent.values()), "wall": wall}
            for name, value in spent.items():
                parts.setdefault(name, []).append(value)
    medians = {name: statistics.median(values) for name, values in parts.items()}
    wall = medians.pop("wall")
    return {name: round(value / wall, 4) for name, value in medians.items()} | {"step_ms": round(wall * 1e3, 2)}


def per_turn(watches: list[Watch], first: int, last: int) -> dict[str, dict[str, float]]:
    """CPU microseconds a turn: engine, learner, and all around them."""
    figures: dict[str, list[float]] = {"engine": [], "learner": [], "around": []}
    for watch in watches:
        spent = {part: watch.seconds(part, first, last) for part in ("engine", "learner")}
        spent["engine"] += watch.seconds("loading", first, last)
        spent["around"] = watch.seconds("cpu", first, last) - sum(spent.values())
        for part, value in spent.items():
            figures[part].append(value / watch.turns(first, last) * 1e6)
    return {part: spread(values, 1) for part, values in figures.items()}


def parts_per_turn(watches: list[Watch], first: int, last: int) -> dict[str, float]:
    """CPU microseconds a turn of each part around engine and learner, medians over runs."""
    figures: dict[str, list[float]] = {}
    for watch in watches:
        spent = {part: watch.seconds(part, first, last) for part in (*PARTS, "freeing")}
        spent["play"] -= watch.seconds("engine", first, last)
        spent["freeing"] -= spent["recording"]  # which lies between publication and alarms
        model = sum(watch.seconds(part, first, last) for part in ("engine", "learner", "loading"))
        spent["rest"] = watch.seconds("cpu", first, last) - model - sum(spent.values())
        for part, value in spent.items():
            figures.setdefault(part, []).append(value / watch.turns(first, last) * 1e6)
    return {part: round(statistics.median(values), 1) for part, values in figures.items()}


def gains(runs: dict[str, list[Watch]], first: int, last: int) -> dict[str, Any]:
    """How many times longer each variant takes, on the same steps and seeds, per episode."""

    def ratio(clock: str, slow: Watch, fast: Watch) -> float:
        return slow.seconds(clock, first, last) / fast.seconds(clock, first, last)

    return {
        name: {
            clock: spread([ratio(clock, slow, fast) for slow, fast in zip(watches, runs["as_it_is"], strict=True)], 2)
            for clock in ("wall", "cpu", "engine", "learner")
        }
        for name, watches in runs.items()
        if name != "as_it_is"
    }


def measured(repeats: int, steps: int, warm_up: int, few: int) -> dict[str, Any]:
    clock_parts()
    run(1, 0, "as_it_is")  # makes the model, once for all
    runs: dict[str, list[Watch]] = {name: [] for name in VARIANTS}
    for seed in range(repeats):
        for name in VARIANTS:
            runs[name].append(run(warm_up + (steps if name == "as_it_is" else few), seed, name))
    ours, last = runs["as_it_is"], warm_up + steps
    rows = [row for watch in ours for row in watch.rows[warm_up + 1 :]]
    speed = {
        clock: spread([watch.episodes(warm_up, last) / watch.seconds(clock, warm_up, last) for watch in ours], 1)
        for clock in ("wall", "cpu")
    }
    return {
        "episodes_per_s": speed["wall"],
        "episodes_per_cpu_s": speed["cpu"],
        "turns_per_episode": round(statistics.fmean(row["episode/turns"] for row in rows), 3),
        "samples_per_step": round(statistics.fmean(row["policy/actor/samples"] for row in rows), 1),
        "rows_per_step": round(statistics.fmean(row["policy/actor/rows"] for row in rows), 1),
        "stages": stages(ours, warm_up),
        "cpu_us_per_turn": per_turn(ours, warm_up, last),
        "around_parts": parts_per_turn(ours, warm_up, last),
        "gain": gains(runs, warm_up, warm_up + few),
    }


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--steps", type=int, default=60)
    options.add_argument("--warm-up", type=int, default=5)
    options.add_argument("--few", type=int, default=20)
    chosen = options.parse_args()
    figures = measured(chosen.repeats, chosen.steps, chosen.warm_up, min(chosen.few, chosen.steps))
    settings = {"scenario": SCENARIO.name, "steps": chosen.steps, "warm_up": chosen.warm_up, "few": chosen.few}
    report(figures, chosen.out, seeds=range(chosen.repeats), **settings)


if __name__ == "__main__":
    # A plug-in's module must not be the program itself, so the plug-ins of this file are imported like any others.
    from self_play import main as main_of_module

    main_of_module()
