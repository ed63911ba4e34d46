"""A run's folder: the resolved scenario, its environment, growing files, checkpoints."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from marl.checkpoint import CheckpointError, damage, read, steps
from marl.graph import Trajectory, write_trajectories
from marl.load import ScenarioError, differences, validate
from marl.scenario import Scenario

_PACKAGES = ("marl", "torch", "transformers", "tokenizers", "pettingzoo", "networkx", "pydantic", "numpy")


class RunFolder:
    """Paths and files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.metrics = path / "metrics.jsonl"

    def create(self, scenario: Scenario) -> None:
        """Make the folder and write what describes the run.

        Raises:
            ScenarioError: if it cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            (self.path / "scenario.yaml").write_text(dump(scenario))
            (self.path / "environment.json").write_text(json.dumps(environment(), indent=1) + "\n")
            self.metrics.touch()
        except OSError as error:
            raise ScenarioError(f"run folder {self.path} cannot be written: {error}") from error

    @property
    def started(self) -> bool:
        """Whether a run lives here."""
        return (self.path / "scenario.yaml").exists()

    def scenario(self) -> Scenario:
        """The resolved scenario of the run here.

        Raises:
            ScenarioError: if there is none.
        """
        file = self.path / "scenario.yaml"
        if not file.exists():
            raise ScenarioError(f"{self.path}: no run here (no scenario.yaml)")
        return validate(yaml.safe_load(file.read_text()), str(file))

    def changes(self, scenario: Scenario) -> list[str]:
        """How `scenario` differs from the one that this run was started with."""
        old = yaml.safe_load((self.path / "scenario.yaml").read_text())
        return differences(old, yaml.safe_load(dump(scenario)))

    def clear(self) -> None:
        """Remove the run that lives here."""
        if self.started:
            shutil.rmtree(self.path)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one line to metrics.jsonl."""
        with self.metrics.open("a") as file:
            file.write(json.dumps({"step": step, **metrics}) + "\n")

    def record(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        """Write the trajectories of one step."""
        write_trajectories(self.path / "trajectories" / f"{step:06d}.jsonl.zst", trajectories)

    def latest(self) -> tuple[int, list[str]]:
        """The newest whole checkpoint's step (0 if there is none), and what is wrong with newer ones.

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
        """Cut growing files back to checkpoint `step`; return its state (None at step 0)."""
        length, state = 0, None
        if step:
            manifest, state = read(self.checkpoints, step)
            length = manifest.metrics_bytes
        os.truncate(self.metrics, length)
        for file in (self.path / "trajectories").glob("*.jsonl.zst"):
            if int(file.name.split(".")[0]) > step:
                file.unlink()
        return state

    def rows(self) -> Iterator[dict[str, Any]]:
        """The lines of metrics.jsonl."""
        with self.metrics.open() as file:
            for line in file:
                yield json.loads(line)


def dump(scenario: Scenario) -> str:
    """The resolved scenario as YAML."""
    return yaml.safe_dump(scenario.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def environment() -> dict[str, Any]:
    """What a run's figures depend on beside its scenario."""
    import torch

    return {
        "command": sys.argv,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
        "threads": torch.get_num_threads(),
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "packages": {name: version(name) for name in _PACKAGES},
    }


def evaluations(rows: Sequence[Mapping[str, Any]], name: str) -> list[tuple[int, float]]:
    """(step, value) of one metric, where it was measured."""
    return [(row["step"], row[name]) for row in rows if name in row]
