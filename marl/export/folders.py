"""Folders that an export writes: whole or not at all, and never over what is there already."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from marl.errors import Writing
from marl.scenario.load import ScenarioError


def write_folder(out: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a folder, which is renamed to `out` when it is done.

    Raises:
        ScenarioError: if `out` exists.
        FolderError: if it cannot be written.
    """
    if out.exists():
        raise ScenarioError(f"{out} exists already; choose another folder")
    part = out.with_name(f".{out.name}.part")
    with Writing(out):
        shutil.rmtree(part, ignore_errors=True)
        part.parent.mkdir(parents=True, exist_ok=True)
        try:
            write(part)
            part.rename(out)
        finally:
            shutil.rmtree(part, ignore_errors=True)
