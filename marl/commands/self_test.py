"""The self-test of `marl doctor`: a short real training run that checks learning and measures speed."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from marl.commands.machine_findings import MachineCheckResult
from marl.core.errors import RunError
from marl.core.types import Metrics
from marl.runs.run_folder import RunFolder
from marl.scenario.load import validate
from marl.training.build import build
from marl.training.loop import TrainingLoop
from marl.training.stop_request import StopRequest
from marl.view.console import RunMonitor

STEPS = 60
_MAX_NASHCONV_RATIO = 0.8
"""Maximum ratio of the last NashConv to the first. It is high, because few steps mostly teach the answer format."""
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


class _MetricsRecorder(RunMonitor):
    """Monitor that stores the metrics of every step and shows nothing."""

    def __init__(self) -> None:
        self.rows: list[Metrics] = []

    def log_metrics(self, step: int, metrics: Metrics) -> None:
        self.rows.append(metrics)


def self_test(steps: int = STEPS) -> Iterator[MachineCheckResult]:
    """Train for `steps` steps, then yield a finding about learning and a finding about speed.

    If training fails, the only finding states the error.
    """
    changes = {
        "schedule": _SCENARIO["schedule"] | {"steps": steps},
        "evaluate": {"every": steps, "nashconv": True},
        "checkpoint": {"every": steps},
    }
    recorder, started = _MetricsRecorder(), time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="marl-doctor-") as folder:
        try:
            tested, run = validate(_SCENARIO | changes, "self-test"), RunFolder(Path(folder) / "run")
            run.create(tested)
            TrainingLoop(build(tested), run, [recorder])(StopRequest())
        except (RunError, ValueError, RuntimeError, OSError) as error:
            yield MachineCheckResult("self-test", "wrong", f"training failed: {type(error).__name__}: {error}")
            return
    rows, seconds = recorder.rows, time.perf_counter() - started
    nashconv = [row["eval/nashconv"] for row in rows if "eval/nashconv" in row]
    text = f"NashConv of Kuhn poker {nashconv[0]:.3f} -> {nashconv[-1]:.3f} in {steps} steps"
    if nashconv[-1] <= _MAX_NASHCONV_RATIO * nashconv[0]:
        yield MachineCheckResult("self-test", "ok", text)
    else:
        yield MachineCheckResult(
            "self-test", "wrong", f"{text}: it did not learn", "please report this, with the lines above"
        )
    # Speed is that of the second half of the steps, because the first steps include the costs of starting up.
    totals = dict.fromkeys(("time/step", "time/play", "time/learn", "episode/count"), 0.0)
    for row in rows[len(rows) // 2 :]:
        for name in totals:
            totals[name] += row.get(name, 0.0)
    steady_s = totals["time/step"]
    episodes = totals["episode/count"] / steady_s
    shares = f"{totals['time/play'] / steady_s:.0%} play, {totals['time/learn'] / steady_s:.0%} learn"
    yield MachineCheckResult("speed", "ok", f"{episodes:,.0f} episodes a second ({shares}); {seconds:.0f} s in all")
