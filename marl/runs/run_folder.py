"""Folder of a run: resolved scenario, environment, metrics, recorded steps and checkpoints."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from marl.core.errors import FolderError, Writing
from marl.core.graph import Trajectory, read_trajectories, read_trajectory, write_trajectories
from marl.credit_stage.records import CreditRecord
from marl.host.data_files import read_lines, write_atomically
from marl.host.outside import parse_json
from marl.runs.checkpoint import (
    CheckpointError,
    Manifest,
    checkpoint_steps,
    find_damage,
    read_checkpoint,
    set_aside,
    step_from_name,
    verify,
    verify_policies,
    verify_sizes,
)
from marl.runs.checksums import fsync
from marl.runs.credit_records import read_credit_record, write_credit_record
from marl.runs.locks import LOCK_FILE, run_lock
from marl.runs.run_format import FORMAT, expect_format
from marl.runs.snapshots import LEAGUE_FOLDER, Snapshots
from marl.runs.strategies import StrategyRow, read_strategies, write_strategies
from marl.runs.symlinks import expect_no_links, path_within, path_without_symlinks
from marl.scenario.load import ScenarioError, differences, validate
from marl.scenario.schema import Scenario
from marl.scenario.yaml_text import read_yaml_file

_PACKAGES = ("marl-llm", "torch", "transformers", "tokenizers", "pettingzoo", "networkx", "pydantic", "numpy")
_RUN_FILES = (
    *("scenario.yaml", "environment.json", "metrics.jsonl", "curves.png", "report.html", "status.json"),
    *("events", "trajectories", "credit", "strategies", "checkpoints", "failed", "eval", LEAGUE_FOLDER),
)
"""Names of all files and folders of a run. `clear` removes them and nothing else."""
_STEP_FOLDERS = ("trajectories", "credit", "strategies", "eval")
"""Folders with one file for each recorded step."""


class RunFolder:
    """Files of one run. Nothing is written through a symbolic link, nor read through a link out of the folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.metrics_file = path / "metrics.jsonl"
        self.snapshots = Snapshots(path)
        self._locked_folder: os.stat_result | None = None
        self._unsettled: set[int] = set()
        """Steps with files written since the newest checkpoint, which may not be flushed to disk yet."""

    def create(self, scenario: Scenario) -> None:
        """Create the folder and write environment.json, then scenario.yaml, which marks the folder as a run.

        Raises:
            FolderError: if it cannot be written.
        """
        with Writing(self.path):
            path_without_symlinks(self.path, "metrics.jsonl")
            self.path.mkdir(parents=True, exist_ok=True)
            self.metrics_file.touch()
            write_atomically(
                self.path / "environment.json", f"{json.dumps(environment(scenario), indent=1)}\n".encode()
            )
            write_atomically(self.path / "scenario.yaml", to_yaml(scenario).encode())
            fsync(self.path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Create the folder and hold its lock, so that no other process trains in it.

        Raises:
            FolderError: if another process trains here, the folder cannot be written, or has a symbolic link in it.
        """
        expect_no_links(self.path, (LOCK_FILE, *_RUN_FILES))
        with run_lock(self.path):
            self._locked_folder = self.path.stat()
            try:
                yield
            finally:
                self._locked_folder = None

    def _expect_there(self) -> None:
        """Check, before writing, that the locked folder is still at its path.

        Raises:
            FolderError: if it was removed, moved or replaced since.
        """
        if self._locked_folder is None:
            return
        with suppress(OSError):
            if os.path.samestat(self._locked_folder, self.path.stat()):
                return
        raise FolderError(f"{self.path} is gone: the run's folder was removed, moved or replaced while it was trained")

    @property
    def has_run(self) -> bool:
        """True if the folder holds a row of metrics or a checkpoint of a run, which a new run must not replace."""
        began = self.metrics_file.is_file() and self.metrics_file.stat().st_size > 0
        return (self.path / "scenario.yaml").exists() and (began or bool(checkpoint_steps(self.checkpoints)))

    def scenario(self) -> Scenario:
        """Return the resolved scenario of the run.

        Raises:
            ScenarioError: if there is none.
        """
        return validate(self._written_settings(), str(self.path / "scenario.yaml"))

    def setting_differences(self, scenario: Scenario) -> list[str]:
        """Return a line for each setting in which `scenario` differs from this run's.

        A setting that a newer version of the software added does not count at its default.
        """
        return differences(self.settings(), yaml.safe_load(to_yaml(scenario)))

    def settings(self) -> dict[str, Any]:
        """Return the resolved settings of the run, completed with today's defaults.

        Settings that are no longer valid are returned as they were written.

        Raises:
            ScenarioError: if there is no run.
        """
        written = self._written_settings()
        with suppress(ScenarioError):
            return yaml.safe_load(to_yaml(self.scenario()))
        return written

    def _written_settings(self) -> dict[str, Any]:
        file = path_within(self.path, "scenario.yaml")
        if not file.exists():
            raise ScenarioError(f"{self.path}: no run here (no scenario.yaml)")
        expect_format(self.path)
        data = read_yaml_file(file)
        if not isinstance(data, dict):
            raise ScenarioError(f"{file}: not a scenario, but {type(data).__name__}")
        return data

    def clear(self) -> None:
        """Remove all files of the run, and no others."""
        with Writing(self.path):
            for path in [path_without_symlinks(self.path, name) for name in _RUN_FILES]:
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)

    def append_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one line to metrics.jsonl."""
        self._expect_there()
        with Writing(self.metrics_file), path_without_symlinks(self.path, "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": step, **metrics}) + "\n")

    def record_trajectories(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        """Write the trajectories of one step."""
        with self._writing("trajectories", step) as file:
            write_trajectories(file, trajectories)

    def record_credit(self, step: int, record: CreditRecord) -> None:
        """Write the credit record of one step: how each turn got its advantage."""
        with self._writing("credit", step) as file:
            write_credit_record(file, record)

    def record_strategies(self, step: int, rows: Sequence[StrategyRow]) -> None:
        """Write the strategies measured by the evaluation after one step."""
        with self._writing("strategies", step) as file:
            write_strategies(file, rows)

    def record_held_out(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        """Write the episodes on held-out starts that were played after step `step` (0: before training)."""
        with self._writing("eval", step) as file:
            write_trajectories(file, trajectories)

    @contextmanager
    def _writing(self, folder: str, step: int) -> Iterator[Path]:
        """Yield the path to which the body writes the file of one step in `folder`."""
        self._expect_there()
        self._unsettled.add(step)
        file = path_without_symlinks(self.path, folder, _file_name(step))
        with Writing(file):
            yield file

    def has_credit(self, step: int) -> bool:
        """Return True if a credit record of step `step` is in the folder."""
        return (self.path / "credit" / _file_name(step)).is_file()

    def read_credit(self, step: int) -> CreditRecord:
        """Return the credit record of a recorded step.

        Raises:
            FolderError: if its file is a symbolic link that leads out of the run's folder.
            ValueError: if its file is missing or damaged.
        """
        return read_credit_record(path_within(self.path, "credit", _file_name(step)))

    def recorded_steps(self) -> list[int]:
        """Return the steps whose trajectories were written, oldest first."""
        return sorted(_numbered(self.path / "trajectories"))

    def held_out_steps(self) -> list[int]:
        """Return the steps with recorded episodes on held-out starts, oldest first."""
        return sorted(_numbered(self.path / "eval"))

    def read_held_out(self, step: int) -> list[Trajectory]:
        """Return the recorded episodes on held-out starts of a step. Raises as `read_credit`."""
        return list(read_trajectories(path_within(self.path, "eval", _file_name(step))))

    def load_trajectories(self, step: int) -> list[Trajectory]:
        """Return the trajectories of a recorded step. Raises as `read_credit`."""
        return list(self.iter_trajectories(step))

    def iter_trajectories(self, step: int) -> Iterator[Trajectory]:
        """Yield the trajectories of a recorded step in order of play, one at a time. Raises as `read_credit`."""
        yield from read_trajectories(path_within(self.path, "trajectories", _file_name(step)))

    def strategies(self) -> Iterator[tuple[int, list[StrategyRow]]]:
        """Yield (step, strategies) of each evaluation that recorded some, oldest first. Raises as `read_credit`."""
        for step in sorted(_numbered(self.path / "strategies")):
            yield step, read_strategies(path_within(self.path, "strategies", _file_name(step)))

    def load_trajectory(self, step: int, index: int) -> Trajectory:
        """Return the trajectory number `index` (from 0) of a recorded step, without reading the others.

        Raises as `read_credit`, and ValueError if there is no such trajectory.
        """
        return read_trajectory(path_within(self.path, "trajectories", _file_name(step)), index)

    def trajectory_file_stamps(self) -> dict[int, str]:
        """Return recorded step -> size and time of its trajectory file; a rewritten file has another stamp."""
        stamps = {}
        for step, file in _numbered(self.path / "trajectories").items():
            with suppress(FileNotFoundError):  # a run that starts over may just have removed it
                status = file.stat()
                stamps[step] = f"{status.st_size} {status.st_mtime_ns}"
        return stamps

    def policies_folder(self, step: int) -> Path:
        """Return the folder with the policies of checkpoint `step`, after verifying their files.

        Raises:
            CheckpointError: if there is no such checkpoint, or a file of a policy has changed since it was written.
        """
        checkpoint = self.checkpoints / f"{step:06d}"
        verify_policies(checkpoint)
        return checkpoint / "policies"

    def latest_checkpoint(self, check: Callable[[Path], Manifest] = verify) -> tuple[int, list[str]]:
        """Return the step of the newest intact checkpoint (0 if there is none), and the damage of each newer one.

        Raises:
            CheckpointError: if there are checkpoints, but all are damaged.
        """
        problems: list[str] = []
        for step in reversed(checkpoint_steps(self.checkpoints)):
            problem = find_damage(self.checkpoints, step, check)
            if problem is None:
                return step, problems
            problems.append(problem)
        if problems:
            raise CheckpointError("; ".join([*problems, f"no whole checkpoint in {self.checkpoints}"]))
        return 0, []

    def unevaluated_metrics(self, step: int) -> dict[str, float] | None:
        """Return the metrics of checkpoint `step` if its evaluation is still to be done, else None.

        Raises:
            CheckpointError: if the checkpoint is damaged.
        """
        return verify_sizes(self.checkpoints / f"{step:06d}").unmeasured

    def rewind(self, step: int) -> dict[str, Any] | None:
        """Remove the records after checkpoint `step`, and return the checkpoint's state (None at step 0).

        Raises:
            FolderError: if the checkpoint is damaged, rows before it are lost, or the folder cannot be written.
        """
        length, state = 0, None
        if step:
            manifest, state = read_checkpoint(self.checkpoints, step)
            length = manifest.metrics_bytes
        have = self.metrics_file.stat().st_size if self.metrics_file.is_file() else 0
        if have < length:
            raise FolderError(
                f"{self.metrics_file} has {have} bytes; at checkpoint {step:06d} it had {length}: rows are lost"
            )
        with Writing(self.path):
            set_aside(self.checkpoints, step)
            os.truncate(self.metrics_file, length)
            for folder in _STEP_FOLDERS:
                _remove_after(self.path / folder, step)
        self.snapshots.remove_after(step)
        return state

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows of metrics.jsonl. An incomplete last line, as a killed run may leave, is skipped.

        Raises:
            FolderError: if a line is not a row, or the file is a link out of the folder; the message names the line.
        """
        file = path_within(self.path, "metrics.jsonl")
        if not file.exists():
            return
        number = 1
        try:
            for line in read_lines(file):
                if line.endswith(b"\n"):
                    yield _parse_row(line)
                number += 1
        except (ValueError, OSError) as error:
            raise FolderError(f"{file}, line {number}: no row of metrics: {error}") from error

    def fsync_records(self) -> int:
        """Flush metrics.jsonl and the files of recorded steps to disk, and return the length of metrics.jsonl [bytes].

        A checkpoint is written only after this, so that it never survives a power loss without the rows before it.

        Raises:
            FolderError: if the files cannot be flushed.
        """
        self._expect_there()
        paths = [self.metrics_file]
        for step in self._unsettled:
            for folder in _STEP_FOLDERS:
                file = self.path / folder / _file_name(step)
                paths += [file, file.parent]
        with Writing(self.path):
            for path in filter(Path.exists, dict.fromkeys(paths)):
                fsync(path)
            self._unsettled.clear()
            return self.metrics_file.stat().st_size


def _file_name(step: int) -> str:
    return f"{step:06d}.jsonl.zst"


def _numbered(folder: Path) -> dict[int, Path]:
    """Return step -> file for the files in `folder` that are named after steps."""
    files = {step_from_name(file.name.removesuffix(".jsonl.zst")): file for file in folder.glob("*.jsonl.zst")}
    return {step: file for step, file in files.items() if step is not None}


def _remove_after(folder: Path, step: int) -> None:
    """Remove the files of steps after `step`, and unfinished ones."""
    newer = [file for recorded, file in _numbered(folder).items() if recorded > step]
    for file in [*folder.glob("*.part"), *newer]:
        file.unlink()


def _parse_row(line: bytes) -> dict[str, Any]:
    row = parse_json(line.decode())
    if not isinstance(row, dict) or type(row.get("step")) is not int:
        raise ValueError("must be an object with a whole number `step`")
    for name, value in row.items():
        if not isinstance(value, int | float):
            raise ValueError(f"{name} must be a number, got {type(value).__name__}")
    return row


def to_yaml(scenario: Scenario) -> str:
    """Return the resolved scenario as YAML."""
    return yaml.safe_dump(scenario.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def environment(scenario: Scenario) -> dict[str, Any]:
    """Return the contents of environment.json: format, command, versions, machine and threads."""
    import torch  # here, as light commands read runs without it

    return {
        "format": FORMAT,
        "command": sys.argv,
        "seed": scenario.schedule.seed,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
        "threads": scenario.schedule.threads or torch.get_num_threads(),
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "packages": {name: version(name) for name in _PACKAGES},
    }
