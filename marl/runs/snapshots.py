"""Weights that policies had earlier, in a run's folder: league/POLICY/000040/ after 40 steps."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from marl.errors import Writing
from marl.runs.checkpoint import step_of
from marl.runs.checksums import sync
from marl.runs.links import expect_no_link, inside
from marl.state import load_state, save_state

FOLDER = "league"
"""Name of the folder in a run's own."""
_START = "start"


class Snapshots:
    """Files of earlier weights. Each is whole or absent: written under another name, brought to the disk, renamed."""

    def __init__(self, run: Path) -> None:
        self._run = run

    def folder(self, policy: str, version: int) -> Path:
        """Return the Hugging Face or PEFT folder of the weights that a policy had after `version` steps.

        Raises:
            FolderError: if a symbolic link leads out of the run's folder.
        """
        return inside(self._run, FOLDER, policy, f"{version:06d}")

    def write(self, policy: str, version: int, save: Callable[[Path], None]) -> None:
        """Write weights, which `save` puts into a folder, over those of the same version.

        Raises:
            FolderError: if they cannot be written.
        """
        self._write(policy, f"{version:06d}", save)

    def write_start(self, policy: str, state: dict[str, Any]) -> None:
        """Write a learner's state before its first update; errors as of `write`."""
        self._write(policy, _START, lambda folder: save_state(folder, state))

    def start(self, policy: str) -> dict[str, Any]:
        """Return what `write_start` wrote."""
        return load_state(inside(self._run, FOLDER, policy, _START))

    def versions(self, policy: str) -> list[int]:
        """Return the versions of a policy that are on the disk, oldest first."""
        return sorted(version for version, _ in _numbered(self._run / FOLDER / policy))

    def keep(self, policy: str, versions: Collection[int]) -> None:
        """Remove all other weights of a policy."""
        self._remove(self._run / FOLDER / policy, lambda version: version not in versions)

    def cut(self, step: int) -> None:
        """Remove weights of later steps, of all policies, and what is half written."""
        for home in (self._run / FOLDER).glob("*"):
            self._remove(home, lambda version: version > step)

    def _write(self, policy: str, name: str, save: Callable[[Path], None]) -> None:
        home = self._run / FOLDER / policy
        with Writing(home / name):
            expect_no_link(self._run, FOLDER, policy, name)
            part = home / f".{name}.part"
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            save(part)
            for path in [*part.rglob("*"), part]:
                sync(path)
            shutil.rmtree(home / name, ignore_errors=True)
            part.rename(home / name)
            sync(home)

    def _remove(self, home: Path, unwanted: Callable[[int], bool]) -> None:
        with Writing(home):
            for path in (*home.glob(".*.part"), *(path for version, path in _numbered(home) if unwanted(version))):
                shutil.rmtree(expect_no_link(self._run, *path.relative_to(self._run).parts))


def _numbered(home: Path) -> Iterator[tuple[int, Path]]:
    """Yield version and folder of all weights in the folder of a policy."""
    for path in home.glob("*"):
        if (version := step_of(path.name)) is not None:
            yield version, path
