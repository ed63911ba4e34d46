"""Real runs of `marl` in processes of their own, which can be killed at a chosen moment.

Starting Python with torch takes seconds, so processes are forked from a server that has imported everything.
"""

import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
import yaml

PRELOADED_MODULES = [
    "pytest",
    "marl.commands.cli",
    "marl.training.session",
    "marl.runs.failed_updates",
    "marl.models.tiny_build",
    "marl.models.weights",
    "marl.engines.transformers.engine",
    "marl.trainers.policy_gradient.objective",
    "marl.games.kuhn_poker",
    "marl.roles.answering",
    "marl.credit.baselines.group",
    "torch.optim.adamw",
    "transformers.models.llama.modeling_llama",
    "tensorboard.summary.writer.record_writer",
    "tensorboard.compat.proto.event_pb2",
    "tensorboard.compat.proto.summary_pb2",
]
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(PRELOADED_MODULES)


@dataclass(frozen=True)
class SignalTrigger:
    """SIGKILL, or another signal, when something happens for the nth time: a call, or an event that Python audits."""

    event: str
    target: str
    """Qualified name of the function called; otherwise a part of the event's first argument, such as a path."""
    nth: int = 1
    signals: tuple[int, ...] = (signal.SIGKILL,)
    child: str = ""
    """A part of the command line of the process below this one that is meant; empty: this process itself."""

    def arm(self) -> None:
        """From now on, in this process."""
        seen = count(1)

        def fire(here: bool) -> None:
            if here and next(seen) == self.nth:
                for number in self.signals:
                    os.kill(self._victim(), number)

        def profile(frame: FrameType, event: str, argument: object) -> None:
            fire(event == "call" and frame.f_code.co_qualname == self.target)

        def audit(event: str, arguments: tuple[Any, ...]) -> None:
            fire(event == self.event and self.target in str(arguments[0]))

        if self.event == "call":
            sys.setprofile(profile)
        else:
            sys.addaudithook(audit)

    def _victim(self) -> int:
        if not self.child:
            return os.getpid()
        below = psutil.Process().children(recursive=True)
        return next(process.pid for process in below if self.child in "".join(process.cmdline()))


def _marl(arguments: list[str], cache: str, log: str, kill: SignalTrigger | None) -> None:
    from marl.commands.cli import main

    os.environ["MARL_CACHE"] = cache
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.argv = ["marl", *arguments]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # as in a terminal, whatever the tests were started from
    if kill:
        kill.arm()
    main()


@dataclass(frozen=True)
class RunWorkspace:
    """A folder to work in: a scenario file, a cache of made models, runs."""

    path: Path
    scenario: dict[str, Any]

    @property
    def run(self) -> Path:
        return self.path / "run"

    def start(self, *arguments: str, kill: SignalTrigger | None = None) -> BaseProcess:
        """A process that runs `marl` with these arguments; what it prints goes to the log."""
        self.path.mkdir(exist_ok=True)
        where = (str(self.path / "cache"), str(self.path / "log"))
        process = _CONTEXT.Process(target=_marl, args=(list(arguments), *where, kill))
        process.start()
        return process

    def start_training(self, *arguments: str, kill: SignalTrigger | None = None, **changes: Any) -> BaseProcess:
        """`marl train` in the run's folder."""
        self.path.mkdir(exist_ok=True)
        file = self.path / "scenario.yaml"
        file.write_text(yaml.safe_dump(self.scenario | changes))
        return self.start("train", str(file), "--out", str(self.run), *arguments, kill=kill)

    def train(self, *arguments: str, kill: SignalTrigger | None = None, **changes: Any) -> int | None:
        """`marl train` to its end; the exit status (negative: killed by that signal)."""
        return exit_status(self.start_training(*arguments, kill=kill, **changes))

    def take_output(self) -> str:
        """All that was printed since the last call."""
        log = self.path / "log"
        text = log.read_text() if log.exists() else ""
        log.unlink(missing_ok=True)
        return text


def exit_status(process: BaseProcess) -> int | None:
    """The exit status."""
    process.join(120)
    assert not process.is_alive()
    return process.exitcode


