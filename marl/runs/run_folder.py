"""The folder of a run: the resolved scenario, its environment, growing files, checkpoints."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from marl.data_files import read_lines, write_whole
from marl.errors import FolderError, Writing
from marl.graph import Trajectory, read_trajectories, read_trajectory, write_trajectories
from marl.judging.records import StepRecord
from marl.parts import RenamedKind
from marl.runs.checkpoint import (
    CheckpointError,
    Manifest,
    damage,
    inspect,
    read,
    set_aside,
    step_of,
    steps,
    verify,
    verify_policies,
)
from marl.runs.checksums import sync
from marl.runs.judgements import read_judgement, write_judgement
from marl.runs.links import expect_no_link, expect_no_links, inside
from marl.runs.snapshots import FOLDER, Snapshots
from marl.runs.strategies import StrategyRow, read_strategies, write_strategies
from marl.scenario.load import ScenarioError, differences, validate
from marl.scenario.schema import Scenario
from marl.scenario.yaml_text import read_yaml_file
from marl.text import read_json

_PACKAGES = ("marl-llm", "torch", "transformers", "tokenizers", "pettingzoo", "networkx", "pydantic", "numpy")
_OURS = (
    *("scenario.yaml", "environment.json", "metrics.jsonl", "curves.png", "report.html", "status.json"),
    *("events", "trajectories", "judgements", "strategies", "checkpoints", "failed", "eval", FOLDER),
)
"""Everything that a run writes; `clear` removes nothing else."""


class RunFolder:
    """Paths and files of one run. Nothing is written through a symbolic link, or read through one that leads out."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.metrics = path / "metrics.jsonl"
        self.snapshots = Snapshots(path)
        self._held: os.stat_result | None = None
        self._unsettled: set[int] = set()
        """Steps whose files were written since the newest checkpoint, and may not be on the disk yet."""

    def create(self, scenario: Scenario) -> None:
        """Make the folder and write what describes the run, the scenario last: with it, a run lives here.

        Raises:
            FolderError: if it cannot be written.
        """
        with Writing(self.path):
            expect_no_link(self.path, "metrics.jsonl")
            self.path.mkdir(parents=True, exist_ok=True)
            self.metrics.touch()
            write_whole(self.path / "environment.json", f"{json.dumps(environment(scenario), indent=1)}\n".encode())
            write_whole(self.path / "scenario.yaml", dump(scenario).encode())
            sync(self.path)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Make the folder, and keep others from training in it; the operating system lets go if this process dies.

        Raises:
            FolderError: if another process trains here, the folder cannot be written, or has a symbolic link in it.
        """
        expect_no_links(self.path, (".lock", *_OURS))
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
            self._held = self.path.stat()
        try:
            yield
        finally:
            self._held = None
            lock.release()

    def _expect_there(self) -> None:
        """Check that the folder is the one that is held, before something is written there.

        Raises:
            FolderError: if it was removed, moved or replaced since.
        """
        if self._held is None:
            return
        with suppress(OSError):
            if os.path.samestat(self._held, self.path.stat()):
                return
        raise FolderError(f"{self.path} is gone: the run's folder was removed, moved or replaced while it was trained")

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
        return differences(self.settings(), yaml.safe_load(dump(scenario)))

    def settings(self) -> dict[str, Any]:
        """Return the resolved settings of the run here, with today's names and defaults.

        Settings that are unknown or wrong today are returned as they were written.

        Raises:
            ScenarioError: if there is no run.
        """
        written = self._resolved()
        with suppress(ScenarioError):
            return yaml.safe_load(dump(self.scenario()))
        return written

    def _resolved(self) -> dict[str, Any]:
        file = inside(self.path, "scenario.yaml")
        if not file.exists():
            raise ScenarioError(f"{self.path}: no run here (no scenario.yaml)")
        data = read_yaml_file(file)
        if not isinstance(data, dict):
            raise ScenarioError(f"{file}: not a scenario, but {type(data).__name__}")
        return data

    def clear(self) -> None:
        """Remove the run that lives here, and nothing that is not a run's."""
        with Writing(self.path):
            for path in [expect_no_link(self.path, name) for name in _OURS]:
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one line to metrics.jsonl."""
        self._expect_there()
        with Writing(self.metrics), expect_no_link(self.path, "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": step, **metrics}) + "\n")

    def record(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        """Write the trajectories of one step."""
        file = self._new_file(step, *_episodes(step))
        with Writing(file):
            write_trajectories(file, trajectories)

    def record_judgement(self, step: int, record: StepRecord) -> None:
        """Write why each turn of one step got its advantage."""
        file = self._new_file(step, *_judgement(step))
        with Writing(file):
            write_judgement(file, record)

    def record_strategies(self, step: int, rows: Sequence[StrategyRow]) -> None:
        """Write the strategies that the evaluation of one step measured."""
        file = self._new_file(step, *_strategies(step))
        with Writing(file):
            write_strategies(file, rows)

    def record_held_out(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        """Write episodes on held-out starts, as they were played after one step; 0: before training."""
        file = self._new_file(step, *_held_out(step))
        with Writing(file):
            write_trajectories(file, trajectories)

    def _new_file(self, step: int, folder: str, name: str) -> Path:
        """Return the path of a file of one step that is to be written."""
        self._expect_there()
        self._unsettled.add(step)
        return expect_no_link(self.path, folder, name)

    def has_judgement(self, step: int) -> bool:
        """Return True if a step's judgement was written; runs of older versions have none."""
        return self.path.joinpath(*_judgement(step)).is_file()

    def judgement(self, step: int) -> StepRecord:
        """Return the judgement of a recorded step.

        Raises:
            FolderError: if its file is a symbolic link that leads out of the run's folder.
            ValueError: if there is none, or its file is damaged.
        """
        return read_judgement(inside(self.path, *_judgement(step)))

    def recorded(self) -> list[int]:
        """Return the steps whose trajectories were written, oldest first."""
        return sorted(_numbered(self.path / "trajectories"))

    def evaluated(self) -> list[int]:
        """Return the steps of which episodes on held-out starts were written, oldest first."""
        return sorted(_numbered(self.path / "eval"))

    def held_out(self, step: int) -> list[Trajectory]:
        """Return the episodes on held-out starts that were written of a step.

        Raises:
            FolderError: if their file is a symbolic link that leads out of the run's folder.
            ValueError: if their file is missing or damaged.
        """
        return list(read_trajectories(inside(self.path, *_held_out(step))))

    def episodes(self, step: int) -> list[Trajectory]:
        """Return the trajectories of a recorded step.

        Raises:
            FolderError: if their file is a symbolic link that leads out of the run's folder.
            ValueError: if their file is damaged.
        """
        return list(self.read_episodes(step))

    def read_episodes(self, step: int) -> Iterator[Trajectory]:
        """Yield the trajectories of a recorded step, in the order of play; one is held at a time.

        Raises:
            FolderError: if the step's file is a symbolic link that leads out of the run's folder.
            ValueError: if their file is damaged.
        """
        yield from read_trajectories(inside(self.path, *_episodes(step)))

    def strategies(self) -> Iterator[tuple[int, list[StrategyRow]]]:
        """Yield (step, its strategies) of the evaluations whose strategies were written, oldest first.

        Raises:
            FolderError: if a file is a symbolic link that leads out of the run's folder.
            ValueError: if a file is damaged.
        """
        for step in sorted(_numbered(self.path / "strategies")):
            yield step, read_strategies(inside(self.path, *_strategies(step)))

    def episode(self, step: int, place: int) -> Trajectory:
        """Return one trajectory of a recorded step, by its place (from 0) in the order of play; no other is read.

        Raises:
            FolderError: if the step's file is a symbolic link that leads out of the run's folder.
            ValueError: if it is damaged, or there is no such trajectory.
        """
        return read_trajectory(inside(self.path, *_episodes(step)), place)

    def stamps(self) -> dict[int, str]:
        """Return recorded step -> size and time of its trajectories' file: another one, if it was written anew."""
        files = _numbered(self.path / "trajectories").items()
        return {step: f"{status.st_size} {status.st_mtime_ns}" for step, file in files if (status := _status(file))}

    def policies(self, step: int) -> Path:
        """Return the folder in which checkpoint `step` saved its policies.

        Raises:
            CheckpointError: if there is no such checkpoint, or a policy's file is not as it was written.
        """
        verify_policies(self.checkpoints / f"{step:06d}")
        return self.checkpoints / f"{step:06d}" / "policies"

    def latest(self, check: Callable[[Path], Manifest] = verify) -> tuple[int, list[str]]:
        """Return the step of the newest checkpoint that passes (0 if there is none), and what is wrong with newer ones.

        Raises:
            CheckpointError: if there are checkpoints, but none is whole.
        """
        problems: list[str] = []
        for step in reversed(steps(self.checkpoints)):
            problem = damage(self.checkpoints, step, check)
            if problem is None:
                return step, problems
            problems.append(problem)
        if problems:
            raise CheckpointError("; ".join([*problems, f"no whole checkpoint in {self.checkpoints}"]))
        return 0, []

    def unmeasured(self, step: int) -> dict[str, float] | None:
        """Return the figures of checkpoint `step` if that step is still to be evaluated, else None.

        Raises:
            CheckpointError: if the checkpoint is not whole.
        """
        return inspect(self.checkpoints / f"{step:06d}").unmeasured

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
            for name in ("trajectories", "judgements", "strategies", "eval"):
                _remove_after(self.path / name, step)
        self.snapshots.cut(step)
        return state

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the whole lines of metrics.jsonl; a killed or running run may have half a line at the end.

        Raises:
            FolderError: naming the line, if one is no row, or if the file is a link that leads out of the run's folder.
        """
        file = inside(self.path, "metrics.jsonl")
        if not file.exists():
            return
        done = 0
        try:
            for line in read_lines(file):
                if line.endswith(b"\n"):
                    yield _row(line)
                done += 1
        except (ValueError, OSError) as error:
            raise FolderError(f"{file}, line {done + 1}: no row of metrics: {error}") from error

    def settled_rows(self) -> int:
        """Bring metrics.jsonl and the files of steps to the disk, so that no checkpoint outlives what it follows.

        Returns:
            The length of metrics.jsonl in bytes.

        Raises:
            FolderError: if that cannot be done.
        """
        self._expect_there()
        places = (_episodes, _judgement, _strategies, _held_out)
        names = [place(step) for step in self._unsettled for place in places]
        files = [self.path.joinpath(*place) for place in names]
        with Writing(self.path):
            for path in filter(Path.exists, [self.metrics, *files, *{file.parent for file in files}]):
                sync(path)
            self._unsettled.clear()
            return self.metrics.stat().st_size


def _episodes(step: int) -> tuple[str, str]:
    return "trajectories", f"{step:06d}.jsonl.zst"


def _judgement(step: int) -> tuple[str, str]:
    return "judgements", f"{step:06d}.jsonl.zst"


def _strategies(step: int) -> tuple[str, str]:
    return "strategies", f"{step:06d}.jsonl.zst"


def _held_out(step: int) -> tuple[str, str]:
    return "eval", f"{step:06d}.jsonl.zst"


def _numbered(folder: Path) -> dict[int, Path]:
    """Return step -> file, of the files that are named after steps."""
    files = {step_of(file.name.removesuffix(".jsonl.zst")): file for file in folder.glob("*.jsonl.zst")}
    return {step: file for step, file in files.items() if step is not None}


def _status(file: Path) -> os.stat_result | None:
    """Return a file's size and times; None if it has just been removed, as by a run that begins anew."""
    with suppress(FileNotFoundError):
        return file.stat()
    return None


def _row(line: bytes) -> dict[str, Any]:
    row = read_json(line.decode())
    if not isinstance(row, dict) or type(row.get("step")) is not int:
        raise ValueError("must be an object with a whole number `step`")
    for name, value in row.items():
        if not isinstance(value, int | float):
            raise ValueError(f"{name} must be a number, got {type(value).__name__}")
    return row


def _remove_after(folder: Path, step: int) -> None:
    """Remove the files of later steps, and those that are half written."""
    for part in folder.glob("*.part"):
        part.unlink()
    for number, file in _numbered(folder).items():
        if number > step:
            file.unlink()


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
