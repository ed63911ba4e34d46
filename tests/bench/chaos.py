"""A run on a cluster whose processes and machines are killed and stopped all the time, beside one that is left alone.

    python tests/bench/chaos.py [--steps 50] [--seed 0] [--simulators 7] ... [--out FILE]

A real Ray cluster on loopback: a machine for the run, and three more. A solver, taught by two processes, and a critic,
taught by one, answer problems of arithmetic; worker processes of three simulators check the answers. Faults are
spread over the steps by the seed: simulators, learners, workers, machines (the Ray processes of one, which takes all
that runs there with it; another one is added) and the run itself (`marl train --resume auto` follows) get SIGKILL,
simulators and learners also SIGSTOP. Each fault waits until its step is done and there is such a process.

`episodes`: what is on disk against what was dealt; `equal`: whether metrics (all but times and counts of processes),
weights and states of the last checkpoint, trajectories and credit records are those of the other run to the last bit;
`said`: how often the run's output tells of what.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml
from _bench import ROOT, parser, report

from marl.runs.run_folder import RunFolder

KINDS = {"simulators": 7, "learners": 5, "workers": 4, "machines": 3, "runs": 3, "stopped_simulators": 3}
KINDS |= {"stopped_learners": 2}
"""Kind of fault -> default number."""
_NAMES = {"simulators": "ray::SimulatorProcess", "learners": "ray::LearnerWorker", "workers": "engines.workers.process"}
_NAMES |= dict.fromkeys(("programs", "connections"), "_chaos_agents:main")
"""Kind of process -> a part of its command line."""
SAID = {
    "a simulator died": r"simulator \d .* died while|lost its connection",
    "a simulator hangs": r"simulator \d .* gave no sign of life",
    "a simulator is there again": r"simulator \d is there again",
    "a learner died": r"learner of policy .* has died",
    "a learner hangs": r"learner of policy .* has given no sign of life",
    "the run goes on": r"going on from step",
}
_START_S = 0.5
"""Time in which a process may import its modules before it is struck."""
LIMIT_S = 1800.0
"""Longest time for a run."""
_STORE: dict[str, Any] = {"object_store_memory": 100 << 20}


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that is done to a run once a step is done."""

    step: int
    kind: str

    @property
    def number(self) -> int:
        """Signal of the fault. A program cuts its connections when it gets SIGUSR1."""
        if self.kind == "connections":
            return signal.SIGUSR1
        return signal.SIGSTOP if self.kind.startswith("stopped_") else signal.SIGKILL