def metric_lines(run: Path) -> list[str]:
    """The lines of metrics.jsonl without what depends on the clock: times, and the checksums over them."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [json.dumps({k: v for k, v in row.items() if not k.startswith(("time/", "crc32"))}) for row in lines]


def contents(run: Path, *folders: str) -> dict[str, bytes]:
    """Relative path -> bytes of every file in these folders of a run."""
    files = [p for name in folders for p in sorted((run / name).rglob("*")) if p.is_file()]
    return {str(p.relative_to(run)): p.read_bytes() for p in files}


def outcome(run: Path) -> tuple[list[str], dict[str, bytes]]:
    """All that two equal runs have in common: rows, weights and states of all checkpoints, trajectories, strategies."""
    files = contents(run, "checkpoints", "trajectories", "strategies")
    # A manifest counts the bytes of metrics.jsonl, and so the digits of its times.
    return metric_lines(run), {name: data for name, data in files.items() if not name.endswith("manifest.json")}


def tiny_model(seed: int = 0, **more: Any) -> dict[str, Any]:
    """A model small enough to be made and taught in half a second."""
    warm_up = {"steps": 25, "episodes": 64, "batch": 32, "lr": 2e-2}
    return {"kind": "tiny", "hidden": 16, "layers": 1, "seed": seed, "warm_up": warm_up, **more}


def kuhn_scenario(learner: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """Self-play of one tiny policy, a few steps of a few episodes."""
    grpo = {"kind": "grpo", "lr": 3e-3, "schedule": "linear", "betas": [0.9, 0.99]}
    return {
        "game": {"kind": "kuhn_poker"},
        "seats": {"player_0": "player", "player_1": "player"},
        "roles": {"player": {"kind": "player", "policy": "actor", "sampling": {"max_tokens": 6}}},
        "policies": {"actor": {"model": tiny_model(), "learner": grpo | (learner or {})}},
        "credit": {"baseline": {"kind": "group", "std": False}},
        "schedule": {"steps": 8, "groups": 8, "group_size": 4, "threads": 1},
        "evaluate": {"every": 4, "nashconv": True, "against": {"random": 6}},
        "checkpoint": {"every": 3, "trajectories": 0.6},
    } | more


def anchored_scenario() -> dict[str, Any]:
    """Group credit, a magnet, a proximal anchor refreshed between checkpoints, several minibatches and epochs; the
    average policy is measured."""
    average = {"average": {"last": 1.0, "weights": "linear"}}
    return kuhn_scenario(
        {
            "magnet": {"coefficient": 0.2, "final": 0.03},
            "proximal": {"coefficient": 1.0, "refresh": 2},
            "epochs": 2,
            "minibatches": 2,
        },
        evaluate={"every": 2, "nashconv": True, "against": {"random": 6}} | average,
    )


def two_policy_scenario(**second: Any) -> dict[str, Any]:
    """Two policies with weights of their own that change seats, judged against running averages."""
    learner = {"kind": "grpo", "lr": 3e-3, "minibatches": 2}
    roles = {name: {"kind": "player", "policy": name, "sampling": {"max_tokens": 6}} for name in ("left", "right")}
    right = {"model": tiny_model(1), "learner": learner} | second
    return kuhn_scenario(
        seats={"player_0": "left", "player_1": "right"},
        roles=roles,
        policies={"left": {"model": tiny_model(), "learner": learner}, "right": right},
        credit={"baseline": {"kind": "role_average"}},
        schedule={"steps": 6, "groups": 24, "group_size": 1, "rotate_seats": True, "threads": 1},
        evaluate={"every": 3, "against": {"nash": 6}},
        checkpoint={"every": 2},
    )


def train_to_end(folder: Path, scenario: dict[str, Any], arguments: Sequence[str] = ()) -> RunWorkspace:
    """A desk at which the scenario was trained to its end."""
    desk = RunWorkspace(folder, scenario)
    status = desk.train(*arguments)
    assert status == 0, desk.take_output()
    return desk
