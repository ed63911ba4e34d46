"""Checkpoints: whole or absent. Written under another name and renamed, the manifest last; then older ones go."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from safetensors import SafetensorError

from marl.errors import FolderError, Writing
from marl.state import load_state, save_state


class CheckpointError(FolderError):
    """A checkpoint that cannot be written or read; the message names the file."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Contents of a checkpoint, and the length of the run's growing files when it was taken."""

    step: int
    metrics_bytes: int
    files: dict[str, int]
    """Relative path -> size in bytes."""


@dataclass(frozen=True, slots=True)
class Retention:
    """Rule by which checkpoints are kept."""

    newest: int
    """Number of the last ones that stay."""
    best: int | None = None
    """Step of another one that stays."""


def write(
    folder: Path,
    step: int,
    state: dict[str, Any],
    save_policies: Callable[[Path], None],
    *,
    metrics_bytes: int,
    retention: Retention,
) -> Path:
    """Write checkpoint `step` under `folder`, then remove those that `retention` does not keep; return its folder.

    `save_policies` writes a Hugging Face folder per policy; `metrics_bytes` is the length of metrics.jsonl.

    Raises:
        CheckpointError: if it cannot be written (read-only folder, full disk); older checkpoints are untouched.
    """
    target, part = folder / f"{step:06d}", folder / f".{step:06d}.part"
    try:
        with Writing(target):
            _sweep(folder)  # what an earlier, killed process left
            save_policies(part / "policies")
            save_state(part / "state", state)
            _seal(part, {"format": 1, "step": step, "metrics_bytes": metrics_bytes})
            part.rename(target)
    except FolderError as error:
        shutil.rmtree(part, ignore_errors=True)
        have = ", ".join(f"{s:06d}" for s in whole(folder)) or "none"
        raise CheckpointError(f"checkpoint {error}; whole checkpoints: {have}") from error
    tidy(folder, retention)
    return target


def tidy(folder: Path, retention: Retention) -> None:
    """Remove whole checkpoints that `retention` does not keep, and all that are half written or half removed.

    Raises:
        FolderError: if that cannot be done.
    """
    with Writing(folder):
        _prune(folder, retention)
        _sweep(folder)


def _seal(part: Path, record: dict[str, Any]) -> None:
    files = {str(p.relative_to(part)): p.stat().st_size for p in sorted(part.rglob("*")) if p.is_file()}
    (part / "manifest.json").write_text(json.dumps(record | {"files": files}, indent=1))


def _prune(folder: Path, retention: Retention) -> None:
    for old in whole(folder)[: -retention.newest]:
        if old == retention.best:
            continue
        # Renamed first: a run that is killed meanwhile must not leave half a checkpoint under a checkpoint's name.
        going = (folder / f"{old:06d}").rename(folder / f".{old:06d}.old")
        shutil.rmtree(going)


def _sweep(folder: Path) -> None:
    for left in [*folder.glob(".*.part"), *folder.glob(".*.old")]:
        shutil.rmtree(left)


def set_aside(folder: Path, after: int) -> None:
    """Rename checkpoints of steps after `after`: the run goes another way from there. None is deleted."""
    for step in steps(folder):
        if step > after:
            names = (folder / f"{step:06d}.aside{i}" for i in count(1))
            (folder / f"{step:06d}").rename(next(name for name in names if not name.exists()))


def read(folder: Path, step: int) -> tuple[Manifest, dict[str, Any]]:
    """Return manifest and state of one checkpoint.

    Raises:
        CheckpointError: if it is not whole, naming what is missing, cut short or unreadable.
    """
    path = folder / f"{step:06d}"
    manifest = inspect(path)
    try:
        return manifest, load_state(path / "state")
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise CheckpointError(f"checkpoint {path} is damaged: state cannot be read: {error}") from error


def inspect(path: Path) -> Manifest:
    """Return the manifest of a checkpoint whose files are all there, in full length.

    Raises:
        CheckpointError: if it is not whole, naming what is missing or cut short.
    """
    if not path.is_dir():
        have = ", ".join(f"{s:06d}" for s in steps(path.parent)) or "none"
        raise CheckpointError(f"checkpoint {path}: there is none of this name; checkpoints: {have}")
    manifest = _manifest(path / "manifest.json")
    for name, size in manifest.files.items():
        file = path / name
        have = file.stat().st_size if file.is_file() else None
        if have != size:
            state = "is missing" if have is None else f"has {have} bytes of {size}"
            raise CheckpointError(f"checkpoint {path} is damaged: {name} {state}")
    return manifest


def _manifest(file: Path) -> Manifest:
    try:
        manifest = TypeAdapter(Manifest).validate_json(file.read_bytes())
    except (OSError, ValueError) as error:
        why = str(error).splitlines()[0]
        raise CheckpointError(f"checkpoint {file.parent} is damaged: no readable {file.name} ({why})") from error
    if file.parent.name != f"{manifest.step:06d}":
        raise CheckpointError(f"checkpoint {file.parent} is damaged: its {file.name} is of step {manifest.step}")
    return manifest


def steps(folder: Path) -> list[int]:
    """Return the steps of all checkpoints under `folder`, whole or damaged, oldest first."""
    return sorted(int(p.name) for p in folder.glob("*") if p.name.isdigit()) if folder.is_dir() else []


def whole(folder: Path) -> list[int]:
    """Return the steps of the whole checkpoints, oldest first."""
    return [step for step in steps(folder) if damage(folder, step) is None]


def damage(folder: Path, step: int) -> str | None:
    """Return what is wrong with a checkpoint; None if it is whole."""
    try:
        inspect(folder / f"{step:06d}")
    except CheckpointError as error:
        return str(error)
    return None
