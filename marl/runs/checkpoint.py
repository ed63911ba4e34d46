"""Checkpoints of a run. A checkpoint is complete or absent: it is written under another name, flushed and renamed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
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

_MAX_MANIFEST_BYTES = 2**24


class CheckpointError(FolderError):
    """A checkpoint that cannot be written or read; the message names the file."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Contents of a checkpoint, and the length of metrics.jsonl when it was taken."""

    format: int
    step: int
    metrics_bytes: int
    files: dict[str, int]
    """Relative path -> size in bytes."""
    sha256: dict[str, str]
    """Relative path -> checksum."""
    tensors: dict[str, dict[str, str]]
    """Relative path of a safetensors file -> tensor -> dtype and shape, such as `F32[16, 64]`."""
    unmeasured: dict[str, float] | None = None
    """Metrics of the step if its evaluation is still to be done, else None. If set, `metrics_bytes` excludes the step's
    row."""


@dataclass(frozen=True, slots=True)
class CheckpointMeta:
    """Point in a run at which a checkpoint is taken, with the fields of `Manifest`."""

    step: int
    metrics_bytes: int
    unmeasured: dict[str, float] | None = None


@dataclass(frozen=True, slots=True)
class Retention:
    """Rule for keeping checkpoints. All others are removed after a new one is written."""

    newest: int
    """Number of the newest checkpoints to keep."""
    best: int | None = None
    """Step of the best checkpoint, which is kept too, or None."""


def write_checkpoint(
    folder: Path,
    moment: CheckpointMeta,
    state: dict[str, Any],
    save_policies: Callable[[Path], None],
    retention: Retention,
) -> Path:
    """Write a checkpoint under `folder`, remove the older ones according to `retention`, and return the new folder.

    `save_policies` writes a Hugging Face folder per policy.

    Raises:
        CheckpointError: if it cannot be written (read-only folder, full disk); older checkpoints are untouched.
        FolderError: if an older checkpoint cannot be removed.
    """
    target, part = folder / f"{moment.step:06d}", folder / f".{moment.step:06d}.part"
    try:
        with Writing(target):
            _remove_unfinished(path_without_symlinks(folder.parent, folder.name))
            save_policies(part / "policies")
            save_state(part / "state", state)
            _write_manifest(part, moment)
            part.rename(target)
            fsync(folder)
    except FolderError as error:
        shutil.rmtree(part, ignore_errors=True)
        have = ", ".join(f"{s:06d}" for s in intact_steps(folder)) or "none"
        raise CheckpointError(f"checkpoint {error}; whole checkpoints: {have}") from error
    prune(folder, retention)
    return target


def prune(folder: Path, retention: Retention) -> None:
    """Remove the intact checkpoints that `retention` does not keep, and unfinished ones.

    Raises:
        FolderError: if a checkpoint cannot be removed.
    """
    with Writing(folder):
        for old in intact_steps(folder)[: -retention.newest]:
            if old == retention.best:
                continue
            with removal_lock(folder / f"{old:06d}") as unread:
                if unread:
                    # Renamed first: a run that is killed meanwhile must not leave half a checkpoint under its name.
                    shutil.rmtree((folder / f"{old:06d}").rename(folder / f".{old:06d}.old"))
        _remove_unfinished(folder)


def mark_evaluated(folder: Path, step: int, metrics_bytes: int) -> None:
    """Record in checkpoint `step` that its step was evaluated, and that metrics.jsonl holds the step's row.

    Raises:
        FolderError: if the manifest cannot be written.
    """
    path = folder / f"{step:06d}"
    record = {**asdict(verify_sizes(path)), "metrics_bytes": metrics_bytes, "unmeasured": None}
    with Writing(path):
        write_atomically(path / "manifest.json", json.dumps(record, indent=1).encode())
        fsync(path / "manifest.json")
        fsync(path)


def _write_manifest(part: Path, moment: CheckpointMeta) -> None:
    """Flush all files of a new checkpoint to disk, and write their sizes, checksums and tensors into its manifest."""
    sizes, checksums, tensors = {}, {}, {}
    for file in sorted(part.rglob("*")):
        if not file.is_file():
            continue
        name = str(file.relative_to(part))
        sizes[name], checksums[name] = file.stat().st_size, fsync_and_hash(file)
        if file.suffix == ".safetensors":
            tensors[name] = tensor_signatures(file)
    record = {"format": FORMAT, **asdict(moment), "files": sizes, "sha256": checksums, "tensors": tensors}
    manifest = part / "manifest.json"
    manifest.write_text(json.dumps(record, indent=1))
    fsync(manifest)
    for path in (part, *part.rglob("*")):
        if path.is_dir():
            fsync(path)


def _remove_unfinished(folder: Path) -> None:
    """Remove checkpoints that a killed process left half written or half removed."""
    for path in [*folder.glob(".*.part"), *folder.glob(".*.old")]:
        shutil.rmtree(path_without_symlinks(folder, path.name))


