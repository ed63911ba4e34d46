"""A short real training run, by which `marl doctor` shows that everything works together, and how fast."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from marl.commands.health import Finding
from marl.errors import RunError
from marl.runs.run_folder import RunFolder
from marl.scenario.load import validate
from marl.scenario.schema import Scenario
from marl.types import Metrics
from marl.view.console import Monitor

STEPS = 60
_LEARNT = 0.8
"""Share of the first NashConv that is left at most: the run learns the answer format first, then the game."""
_WARM_UP = {"steps": 200, "lr": 1.0e-2}
_SCENARIO: dict[str, Any] = {
    "game": {"kind": "kuhn_poker", "illegal": {"then": "forfeit", "penalty": 3}},
    "seats": {"player_0": "player", "player_1": "player"},
    "roles": {"player": {"kind": "player", "policy": "actor", "sampling": {"max_tokens": 6}}},
    "policies": {
        "actor": {
            "model": {"kind": "tiny", "hidden": 32, "layers": 1, "warm_up": _WARM_UP},
            "learner": {
                "kind": "grpo",
                "lr": 2.0e-3,
                "betas": [0.9, 0.99],
                "aggregation": "seq_mean_token_sum",
                "magnet": {"coefficient": 0.15, "refresh": 200},
                "proximal": {"coefficient": 1.0, "refresh": 10},
            },
        }
    },
    "credit": {
        "assign": {"kind": "outcome"},
        "baseline": {"kind": "group", "like": "start", "std": False},
        "scale": 0.5,
    },
    "schedule": {"steps": STEPS, "groups": 128, "group_size": 2, "seed": 0, "threads": 1},
    "evaluate": {"every": STEPS // 2, "nashconv": True},
    "checkpoint": {"every": STEPS},
}


def scenario(steps: int = STEPS) -> Scenario:
    """Return Kuhn poker in self-play, as `make demo` trains it, for a few steps."""
    schedule = _SCENARIO["schedule"] | {"steps": steps}
    changed = {"schedule": schedule, "evaluate": {"every": steps, "nashconv": True}, "checkpoint": {"every": steps}}
    return validate(_SCENARIO | changed, "self-test")


class _Recorder(Monitor):
    """Keeps the metrics of every step; shows nothing."""

    def __init__(self) -> None:
        self.rows: list[Metrics] = []

    def log(self, step: int, metrics: Metrics) -> None:
        self.rows.append(metrics)


def self_test(steps: int = STEPS) -> Iterator[Finding]:
    """Yield what a short run shows: that it learns, and how much it plays a second."""
    recorder, started = _Recorder(), time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="marl-doctor-") as folder:
        try:
            _train(scenario(steps), RunFolder(Path(folder) / "run"), recorder)
        except (RunError, ValueError, RuntimeError, OSError) as error:
            yield Finding("self-test", "wrong", f"training failed: {type(error).__name__}: {error}")
            return
    yield _learning(recorder.rows, steps)
    yield _speed(recorder.rows, time.perf_counter() - started)


def _train(tested: Scenario, folder: RunFolder, recorder: Monitor) -> None:
    from marl.training.build import build
    from marl.training.interrupt import Interrupt
    from marl.training.loop import Training

    folder.create(tested)
    Training(build(tested), folder, [recorder])(Interrupt())


def _learning(rows: list[Metrics], steps: int) -> Finding:
    measured = [row["eval/nashconv"] for row in rows if "eval/nashconv" in row]
    text = f"NashConv of Kuhn poker {measured[0]:.3f} -> {measured[-1]:.3f} in {steps} steps"
    if measured[-1] <= _LEARNT * measured[0]:
        return Finding("self-test", "ok", text)
    return Finding("self-test", "wrong", f"{text}: it did not learn", "please report this, with the lines above")


def _speed(rows: list[Metrics], seconds: float) -> Finding:
    steady = rows[len(rows) // 2 :]
    spent = sum(row["time/step"] for row in steady)
    episodes = sum(row["episode/count"] for row in steady) / spent
    shares = {name: sum(row.get(f"time/{name}", 0.0) for row in steady) / spent for name in ("play", "learn")}
    share = ", ".join(f"{value:.0%} {name}" for name, value in shares.items())
    return Finding("speed", "ok", f"{episodes:,.0f} episodes a second ({share}); {seconds:.0f} s in all")