def drawn(counts: dict[str, int], steps: int, seed: int) -> list[Fault]:
    """Faults in random order, spread evenly over all steps but the last."""
    kinds = [kind for kind, count in counts.items() for _ in range(count)]
    random.Random(seed).shuffle(kinds)
    return [Fault(1 + i * (steps - 2) // max(len(kinds) - 1, 1), kind) for i, kind in enumerate(kinds)]


def scenario(steps: int) -> dict[str, Any]:
    warm_up = {"steps": 150, "episodes": 512, "batch": 32, "lr": 0.01}
    model = {"kind": "tiny", "hidden": 16, "layers": 1, "warm_up": warm_up}
    learner = {"kind": "grpo", "lr": 1e-3, "minibatches": 2}
    role = {"kind": "solver", "instructions": "", "answer": "bracket", "sampling": {"max_tokens": 8}}
    verified = {"role": "verifier", "scores": ["correct"]}
    return {
        "game": {
            "kind": "team",
            "task": {"kind": "arithmetic", "numbers": [1, 9], "style": "expanded", "train": 30, "held_out": 15},
            "stages": [
                {"role": "solver", "examples": ["{{ answer }}", "{{ wrong[0] }}"]},
                {"role": "critic", "hears": ["solver"], "examples": ["{{ answer }}", "{{ solver.move }}"]},
                {**verified, "verifies": "solver"},
                {**verified, "verifies": "critic"},
            ],
            "rewards": {name: {"correct": "own.correct"} for name in ("solver", "critic")},
            "measures": {"success": "critic.correct"},
        },
        "roles": {
            "solver": {**role, "policy": "solver", "prompt": "{{ observation }} sum"},
            "critic": {**role, "policy": "critic", "prompt": "{{ observation }} said {{ heard[0].text }} sum"},
            "verifier": {"kind": "verifier", "policy": "checker"},
        },
        "policies": {
            "solver": {"model": model, "learner": learner},
            "critic": {"model": {**model, "seed": 1}, "learner": learner},
            "checker": {"engine": {"kind": "verifiers", "checks": {"correct": {"kind": "exact"}}, "workers": 1}},
        },
        "credit": {"baseline": {"kind": "group", "like": "start"}},
        "schedule": {"steps": steps, "groups": 6, "group_size": 4, "threads": 1},
        "evaluate": {"every": 10, "held_out": 15},
        "checkpoint": {"every": 3, "trajectories": 1.0},
        "cluster": {
            "simulators": 3,
            "learners": {"solver": 2, "critic": 1},
            "cpus": 0.25,
            "learner_cpus": 0.25,
            "deadline_s": 8.0,
            "start_s": 200.0,
            "room_s": 60.0,
            "tries": 20,
        },
    }


class Processes:
    """Processes of a run, all of which descend from this one."""

    address = ""
    """Address of the run's cluster, or "" for a run in one process."""

    def __init__(self) -> None:
        self._stopped: list[psutil.Process] = []

    def strike(self, kind: str, number: int, rng: random.Random) -> bool:
        """Send a signal to a process of this kind; False if there is none now."""
        found = [process for process in psutil.Process().children(recursive=True) if _is(process, _NAMES[kind])]
        if not found:
            return False
        victim = rng.choice(sorted(found, key=lambda process: process.pid))
        with suppress(psutil.NoSuchProcess):
            victim.send_signal(number)
            self._stopped += [victim] * (number == signal.SIGSTOP)
            return True
        return False

    def lose_machine(self, rng: random.Random) -> bool:
        """Lose one machine and add another one; False if there is no cluster."""
        return False

    def end(self) -> None:
        for process in self._stopped:
            with suppress(psutil.NoSuchProcess):
                process.kill()  # one whose machine was lost meanwhile cannot notice it


class Machines(Processes):
    """A cluster on loopback, and what runs there."""

    def __init__(self) -> None:
        super().__init__()
        from ray.cluster_utils import Cluster

        # Each machine but the run's has room for what is lost with another one.
        self._cluster = Cluster(
            initialize_head=True, head_node_args={**_STORE, "num_cpus": 0, "include_dashboard": False}
        )
        for _ in range(3):
            self.add()
        self.address = self._cluster.address

    def add(self) -> None:
        self._cluster.add_node(num_cpus=1, **_STORE)

    def lose_machine(self, rng: random.Random) -> bool:
        """Send SIGKILL to the Ray processes of one machine, and add another machine."""
        machines = sorted(self._cluster.worker_nodes, key=lambda node: node.unique_id)
        self._cluster.remove_node(rng.choice(machines), allow_graceful=False)
        self.add()
        return True

    def end(self) -> None:
        self._cluster.shutdown()
        super().end()


def _is(process: psutil.Process, name: str) -> bool:
    """Return True if this is a process with `name` in its command line that has started and is not stopped."""
    with suppress(psutil.Error):
        is_at_work = process.status() != psutil.STATUS_STOPPED and time.time() - process.create_time() > _START_S
        return is_at_work and name in " ".join(process.cmdline())
    return False


@contextmanager
def machines() -> Iterator[Machines]:
    os.environ |= {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    made = Machines()
    try:
        yield made
    finally:
        made.end()


class Trial:
    """A run in a folder, to which faults happen."""

    def __init__(self, folder: Path, file: Path, where: Processes) -> None:
        self.run, self.log, self._file, self._where = folder, folder.with_suffix(".log"), file, where
        self.happened: list[dict[str, Any]] = []
        self.seconds = 0.0

    @property
    def step(self) -> int:
        """Steps that are in its metrics."""
        with suppress(OSError):
            return (self.run / "metrics.jsonl").read_bytes().count(b"\n")
        return 0

    def start(self) -> subprocess.Popen[bytes]:
        words = ["-m", "marl", "train", str(self._file), "--out", str(self.run), "--resume", "auto", "--trust"]
        words += ["--address", self._where.address] if self._where.address else []
        with self.log.open("ab") as log:
            return subprocess.Popen([sys.executable, *words], stdout=log, stderr=log)

    def __call__(self, faults: Sequence[Fault], seed: int) -> None:
        """Run to the end.

        Raises:
            SystemExit: if the run fails, or does not end.
        """
        rng, waiting, began = random.Random(seed + 1), list(faults), time.monotonic()
        process = self.start()
        try:
            while process.poll() is None or waiting:
                if time.monotonic() - began > LIMIT_S or process.poll() not in (None, -signal.SIGKILL):
                    raise SystemExit(f"the run failed, see {self.log}:\n{self.log.read_text()[-3000:]}")
                if waiting and self.step >= waiting[0].step and self._happen(waiting[0], process, rng):
                    fault = waiting.pop(0)
                    self.happened.append({**asdict(fault), "at_s": round(time.monotonic() - began, 1)})
                    if fault.kind == "runs":
                        process = self.start()
                    time.sleep(rng.random())
                time.sleep(0.1)
        finally:
            process.kill()
        if process.returncode:
            raise SystemExit(f"the run failed, see {self.log}:\n{self.log.read_text()[-3000:]}")
        self.seconds = time.monotonic() - began

    def _happen(self, fault: Fault, process: subprocess.Popen[bytes], rng: random.Random) -> bool:
        if fault.kind == "machines":
            return self._where.lose_machine(rng)
        if fault.kind == "runs":
            process.kill()
            process.wait()
            return True
        return self._where.strike(fault.kind.removeprefix("stopped_"), fault.number, rng)

    def said(self) -> dict[str, int]:
        text = self.log.read_text()
        return {what: len(re.findall(pattern, text)) for what, pattern in SAID.items()}


def episodes(run: Path, steps: int) -> dict[str, int]:
    """Counts of steps and episodes on disk, and of what is missing, or there twice, or of no deal."""
    home = RunFolder(run)
    schedule = home.scenario().schedule
    rows = Counter(row["step"] for row in home.rows() if row["step"])
    ids = Counter(episode.id for step in home.recorded_steps() for episode in home.load_trajectories(step))
    dealt = {
        f"{step:06d}.{group}.{i}"
        for step in range(1, steps + 1)
        for group in range(schedule.groups)
        for i in range(schedule.group_size)
    }
    misplaced = [
        episode.id
        for step in home.recorded_steps()
        for episode in home.load_trajectories(step)
        if int(episode.id.partition(".")[0]) != step
    ]
    return {
        "steps": len(rows),
        "steps_twice": sum(count > 1 for count in rows.values()),
        "dealt": len(dealt),
        "on_disk": sum(ids.values()),
        "missing": len(dealt - ids.keys()),
        "twice": sum(count > 1 for count in ids.values()),
        "of_no_deal": len(ids.keys() - dealt),
        "in_another_step": len(misplaced),
    }


def rows_of(run: Path) -> list[dict[str, float]]:
    rows = list(RunFolder(run).rows())
    return [
        {
            k: v
            for k, v in row.items()
            if not k.startswith(("time/", "crc32", "cluster/")) and not k.endswith(("/restarts", "/idle"))
        }
        for row in rows
    ]


def equal(one: Path, other: Path, ignored: Collection[str] = ()) -> dict[str, bool]:
    """Kind of a run's contents -> True if all bits are equal, but for metrics and files whose names are `ignored`."""
    last = max((one / "checkpoints").iterdir()).name
    rows: list[list[dict[str, float]]] = []
    for run in (one, other):
        rows.append([{k: v for k, v in row.items() if k not in ignored} for row in rows_of(run)])
    found = {"metrics": rows[0] == rows[1]}
    for name in (f"checkpoints/{last}", "trajectories", "credit"):
        mine, theirs = (contents(run / name, ignored) for run in (one, other))
        found[name.partition("/")[0]] = bool(mine) and mine == theirs
    return found


def contents(folder: Path, ignored: Collection[str] = ()) -> dict[str, bytes]:
    files = [file for file in folder.rglob("*") if file.is_file() and file.name not in ("manifest.json", *ignored)]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def measured(steps: int, counts: dict[str, int], seed: int, folder: Path) -> dict[str, Any]:
    """Figures of a run with so many faults of each kind."""
    os.environ["MARL_CACHE"] = str(folder / "cache")
    file = folder / "scenario.yaml"
    file.write_text(yaml.safe_dump(scenario(steps)))
    with machines() as where:
        trials = {name: Trial(folder / name, file, where) for name in ("alone", "chaos")}
        trials["alone"]([], seed)
        trials["chaos"](drawn(counts, steps, seed), seed)
    alone, chaos = trials["alone"], trials["chaos"]
    number = Counter("stops" if fault["kind"].startswith("stopped_") else "kills" for fault in chaos.happened)
    return {
        "steps": steps,
        **number,
        "faults": dict(Counter(fault["kind"] for fault in chaos.happened)),
        "episodes": episodes(chaos.run, steps),
        "equal": equal(alone.run, chaos.run),
        "success": {name: success_of(trial.run) for name, trial in trials.items()},
        "said": chaos.said(),
        "seconds": {name: round(trial.seconds) for name, trial in trials.items()},
        "schedule": chaos.happened,
    }


def success_of(run: Path) -> float:
    return [row["eval/held_out/success"] for row in rows_of(run) if "eval/held_out/success" in row][-1]


def main() -> None:
    arguments: argparse.ArgumentParser = parser(__doc__)
    arguments.add_argument("--steps", type=int, default=50)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--folder", type=Path, help="keep the runs here")
    for kind, count in KINDS.items():
        arguments.add_argument(f"--{kind.replace('_', '-')}", type=int, default=count)
    options = arguments.parse_args()
    counts = {kind: getattr(options, kind) for kind in KINDS}
    with tempfile.TemporaryDirectory() as folder:
        figures = measured(options.steps, counts, options.seed, options.folder or Path(folder))
    report(figures, options.out, seeds=[options.seed], scenario=scenario(options.steps))


if __name__ == "__main__":
    main()