def set_aside(folder: Path, after: int) -> None:
    """Rename the checkpoints after step `after`, as the run continues from there. None is deleted."""
    for step in checkpoint_steps(folder):
        if step > after:
            names = (folder / f"{step:06d}.aside{i}" for i in count(1))
            (folder / f"{step:06d}").rename(next(name for name in names if not name.exists()))


def read_checkpoint(folder: Path, step: int) -> tuple[Manifest, dict[str, Any]]:
    """Return the manifest and the state of checkpoint `step`.

    Raises:
        CheckpointError: if a file is missing, cut short, changed or unreadable; the message names it.
    """
    path = folder / f"{step:06d}"
    manifest = verify(path)
    try:
        return manifest, load_state(path / "state")
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(f"checkpoint {path} is damaged: state cannot be read: {error}") from error


def verify(path: Path, below: str = "") -> Manifest:
    """Return the manifest of the checkpoint `path`, after comparing its files with the recorded checksums.

    Only files whose relative path starts with `below` are compared.

    Raises:
        CheckpointError: as `verify_sizes`, or if a file has changed.
    """
    manifest = verify_sizes(path)
    for name, written in manifest.tensors.items():
        if not name.startswith(below):
            continue
        present = tensor_signatures(path / name)
        changed = [tensor for tensor in written.keys() | present.keys() if written.get(tensor) != present.get(tensor)]
        if changed:
            tensor = min(changed)
            now, before = present.get(tensor, "nothing"), written.get(tensor, "nothing")
            raise CheckpointError(f"checkpoint {path} is damaged: {name} has {tensor!r} as {now}; written was {before}")
    for name, digest in manifest.sha256.items():
        if name.startswith(below) and checksum(path / name) != digest:
            raise CheckpointError(f"checkpoint {path} is damaged: {name} has changed since it was written (SHA-256)")
    return manifest


def verify_policies(path: Path) -> Manifest:
    """Return the manifest of the checkpoint `path`, after verifying the policies' files. Raises as `verify`."""
    return verify(path, "policies/")


def verify_sizes(path: Path) -> Manifest:
    """Return the manifest of the checkpoint `path`, after checking the sizes of its files without reading them.

    Raises:
        CheckpointError: if a file is missing or cut short, or a link leads out of the run; the message names it.
    """
    try:
        path_within(path.parents[1], *path.parts[-2:])
    except FolderError as error:
        raise CheckpointError(f"checkpoint {error}") from error
    if not path.is_dir():
        have = ", ".join(f"{s:06d}" for s in checkpoint_steps(path.parent)) or "none"
        raise CheckpointError(f"checkpoint {path}: there is none of this name; checkpoints: {have}")
    try:
        with path_within(path, "manifest.json").open("rb") as opened:
            manifest = TypeAdapter(Manifest).validate_json(opened.read(_MAX_MANIFEST_BYTES))
    except (FolderError, OSError, ValueError) as error:
        why = summarize_error(error).splitlines()[0] if isinstance(error, ValueError) else str(error)
        raise CheckpointError(f"checkpoint {path} is damaged: no readable manifest.json ({why})") from error
    if manifest.format != FORMAT:
        raise CheckpointError(f"checkpoint {path} {other_format(manifest.format)}")
    if path.name != f"{manifest.step:06d}":
        raise CheckpointError(f"checkpoint {path} is damaged: its manifest.json is of step {manifest.step}")
    for name, size in manifest.files.items():
        try:
            file = path_within(path, name)
            present = file.stat().st_size if file.is_file() else None
        except (FolderError, OSError, ValueError) as error:  # a name may be too long, or have a null in it
            raise CheckpointError(f"checkpoint {path} is damaged: {error}") from error
        if present != size:
            problem = "is missing" if present is None else f"has {present} bytes of {size}"
            raise CheckpointError(f"checkpoint {path} is damaged: {name} {problem}")
    if unknown := (manifest.sha256.keys() | manifest.tensors.keys()) - manifest.files.keys():
        raise CheckpointError(
            f"checkpoint {path} is damaged: its manifest.json tells of {min(unknown)}, which is none of its files"
        )
    return manifest


def checkpoint_steps(folder: Path) -> list[int]:
    """Return the steps of all checkpoints under `folder`, intact or damaged, oldest first."""
    names = [path.name for path in folder.glob("*")] if folder.is_dir() else []
    return sorted(step for name in names if (step := step_from_name(name)) is not None)


def step_from_name(name: str) -> int | None:
    """Return the step after which a file or folder is named, such as 40 for `000040`, or None for any other name."""
    return int(name) if name.isdecimal() and f"{int(name):06d}" == name else None


def intact_steps(folder: Path) -> list[int]:
    """Return the steps of the checkpoints without a missing or shortened file, oldest first."""
    return [step for step in checkpoint_steps(folder) if find_damage(folder, step, verify_sizes) is None]


def find_damage(folder: Path, step: int, check: Callable[[Path], Manifest] = verify) -> str | None:
    """Return the damage that `check` finds in checkpoint `step`, or None if it is intact."""
    try:
        check(folder / f"{step:06d}")
    except CheckpointError as error:
        return str(error)
    return None
