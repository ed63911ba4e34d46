"""Folder of a run: resolved scenario, environment, metrics, recorded steps and checkpoints."""

from __future__ import annotations

import json
import os
import platform
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from marl.core.errors import RaiseRunFolderErrorOnFailedWrite, RunFolderError
from marl.core.graph import Trajectory, read_trajectories, read_trajectory, write_trajectories
from marl.credit_stage.records import CreditRecord
from marl.host.data_files import read_lines, write_atomically
from marl.host.untrusted_text import parse_json
from marl.runs.checkpoint import (
    CheckpointError,
    CheckpointManifest,
    checkpoint_damage_message,
    checkpoint_steps,
    read_checkpoint,
    rename_checkpoints_after,
    step_in_file_name,
    verify_checksums,
    verify_file_sizes,
    verify_policy_checksums,
)
from marl.runs.checksums import fsync
from marl.runs.credit_records import read_credit_record, write_credit_record
from marl.runs.locks import LOCK_FILE, run_lock
from marl.runs.metric_rows import RowChecksumChain, last_row_checksum, metrics_line_with_checksum
from marl.runs.run_format import FORMAT, require_current_format
from marl.runs.snapshots import LEAGUE_FOLDER, PolicySnapshots
from marl.runs.strategies import StrategyRow, read_strategies, write_strategies
from marl.runs.symlinks import path_within, path_without_symlinks, require_no_symlinks
from marl.scenario.load import ScenarioError, setting_change_lines, validate
from marl.scenario.schema import Scenario
from marl.scenario.yaml_text import read_yaml_file

_PACKAGES = ("marl-llm", "torch", "transformers", "tokenizers", "pettingzoo", "networkx", "pydantic", "numpy")
RESULTS_WITHOUT_ROLES = "without"
"""Folder of the results of `marl eval RUN --without ROLE`, one file for each role."""
_RUN_FILES = (
    *("scenario.yaml", "environment.json", "metrics.jsonl", "curves.png", "report.html", "status.json"),
    *("events", "trajectories", "credit", "strategies", "checkpoints", "failed", "eval", LEAGUE_FOLDER),
    RESULTS_WITHOUT_ROLES,
)
"""Names of all files and folders of a run. `clear` removes them and nothing else."""
_STEP_FOLDERS = ("trajectories", "credit", "strategies", "eval")
"""Names of the folders with one file for each recorded step."""


