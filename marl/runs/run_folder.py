"""The folder of a run: the resolved scenario, its environment, growing files, checkpoints."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from marl.errors import FolderError, Writing
from marl.graph import Trajectory, read_trajectories, write_trajectories
from marl.judging.records import StepRecord
from marl.parts import RenamedKind
from marl.runs.checkpoint import CheckpointError, damage, read, set_aside, steps
from marl.runs.judgements import read_judgement, write_judgement
from marl.scenario.load import ScenarioError, differences, validate
from marl.scenario.schema import Scenario

_PACKAGES = ("marl", "torch", "transformers", "tokenizers", "pettingzoo", "networkx", "pydantic", "numpy")
_OURS = (
    *("scenario.yaml", "environment.json", "metrics.jsonl", "curves.png", "report.html"),
    *("events", "trajectories", "judgements", "checkpoints", "failed", "eval"),
)
"""Everything that a run writes; `clear` removes nothing else."""


class RunFolder:
    """Paths and files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.metrics = path / "metrics.jsonl"

    def create(self, scenario: Scenario) -> None:
        """Make the folder and write what describes the run, the scenario last: with it, a run lives here.

        Raises:
            FolderError: if it cannot be written.
        """
        with Writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            self.metrics.touch()
            _replace(self.path / "environment.json", json.dumps(environment(scenario), indent=1) + "\n")
            _replace(self.path / "scenario.yaml", dump(scenario))

    @contextmanager
    def held(self) -> Iterator[None]:
        """Make the folder, and keep others from training in it; the operating system lets go if this process dies.

        Raises:
            FolderError: if another process trains here, or the folder cannot be written.
        """
        file = self.path / ".lock"
        lock = FileLock(file, blocking=False)
        with Writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            try:
                lock.acquire()
            except Timeout:
                owner = file.read_text().strip() or "another one"
                raise FolderError(f"{self.path} is being trained by process {owner}") from None
            file.write_text(str(os.getpid()))
        try:
            yield
        finally:
            lock.release()

    @property
    def started(self) -> bool:
        """Return True if a run lives here: one that has a row or a checkpoint to lose."""
        began = self.metrics.is_file() and self.metrics.stat().st_size > 0
        return (self.path / "scenario.yaml").exists() and (began or bool(steps(self.checkpoints)))

    def scenario(self) -> Scenario:
        """Return the resolved scenario of the run here.

        Raises:
            ScenarioError: if there is none.
        """
        with warnings.catch_warnings():
            # Nobody edits the resolved scenario, so its old kinds need no note.
            warnings.simplefilter("ignore", RenamedKind)
            return validate(self._resolved(), str(self.path / "scenario.yaml"))

    def changes(self, scenario: Scenario) -> list[str]:
        """Return how `scenario` differs from the one that this run was started with, a line for each setting.

        Kinds that were renamed since, and settings that are new since and have their defaults, are no difference.
        """
        old = self._resolved()
        with suppress(ScenarioError):  # settings that are unknown today are compared as they were written
            old = yaml.safe_load(dump(self.scenario()))
        return differences(old, yaml.safe_load(dump(scenario)))

    def _resolved(self) -> dict[str, Any]:
        file = self.path / "scenario.yaml"
        if not file.exists():
            raise ScenarioError(f"{self.path}: no run here (no scenario.yaml)")
        try:
            data = yaml.safe_load(file.read_text())
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ScenarioError(f"{file}: not YAML: {error}") from error
        if not isinstance(data, dict):
            raise ScenarioError(f"{file}: not a scenario, but {type(data).__name__}")
        return data

    def clear(self) -> None:
        """Remove the run that lives here, and nothing that is not a run's."""
        with Writing(self.path):
            for name in _OURS:
                if (self.path / name).is_dir():
                    shutil.rmtree(self.path / name)
                else:
                    (self.path / name).unlink(missing_ok=True)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one line to metrics.jsonl."""
        with Writing(self.metrics), self.metrics.open("a") as file:
            file.write(json.dumps({"step": step, **metrics}) + "\n")

    def record(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        """Write the trajectories of one step."""
        file = self._episodes(step)
        with Writing(file):
            write_trajectories(file, trajectories)

    def record_judgement(self, step: int, record: StepRecord) -> None:
        """Write why each turn of one step got its advantage."""
        file = self._judgement(step)
        with Writing(file):
            write_judgement(file, record)

    def has_judgement(self, step: int) -> bool:
        """Return True if a step's judgement was written; runs of older versions have none."""
        return self._judgement(step).is_file()

    def judgement(self, step: int) -> StepRecord:
        """Return the judgement of a recorded step.

        Raises:
            ValueError: if there is none, or its file is damaged.
        """
        return read_judgement(self._judgement(step))

    def recorded(self) -> list[int]:
        """Return the steps whose trajectories were written, oldest first."""
        names = (file.name.split(".")[0] for file in (self.path / "trajectories").glob("*.jsonl.zst"))
        return sorted(int(name) for name in names if name.isdigit())

    def episodes(self, step: int) -> list[Trajectory]:
        """Return the trajectories of a recorded step.

        Raises:
            ValueError: if their file is damaged.
        """
        return list(read_trajectories(self._episodes(step)))

    def _episodes(self, step: int) -> Path:
        return self.path / "trajectories" / f"{step:06d}.jsonl.zst"

    def _judgement(self, step: int) -> Path:
        return self.path / "judgements" / f"{step:06d}.jsonl.zst"

    def latest(self) -> tuple[int, list[str]]:
        """Return the step of the newest whole checkpoint (0 if there is none), and what is wrong with newer ones.

        Raises:
            CheckpointError: if there are checkpoints, but none is whole.
        """
        problems: list[str] = []
        for step in reversed(steps(self.checkpoints)):
            problem = damage(self.checkpoints, step)
            if problem is None:
                return step, problems
            problems.append(problem)
        if problems:
            raise CheckpointError("; ".join([*problems, f"no whole checkpoint in {self.checkpoints}"]))
        return 0, []

    def rewind(self, step: int) -> dict[str, Any] | None:
        """Cut growing files back to checkpoint `step`; return its state (None at step 0).

        Raises:
            FolderError: if the checkpoint is damaged, rows before it are lost, or nothing can be written here.
        """
        length, state = 0, None
        if step:
            manifest, state = read(self.checkpoints, step)
            length = manifest.metrics_bytes
        have = self.metrics.stat().st_size if self.metrics.is_file() else 0
        if have < length:
            raise FolderError(
                f"{self.metrics} has {have} bytes; at checkpoint {step:06d} it had {length}: rows are lost"
            )
        with Writing(self.path):
            set_aside(self.checkpoints, step)
            os.truncate(self.metrics, length)
            for name in ("trajectories", "judgements"):
                _remove_after(self.path / name, step)
        return state

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the whole lines of metrics.jsonl; a killed or running run may have half a line at the end."""
        if not self.metrics.exists():
            return
        with self.metrics.open() as file:
            for line in file:
                if line.endswith("\n"):
                    yield json.loads(line)


def _remove_after(folder: Path, step: int) -> None:
    """Remove the files of later steps, and those that are half written."""
    for part in folder.glob("*.part"):
        part.unlink()
    for file in folder.glob("*.jsonl.zst"):
        number = file.name.split(".")[0]
        if number.isdigit() and int(number) > step:
            file.unlink()


def _replace(file: Path, text: str) -> None:
    """Write a file whole or not at all."""
    part = file.with_name(f".{file.name}.part")
    part.write_text(text)
    part.replace(file)


def dump(scenario: Scenario) -> str:
    """Return the resolved scenario as YAML."""
    return yaml.safe_dump(scenario.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def environment(scenario: Scenario) -> dict[str, Any]:
    """Return what a run's figures depend on apart from its scenario: command, versions, machine, threads."""
    import torch

    return {
        "command": sys.argv,
        "seed": scenario.schedule.seed,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
        "threads": scenario.schedule.threads or torch.get_num_threads(),
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "packages": {name: version(name) for name in _PACKAGES},
    }


def evaluations(rows: Sequence[Mapping[str, Any]], name: str) -> list[tuple[int, float]]:
    """Return (step, value) of one metric, where it was measured."""
    return [(row["step"], row[name]) for row in rows if name in row]
