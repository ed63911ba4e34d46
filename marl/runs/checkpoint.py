"""Checkpoints: whole or absent. Written under another name, brought to the disk and renamed; then older ones go."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from safetensors import SafetensorError

from marl.core.errors import FolderError, Writing
from marl.core.state import load_state, save_state
from marl.host.data_files import summarize_error, write_atomically
from marl.runs.checksums import checksum, fsync, fsync_and_hash, tensor_signatures
from marl.runs.locks import removal_lock
from marl.runs.run_format import FORMAT, other_format
from marl.runs.symlinks import path_within, path_without_symlinks

_LARGEST_MANIFEST = 2**24


class CheckpointError(FolderError):
    """A checkpoint that cannot be written or read; the message names the file."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Contents of a checkpoint, and the length of the run's growing files when it was taken."""

    format: int
    step: int
    metrics_bytes: int
    files: dict[str, int]
    """Relative path -> size in bytes."""
    sha256: dict[str, str]
    """Relative path -> checksum."""
    tensors: dict[str, dict[str, str]]
    """Relative path of a safetensors file -> tensor -> type and shape, such as `F32[16, 64]`."""
    unmeasured: dict[str, float] | None = None
    """Figures of its step, if that was still to be evaluated; `metrics_bytes` are then those before the step's row."""


@dataclass(frozen=True, slots=True)
class CheckpointMeta:
    """Point in a run at which a checkpoint is taken. Fields as of `Manifest`."""

    step: int
    metrics_bytes: int
    unmeasured: dict[str, float] | None = None


@dataclass(frozen=True, slots=True)
class Retention:
    """Rule by which checkpoints are kept."""

    newest: int
    """Number of the last ones that stay."""
    best: int | None = None
    """Step of another one that stays."""


def write_checkpoint(
    folder: Path,
    moment: CheckpointMeta,
    state: dict[str, Any],
    save_policies: Callable[[Path], None],
    retention: Retention,
) -> Path:
    """Write a checkpoint under `folder`, then remove those that `retention` does not keep; return its folder.

    `save_policies` writes a Hugging Face folder per policy.

    Raises:
        CheckpointError: if it cannot be written (read-only folder, full disk); older checkpoints are untouched.
    """
    target, part = folder / f"{moment.step:06d}", folder / f".{moment.step:06d}.part"
    try:
        with Writing(target):
            _sweep(path_without_symlinks(folder.parent, folder.name))  # what an earlier, killed process left
            save_policies(part / "policies")
            save_state(part / "state", state)
            _seal(part, {"format": FORMAT, **asdict(moment)})
            _rename(part, target)
    except FolderError as error:
        shutil.rmtree(part, ignore_errors=True)
        have = ", ".join(f"{s:06d}" for s in intact_steps(folder)) or "none"
        raise CheckpointError(f"checkpoint {error}; whole checkpoints: {have}") from error
    prune(folder, retention)
    return target


def mark_evaluated(folder: Path, step: int, metrics_bytes: int) -> None:
    """Note in checkpoint `step` that its step has been evaluated, and that metrics.jsonl has its row.

    Raises:
        FolderError: if it cannot be noted.
    """
    path = folder / f"{step:06d}"
    record = {**asdict(verify_sizes(path)), "metrics_bytes": metrics_bytes, "unmeasured": None}
    with Writing(path):
        write_atomically(path / "manifest.json", json.dumps(record, indent=1).encode())
        fsync(path / "manifest.json")
        fsync(path)


def prune(folder: Path, retention: Retention) -> None:
    """Remove whole checkpoints that `retention` does not keep, and all that are half written or half removed.

    Raises:
        FolderError: if that cannot be done.
    """
    with Writing(folder):
        _prune(folder, retention)
        _sweep(folder)


def _seal(part: Path, record: dict[str, Any]) -> None:
    files = {str(p.relative_to(part)): p for p in sorted(part.rglob("*")) if p.is_file()}
    sizes = {name: file.stat().st_size for name, file in files.items()}
    checksums = {name: fsync_and_hash(file) for name, file in files.items()}
    tensors = {name: tensor_signatures(file) for name, file in files.items() if file.suffix == ".safetensors"}
    manifest = part / "manifest.json"
    manifest.write_text(json.dumps(record | {"files": sizes, "sha256": checksums, "tensors": tensors}, indent=1))
    fsync(manifest)
    for inner in [part, *(p for p in part.rglob("*") if p.is_dir())]:
        fsync(inner)


def _rename(part: Path, target: Path) -> None:
    part.rename(target)
    fsync(target.parent)


def _prune(folder: Path, retention: Retention) -> None:
    for old in intact_steps(folder)[: -retention.newest]:
        if old == retention.best:
            continue
        with removal_lock(folder / f"{old:06d}") as free:
            if free:
                # Renamed first: a run that is killed meanwhile must not leave half a checkpoint under its name.
                shutil.rmtree((folder / f"{old:06d}").rename(folder / f".{old:06d}.old"))


def _sweep(folder: Path) -> None:
    for left in [*folder.glob(".*.part"), *folder.glob(".*.old")]:
        shutil.rmtree(path_without_symlinks(folder, left.name))


def set_aside(folder: Path, after: int) -> None:
    """Rename checkpoints of steps after `after`: the run goes another way from there. None is deleted."""
    for step in checkpoint_steps(folder):
        if step > after:
            names = (folder / f"{step:06d}.aside{i}" for i in count(1))
            (folder / f"{step:06d}").rename(next(name for name in names if not name.exists()))


