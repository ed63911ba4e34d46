"""Earlier weights of policies in a run's folder: `league/POLICY/000040/` holds the weights after 40 steps."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from marl.core.errors import RaiseRunFolderErrorOnFailedWrite
from marl.core.state import load_state, save_state
from marl.runs.checkpoint import step_in_file_name
from marl.runs.checksums import fsync
from marl.runs.symlinks import path_within, path_without_symlinks

LEAGUE_FOLDER = "league"
"""Name of the folder of snapshots within a run's folder."""
_START = "start"


class PolicySnapshots:
    """Store of a run's earlier weights. A snapshot is complete or absent: it is written elsewhere, then renamed."""

    def __init__(self, run: Path) -> None:
        self._run = run

    def version_folder(self, policy: str, version: int) -> Path:
        """Return the Hugging Face or PEFT folder of a policy's weights after `version` steps.

        Raises:
            RunFolderError: if a symbolic link leads out of the run's folder.
        """
        return path_within(self._run, LEAGUE_FOLDER, policy, f"{version:06d}")

    def write_version(self, policy: str, version: int, save: Callable[[Path], None]) -> None:
        """Write a policy's weights after `version` steps. `save` writes the weights into a given folder.

        Raises:
            RunFolderError: if the weights cannot be written.
        """
        self._write_snapshot_folder(policy, f"{version:06d}", save)

    def write_initial_state(self, policy: str, state: Mapping[str, Any]) -> None:
        """Write the state of a policy's learner before its first update. Raises the errors of `write_version`."""
        self._write_snapshot_folder(policy, _START, lambda folder: save_state(folder, state))

    def read_initial_state(self, policy: str) -> dict[str, Any]:
        """Return the state of a policy's learner before its first update, as written by `write_initial_state`."""
        return load_state(path_within(self._run, LEAGUE_FOLDER, policy, _START))

    def saved_versions(self, policy: str) -> list[int]:
        """Return the saved versions of a policy (numbers of steps), oldest first."""
        return sorted(_version_folders(self._run / LEAGUE_FOLDER / policy))

    def remove_versions_except(self, policy: str, versions: Collection[int]) -> None:
        """Remove all versions of a policy except `versions`, and unfinished folders."""
        home = self._run / LEAGUE_FOLDER / policy
        self._remove_versions(home, _version_folders(home).keys() - versions)

    def remove_versions_after_step(self, step: int) -> None:
        """Remove the versions of all policies after `step`, and unfinished folders."""
        for home in (self._run / LEAGUE_FOLDER).glob("*"):
            self._remove_versions(home, [version for version in _version_folders(home) if version > step])

    def _write_snapshot_folder(self, policy: str, name: str, save: Callable[[Path], None]) -> None:
        """Let `save` write a folder, flush it to disk, and rename it to `name` in the folder of `policy`."""
        home = self._run / LEAGUE_FOLDER / policy
        with RaiseRunFolderErrorOnFailedWrite(home / name):
            path_without_symlinks(self._run, LEAGUE_FOLDER, policy, name)
            part = home / f".{name}.part"
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            save(part)
            for path in [*part.rglob("*"), part]:
                fsync(path)
            shutil.rmtree(home / name, ignore_errors=True)
            part.rename(home / name)
            fsync(home)

    def _remove_versions(self, policy_folder: Path, versions: Collection[int]) -> None:
        """Remove `versions` and unfinished folders from `policy_folder`, the folder of a policy."""
        folders = _version_folders(policy_folder)
        with RaiseRunFolderErrorOnFailedWrite(policy_folder):
            for path in (*policy_folder.glob(".*.part"), *map(folders.__getitem__, versions)):
                shutil.rmtree(path_without_symlinks(self._run, *path.relative_to(self._run).parts))


def _version_folders(policy_folder: Path) -> dict[int, Path]:
    """Return version -> its folder, for each version in the folder of a policy."""
    folders = {}
    for path in policy_folder.glob("*"):
        if (version := step_in_file_name(path.name)) is not None:
            folders[version] = path
    return folders
