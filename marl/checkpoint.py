"""Checkpoints: whole or absent. Written beside and renamed, the manifest last; older ones removed after that."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marl.state import load_state, save_state


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be written or read; the message names the file."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a checkpoint holds, and how long the run's growing files were when it was taken."""

    step: int
    metrics_bytes: int
    files: dict[str, int]
    """Relative path -> size in bytes."""


def write(
    folder: Path, manifest: tuple[int, int], state: dict[str, Any], save_policies: Callable[[Path], None], keep: int
) -> Path:
    """Write checkpoint `step` under `folder`, then remove all but the newest `keep`.

    Args:
        manifest: step, and the length of metrics.jsonl in bytes.
        save_policies: writes a Hugging Face folder per policy into the folder it is given.

    Raises:
        CheckpointError: if it cannot be written (read-only folder, full disk); older checkpoints are untouched.
    """
    step, metrics_bytes = manifest
    target, beside = folder / f"{step:06d}", folder / f".{step:06d}.part"
    try:
        shutil.rmtree(beside, ignore_errors=True)
        save_policies(beside / "policies")
        save_state(beside / "state", state)
        files = {str(p.relative_to(beside)): p.stat().st_size for p in sorted(beside.rglob("*")) if p.is_file()}
        record = {"format": 1, "step": step, "metrics_bytes": metrics_bytes, "files": files}
        (beside / "manifest.json").write_text(json.dumps(record, indent=1))
        shutil.rmtree(target, ignore_errors=True)
        beside.rename(target)
        for old in whole(folder)[:-keep]:
            shutil.rmtree(folder / f"{old:06d}")
    except OSError as error:
        shutil.rmtree(beside, ignore_errors=True)
        have = ", ".join(f"{s:06d}" for s in whole(folder)) or "none"
        raise CheckpointError(f"checkpoint {target} cannot be written: {error}; whole checkpoints: {have}") from error
    return target


def read(folder: Path, step: int) -> tuple[Manifest, dict[str, Any]]:
    """Manifest and state of one checkpoint.

    Raises:
        CheckpointError: if it is not whole, naming what is missing or cut short.
    """
    path = folder / f"{step:06d}"
    manifest = inspect(path)
    return manifest, load_state(path / "state")


def inspect(path: Path) -> Manifest:
    """The manifest of a checkpoint whose files are all there, in full length.

    Raises:
        CheckpointError: if it is not whole, naming what is missing or cut short.
    """
    try:
        record = json.loads((path / "manifest.json").read_text())
        manifest = Manifest(record["step"], record["metrics_bytes"], record["files"])
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"checkpoint {path} has no readable manifest.json ({error})") from error
    for name, size in manifest.files.items():
        file = path / name
        have = file.stat().st_size if file.is_file() else None
        if have != size:
            state = "is missing" if have is None else f"has {have} bytes of {size}"
            raise CheckpointError(f"checkpoint {path} is damaged: {name} {state}")
    return manifest


def steps(folder: Path) -> list[int]:
    """Steps of all checkpoints under `folder`, whole or damaged, oldest first."""
    return sorted(int(p.name) for p in folder.glob("*") if p.name.isdigit()) if folder.is_dir() else []


def whole(folder: Path) -> list[int]:
    """Steps of the whole checkpoints, oldest first."""
    return [step for step in steps(folder) if damage(folder, step) is None]


def damage(folder: Path, step: int) -> str | None:
    """What is wrong with a checkpoint, or None."""
    try:
        inspect(folder / f"{step:06d}")
    except CheckpointError as error:
        return str(error)
    return None