def read_checkpoint(folder: Path, step: int) -> tuple[Manifest, dict[str, Any]]:
    """Return manifest and state of one checkpoint.

    Raises:
        CheckpointError: if it is not as it was written, naming what is missing, cut short, changed or unreadable.
    """
    path = folder / f"{step:06d}"
    manifest = verify(path)
    try:
        return manifest, load_state(path / "state")
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(f"checkpoint {path} is damaged: state cannot be read: {error}") from error


def verify(path: Path, below: str = "") -> Manifest:
    """Return the manifest of a checkpoint of which the files `below` hold what was written.

    Raises:
        CheckpointError: if it is not whole, as `inspect`, or a file has changed.
    """
    manifest = verify_sizes(path)
    for name, written in manifest.tensors.items():
        if name.startswith(below) and (wrong := _differing(written, tensor_signatures(path / name))):
            raise CheckpointError(f"checkpoint {path} is damaged: {name} {wrong}")
    for name, digest in manifest.sha256.items():
        if name.startswith(below) and checksum(path / name) != digest:
            raise CheckpointError(f"checkpoint {path} is damaged: {name} has changed since it was written (SHA-256)")
    return manifest


def _differing(written: Mapping[str, str], present: Mapping[str, str]) -> str:
    """Describe the first tensor that differs from the manifest (`written`), or return "" if none does."""
    names = written.keys() | present.keys()
    name = min((name for name in names if written.get(name) != present.get(name)), default=None)
    if name is None:
        return ""
    return f"has {name!r} as {present.get(name, 'nothing')}; written was {written.get(name, 'nothing')}"


def verify_policies(path: Path) -> Manifest:
    """Return the manifest of a checkpoint of which the policies' files hold what was written; errors as of `verify`."""
    return verify(path, "policies/")


def verify_sizes(path: Path) -> Manifest:
    """Return the manifest of a checkpoint whose files are all there, in full length. Does not read them.

    Raises:
        CheckpointError: if it is not whole, naming what is missing or cut short, or a link leads out of the run.
    """
    try:
        path_within(path.parents[1], *path.parts[-2:])
    except FolderError as error:
        raise CheckpointError(f"checkpoint {error}") from error
    if not path.is_dir():
        have = ", ".join(f"{s:06d}" for s in checkpoint_steps(path.parent)) or "none"
        raise CheckpointError(f"checkpoint {path}: there is none of this name; checkpoints: {have}")
    manifest = _manifest(path / "manifest.json")
    for name, size in manifest.files.items():
        if (have := _size(path, name)) != size:
            state = "is missing" if have is None else f"has {have} bytes of {size}"
            raise CheckpointError(f"checkpoint {path} is damaged: {name} {state}")
    if unknown := (manifest.sha256.keys() | manifest.tensors.keys()) - manifest.files.keys():
        raise CheckpointError(
            f"checkpoint {path} is damaged: its manifest.json tells of {min(unknown)}, which is none of its files"
        )
    return manifest


def _size(path: Path, name: str) -> int | None:
    """Return the size in bytes of a file of the checkpoint `path`; None if there is no such file."""
    try:
        file = path_within(path, name)
        return file.stat().st_size if file.is_file() else None
    except (FolderError, OSError, ValueError) as error:  # a name may be too long, or have a null in it
        raise CheckpointError(f"checkpoint {path} is damaged: {error}") from error


def _manifest(file: Path) -> Manifest:
    try:
        with path_within(file.parent, file.name).open("rb") as opened:
            manifest = TypeAdapter(Manifest).validate_json(opened.read(_LARGEST_MANIFEST))
    except (FolderError, OSError, ValueError) as error:
        why = summarize_error(error).splitlines()[0] if isinstance(error, ValueError) else str(error)
        raise CheckpointError(f"checkpoint {file.parent} is damaged: no readable {file.name} ({why})") from error
    if manifest.format != FORMAT:
        raise CheckpointError(f"checkpoint {file.parent} {other_format(manifest.format)}")
    if file.parent.name != f"{manifest.step:06d}":
        raise CheckpointError(f"checkpoint {file.parent} is damaged: its {file.name} is of step {manifest.step}")
    return manifest


def checkpoint_steps(folder: Path) -> list[int]:
    """Return the steps of all checkpoints under `folder`, whole or damaged, oldest first."""
    names = [path.name for path in folder.glob("*")] if folder.is_dir() else []
    return sorted(step for name in names if (step := step_from_name(name)) is not None)


def step_from_name(name: str) -> int | None:
    """Return the step in the name of a file or folder, or None if the name is no step."""
    return int(name) if name.isdecimal() and f"{int(name):06d}" == name else None


def intact_steps(folder: Path) -> list[int]:
    """Return the steps of the checkpoints of which no file is missing or cut short, oldest first."""
    return [step for step in checkpoint_steps(folder) if find_damage(folder, step, verify_sizes) is None]


def find_damage(folder: Path, step: int, check: Callable[[Path], Manifest] = verify) -> str | None:
    """Return the error message of a damaged checkpoint, or None if it is intact."""
    try:
        check(folder / f"{step:06d}")
    except CheckpointError as error:
        return str(error)
    return None
