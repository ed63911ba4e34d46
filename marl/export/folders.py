"""Folders that an export writes: whole or not at all, and never over what is there already."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from marl.errors import Writing
from marl.scenario.load import ScenarioError


def write_folder(out: Path, write: Callable[[Path], None]) -> None:
    """Let `write` make a folder beside `out`, which is renamed to `out` when it is done.

    Raises:
        ScenarioError: if `out` exists.
        FolderError: if it cannot be written.
    """
    # A link that leads nowhere is something, too.
    if os.path.lexists(out):
        raise ScenarioError(f"{out} exists already; choose another folder")
    with Writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        # A name that no one else has: of two exports at a time, neither deletes what the other one writes.
        with TemporaryDirectory(prefix=".export-", dir=out.parent) as made:
            part = Path(made) / out.name
            write(part)
            part.rename(out)