class RunFolder:
    """Files of one run. Nothing is written through a symbolic link, nor read through a link out of the folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.metrics_file = path / "metrics.jsonl"
        self.snapshots = PolicySnapshots(path)
        self._locked_folder: os.stat_result | None = None
        """Status of the folder when it was locked, or None if this process holds no lock."""
        self._last_crc: int | None = None
        """Checksum of the last row of metrics.jsonl, or None if the file was not read yet."""
        self._unflushed_steps: set[int] = set()
        """Steps with files written since the newest checkpoint, which may not be flushed to disk yet."""

    @property
    def resume_command(self) -> str:
        """Command line that resumes this run."""
        return f"marl train {shlex.quote(str(self.path))} --resume auto"

    def create(self, scenario: Scenario) -> None:
        """Create the folder and write environment.json, then scenario.yaml, which marks the folder as a run.

        Raises:
            RunFolderError: if the folder cannot be written.
        """
        with RaiseRunFolderErrorOnFailedWrite(self.path):
            path_without_symlinks(self.path, "metrics.jsonl")
            self.path.mkdir(parents=True, exist_ok=True)
            self.metrics_file.touch()
            environment_json = json.dumps(describe_environment(scenario), indent=1) + "\n"
            write_atomically(self.path / "environment.json", environment_json.encode())
            write_atomically(self.path / "scenario.yaml", scenario_to_yaml(scenario).encode())
            fsync(self.path)

    @contextmanager
    def hold_lock(self) -> Iterator[None]:
        """Create the folder and hold its lock, so that no other process trains in it.

        Raises:
            RunFolderError: if another process trains here, the folder cannot be written, or has a symbolic link in it.
        """
        require_no_symlinks(self.path, (LOCK_FILE, *_RUN_FILES))
        with run_lock(self.path):
            self._locked_folder = self.path.stat()
            try:
                yield
            finally:
                self._locked_folder = None

    def _check_locked_folder_was_not_moved(self) -> None:
        """Check, before writing, that the locked folder is still at its path.

        Raises:
            RunFolderError: if the folder was removed, moved or replaced since it was locked.
        """
        if self._locked_folder is None:
            return
        with suppress(OSError):
            if os.path.samestat(self._locked_folder, self.path.stat()):
                return
        raise RunFolderError(
            f"{self.path} is gone: the run's folder was removed, moved or replaced while it was trained"
        )

    @property
    def has_run(self) -> bool:
        """True if the folder holds a row of metrics or a checkpoint, so that a new run must not replace it."""
        has_rows = self.metrics_file.is_file() and self.metrics_file.stat().st_size > 0
        return (self.path / "scenario.yaml").exists() and (has_rows or bool(checkpoint_steps(self.checkpoints)))

    def scenario(self) -> Scenario:
        """Return the resolved scenario of the run.

        Raises:
            ScenarioError: if there is no run, or its scenario is no longer valid.
        """
        return validate(self._read_scenario_file(), str(self.path / "scenario.yaml"))

    def setting_differences(self, scenario: Scenario) -> list[str]:
        """Return a line for each setting in which `scenario` differs from this run's scenario.

        A setting that a newer version of marl added counts only if it differs from its default.
        """
        return setting_change_lines(self.settings(), yaml.safe_load(scenario_to_yaml(scenario)))

    def settings(self) -> dict[str, Any]:
        """Return the resolved settings of the run, completed with the defaults of this version.

        Settings that are no longer valid are returned as they were written.

        Raises:
            ScenarioError: if there is no run.
        """
        written = self._read_scenario_file()
        with suppress(ScenarioError):
            return yaml.safe_load(scenario_to_yaml(self.scenario()))
        return written

    def _read_scenario_file(self) -> dict[str, Any]:
        """Return the contents of scenario.yaml without validation.

        Raises:
            ScenarioError: if there is no run, or another version of marl wrote it.
        """
        file = path_within(self.path, "scenario.yaml")
        if not file.exists():
            raise ScenarioError(f"{self.path}: no run here (no scenario.yaml)")
        require_current_format(self.path)
        data = read_yaml_file(file)
        if not isinstance(data, dict):
            raise ScenarioError(f"{file}: not a scenario, but {type(data).__name__}")
        return data

    def remove_files_of_run(self) -> None:
        """Remove all files of the run. Other files in the folder stay."""
        with RaiseRunFolderErrorOnFailedWrite(self.path):
            # All paths are checked for symbolic links first, so that nothing is removed if one of them is refused.
            for path in [path_without_symlinks(self.path, name) for name in _RUN_FILES]:
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)

    def append_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append the metrics of one step to metrics.jsonl."""
        self._check_locked_folder_was_not_moved()
        with (
            RaiseRunFolderErrorOnFailedWrite(self.metrics_file),
            path_without_symlinks(self.path, "metrics.jsonl").open("ab+") as file,
        ):
            if self._last_crc is None:
                file.seek(0)
                self._last_crc = last_row_checksum(file)
            line, self._last_crc = metrics_line_with_checksum({"step": step, **metrics}, self._last_crc)
            file.write(line)

    def record_trajectories(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        """Write the trajectories of one step."""
        with self._step_file_to_write("trajectories", step) as file:
            write_trajectories(file, trajectories)

    def record_credit(self, step: int, record: CreditRecord) -> None:
        """Write the credit record of one step: how each turn got its advantage."""
        with self._step_file_to_write("credit", step) as file:
            write_credit_record(file, record)

    def record_strategies(self, step: int, rows: Sequence[StrategyRow]) -> None:
        """Write the strategies measured by the evaluation after one step."""
        with self._step_file_to_write("strategies", step) as file:
            write_strategies(file, rows)

    def record_held_out_episodes(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        """Write the episodes on held-out starts that were played after step `step` (0: before training)."""
        with self._step_file_to_write("eval", step) as file:
            write_trajectories(file, trajectories)

    @contextmanager
    def _step_file_to_write(self, folder: str, step: int) -> Iterator[Path]:
        """Yield the path of the file of one step in `folder` (one of `_STEP_FOLDERS`), which the body writes."""
        self._check_locked_folder_was_not_moved()
        self._unflushed_steps.add(step)
        file = path_without_symlinks(self.path, folder, _step_file_name(step))
        with RaiseRunFolderErrorOnFailedWrite(file):
            yield file

    def has_credit_record(self, step: int) -> bool:
        """Return True if the folder contains a credit record of step `step`."""
        return (self.path / "credit" / _step_file_name(step)).is_file()

    def read_credit_of_step(self, step: int) -> CreditRecord:
        """Return the credit record of a recorded step.

        Raises:
            RunFolderError: if its file is a symbolic link that leads out of the run's folder.
            ValueError: if its file is missing or damaged.
        """
        return read_credit_record(path_within(self.path, "credit", _step_file_name(step)))

    def recorded_steps(self) -> list[int]:
        """Return the steps with recorded trajectories, oldest first."""
        return sorted(_step_files(self.path / "trajectories"))

    def steps_with_held_out_episodes(self) -> list[int]:
        """Return the steps with recorded episodes on held-out starts, oldest first."""
        return sorted(_step_files(self.path / "eval"))

    def read_held_out_episodes(self, step: int) -> list[Trajectory]:
        """Return the recorded episodes on held-out starts after `step`. Raises the errors of `read_credit_of_step`."""
        return list(read_trajectories(path_within(self.path, "eval", _step_file_name(step))))

    def load_trajectories(self, step: int) -> list[Trajectory]:
        """Return the trajectories of a recorded step. Raises the errors of `read_credit_of_step`."""
        return list(self.iter_trajectories(step))

    def iter_trajectories(self, step: int) -> Iterator[Trajectory]:
        """Yield the trajectories of a recorded step, in order of play. Raises the errors of `read_credit_of_step`."""
        yield from read_trajectories(path_within(self.path, "trajectories", _step_file_name(step)))

    def iter_strategies(self) -> Iterator[tuple[int, list[StrategyRow]]]:
        """Yield (step, strategies) of each evaluation, oldest first. Raises the errors of `read_credit_of_step`."""
        for step in sorted(_step_files(self.path / "strategies")):
            yield step, read_strategies(path_within(self.path, "strategies", _step_file_name(step)))

    def load_trajectory(self, step: int, episode_index: int) -> Trajectory:
        """Return the trajectory with the index `episode_index` (from 0) of a recorded step, without reading the others.

        Raises the errors of `read_credit_of_step`, and ValueError if the step has no trajectory `episode_index`.
        """
        return read_trajectory(path_within(self.path, "trajectories", _step_file_name(step)), episode_index)

    def trajectory_file_stamp_by_step(self) -> dict[int, str]:
        """Return recorded step -> size and time of its trajectory file, which change when the file is rewritten."""
        stamps = {}
        for step, file in _step_files(self.path / "trajectories").items():
            with suppress(FileNotFoundError):  # a run that starts over may remove the file meanwhile
                status = file.stat()
                stamps[step] = f"{status.st_size} {status.st_mtime_ns}"
        return stamps

    def verified_policies_folder(self, step: int) -> Path:
        """Return the folder with the policies of checkpoint `step`, after verifying their files.

        Raises:
            CheckpointError: if there is no such checkpoint, or a file of a policy has changed since it was written.
        """
        checkpoint = self.checkpoints / f"{step:06d}"
        verify_policy_checksums(checkpoint)
        return checkpoint / "policies"

    def latest_checkpoint(
        self, verify: Callable[[Path], CheckpointManifest] = verify_checksums
    ) -> tuple[int, list[str]]:
        """Return the step of the newest intact checkpoint (0: no checkpoints), and the damage of each newer one.

        `verify` returns the manifest of an intact checkpoint, and raises CheckpointError for a damaged one. The search
        begins again if the run that trains meanwhile has replaced a checkpoint, which then seemed damaged.

        Raises:
            CheckpointError: if there are checkpoints, but all are damaged.
        """
        while True:
            steps = checkpoint_steps(self.checkpoints)
            intact_step, problems = 0, list[str]()
            for step in reversed(steps):
                problem = checkpoint_damage_message(self.checkpoints, step, verify)
                if problem is None:
                    intact_step = step
                    break
                problems.append(problem)
            if not problems or checkpoint_steps(self.checkpoints) == steps:
                break
        if problems and not intact_step:
            raise CheckpointError("; ".join([*problems, f"no whole checkpoint in {self.checkpoints}"]))
        return intact_step, problems

    def metrics_if_unevaluated(self, step: int) -> dict[str, float] | None:
        """Return the metrics of checkpoint `step` if its evaluation has not been done yet, else None.

        Raises:
            CheckpointError: if the checkpoint is damaged.
        """
        return verify_file_sizes(self.checkpoints / f"{step:06d}").unmeasured

    def rewind_to_checkpoint(self, step: int) -> dict[str, Any] | None:
        """Remove the records after checkpoint `step`, and return the checkpoint's state (None at step 0).

        Raises:
            RunFolderError: if the checkpoint is damaged, rows before it are lost, or the folder cannot be written.
        """
        length, state = 0, None
        if step:
            manifest, state = read_checkpoint(self.checkpoints, step)
            length = manifest.metrics_bytes
        have = self.metrics_file.stat().st_size if self.metrics_file.is_file() else 0
        if have < length:
            raise RunFolderError(
                f"{self.metrics_file} has {have} bytes; at checkpoint {step:06d} it had {length}: rows are lost"
            )
        with RaiseRunFolderErrorOnFailedWrite(self.path):
            rename_checkpoints_after(self.checkpoints, step)
            os.truncate(self.metrics_file, length)
            self._last_crc = None
            for folder in _STEP_FOLDERS:
                newer = [file for recorded, file in _step_files(self.path / folder).items() if recorded > step]
                # A killed process may leave unfinished files, which end in .part.
                for file in [*(self.path / folder).glob("*.part"), *newer]:
                    file.unlink()
        self.snapshots.remove_versions_after_step(step)
        return state

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows of metrics.jsonl. An incomplete last line, as a killed run may leave, is skipped.

        Raises:
            RunFolderError: if a line is not a row, rows before it are missing, or the file is a link out of the folder;
                the message names the line.
        """
        file = path_within(self.path, "metrics.jsonl")
        if not file.exists():
            return
        number, chain = 1, RowChecksumChain()
        try:
            for line in read_lines(file):
                if line.endswith(b"\n"):
                    row = parse_json(chain.verify_row(line).decode())
                    if not isinstance(row, dict) or type(row.get("step")) is not int:
                        raise ValueError("must be an object with a whole number `step`")
                    for name, value in row.items():
                        if not isinstance(value, int | float):
                            raise ValueError(f"{name} must be a number, got {type(value).__name__}")
                    yield row
                number += 1
        except (ValueError, OSError) as error:
            raise RunFolderError(f"{file}, line {number}: no row of metrics: {error}") from error

    def fsync_records(self) -> int:
        """Flush metrics.jsonl and the files of recorded steps to disk, and return the length of metrics.jsonl [bytes].

        A checkpoint is written after this call, so that no checkpoint survives a power loss without the rows before it.

        Raises:
            RunFolderError: if the files cannot be flushed.
        """
        self._check_locked_folder_was_not_moved()
        paths = [self.metrics_file]
        for step in self._unflushed_steps:
            for folder in _STEP_FOLDERS:
                file = self.path / folder / _step_file_name(step)
                paths += [file, file.parent]
        with RaiseRunFolderErrorOnFailedWrite(self.path):
            for path in filter(Path.exists, dict.fromkeys(paths)):
                fsync(path)
            self._unflushed_steps.clear()
            return self.metrics_file.stat().st_size


def _step_file_name(step: int) -> str:
    return f"{step:06d}.jsonl.zst"


def _step_files(folder: Path) -> dict[int, Path]:
    """Return step -> file, for the files in `folder` that are named after steps."""
    files = {}
    for file in folder.glob("*.jsonl.zst"):
        if (step := step_in_file_name(file.name.removesuffix(".jsonl.zst"))) is not None:
            files[step] = file
    return files


def scenario_to_yaml(scenario: Scenario) -> str:
    """Return the resolved scenario as YAML."""
    return yaml.safe_dump(scenario.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def describe_environment(scenario: Scenario) -> dict[str, Any]:
    """Return the contents of environment.json: format, command, versions, machine and threads."""
    import torch  # imported here, because light commands read runs without torch

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
