"""Earlier weights of policies in a run's folder: `league/POLICY/000040/` holds the weights after 40 steps."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from marl.core.errors import Writing
from marl.core.state import load_state, save_state
from marl.runs.checkpoint import step_from_name
from marl.runs.checksums import fsync
from marl.runs.symlinks import path_within, path_without_symlinks

LEAGUE_FOLDER = "league"
"""Name of the folder within a run's folder."""
_START = "start"


class Snapshots:
    """Folders of earlier weights. Each is complete or absent: it is written under another name, flushed and renamed."""

    def __init__(self, run: Path) -> None:
        self._run = run

    def folder(self, policy: str, version: int) -> Path:
        """Return the Hugging Face or PEFT folder of a policy's weights after `version` steps.

        Raises:
            FolderError: if a symbolic link leads out of the run's folder.
        """
        return path_within(self._run, LEAGUE_FOLDER, policy, f"{version:06d}")

    def write(self, policy: str, version: int, save: Callable[[Path], None]) -> None:
        """Write the weights of one version. `save` writes them into the folder it is given.

        Raises:
            FolderError: if the weights cannot be written.
        """
        self._write(policy, f"{version:06d}", save)

    def write_start(self, policy: str, state: dict[str, Any]) -> None:
        """Write a learner's state before its first update. Raises as `write`."""
        self._write(policy, _START, lambda folder: save_state(folder, state))

    def read_start(self, policy: str) -> dict[str, Any]:
        """Return the learner's state written by `write_start`."""
        return load_state(path_within(self._run, LEAGUE_FOLDER, policy, _START))

    def versions(self, policy: str) -> list[int]:
        """Return the saved versions of a policy, oldest first."""
        return sorted(version for version, _ in _numbered(self._run / LEAGUE_FOLDER / policy))

    def remove_except(self, policy: str, versions: Collection[int]) -> None:
        """Remove all versions of a policy except `versions`, and unfinished folders."""
        self._remove(self._run / LEAGUE_FOLDER / policy, lambda version: version not in versions)

    def remove_after(self, step: int) -> None:
        """Remove the versions after `step` of all policies, and unfinished folders."""
        for home in (self._run / LEAGUE_FOLDER).glob("*"):
            self._remove(home, lambda version: version > step)

    def _write(self, policy: str, name: str, save: Callable[[Path], None]) -> None:
        home = self._run / LEAGUE_FOLDER / policy
        with Writing(home / name):
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

    def _remove(self, home: Path, unwanted: Callable[[int], bool]) -> None:
        with Writing(home):
            for path in (*home.glob(".*.part"), *(path for version, path in _numbered(home) if unwanted(version))):
                shutil.rmtree(path_without_symlinks(self._run, *path.relative_to(self._run).parts))


def _numbered(home: Path) -> Iterator[tuple[int, Path]]:
    """Yield (version, folder) of each version in the folder of a policy."""
    for path in home.glob("*"):
        if (version := step_from_name(path.name)) is not None:
            yield version, path
