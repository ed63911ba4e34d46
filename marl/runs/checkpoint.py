"""Checkpoints of a run. A checkpoint is complete or absent: it is written under another name, flushed and renamed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from safetensors import SafetensorError

from marl.core.errors import RaiseRunFolderErrorOnFailedWrite, RunFolderError
from marl.core.state import load_state, save_state
from marl.host.data_files import one_line_error_message, write_atomically
from marl.runs.checksums import checksum, fsync, fsync_and_hash, tensor_dtypes_and_shapes
from marl.runs.locks import checkpoint_lock
from marl.runs.run_format import FORMAT, unsupported_format_message
from marl.runs.symlinks import path_within, path_without_symlinks, require_links_stay_within

_MAX_MANIFEST_BYTES = 2**24


class CheckpointError(RunFolderError):
    """A checkpoint cannot be written or read. The message names the file."""


@dataclass(frozen=True, slots=True)
class CheckpointManifest:
    """Contents of a checkpoint's manifest.json: its files, and the length of metrics.jsonl when it was taken."""

    format: int
    """Version of the file format."""
    step: int
    metrics_bytes: int
    """Length of metrics.jsonl when the checkpoint was written [bytes]."""
    files: dict[str, int]
    """Relative path of each file of the checkpoint -> its size in bytes."""
    sha256: dict[str, str]
    """Relative path of each file of the checkpoint -> its SHA-256."""
    tensors: dict[str, dict[str, str]]
    """Relative path of a safetensors file -> tensor -> dtype and shape, such as `F32[16, 64]`."""
    unmeasured: dict[str, float] | None = None
    """Metrics of the step until its evaluation is done, then None. If set, `metrics_bytes` excludes the step's row."""


@dataclass(frozen=True, slots=True)
class CheckpointMetadata:
    """Fields of a manifest that the caller of `write_checkpoint` supplies. `CheckpointManifest` describes them."""

    step: int
    metrics_bytes: int
    unmeasured: dict[str, float] | None = None


@dataclass(frozen=True, slots=True)
class CheckpointRetention:
    """Rule for keeping checkpoints. All other checkpoints are removed after a new one is written."""

    newest: int
    """Number of the newest checkpoints to keep."""
    best: int | None = None
    """Step of the best checkpoint, which is also kept, or None without a best checkpoint."""


def write_checkpoint(
    checkpoints_folder: Path,
    meta: CheckpointMetadata,
    state: dict[str, Any],
    save_policies: Callable[[Path], None],
    retention: CheckpointRetention,
) -> Path:
    """Write a checkpoint, remove older checkpoints according to `retention`, and return the new folder.

    Args:
        checkpoints_folder: folder of all checkpoints of the run.
        meta: step of the checkpoint, and further fields of its manifest.
        state: state of learners, credit, experience and random numbers.
        save_policies: function that writes a Hugging Face folder for each policy.
        retention: rule for keeping older checkpoints.

    Raises:
        CheckpointError: if the checkpoint cannot be written (read-only folder, full disk). Older ones are untouched.
        RunFolderError: if an older checkpoint cannot be removed.
    """
    target, part = checkpoints_folder / f"{meta.step:06d}", checkpoints_folder / f".{meta.step:06d}.part"
    try:
        with RaiseRunFolderErrorOnFailedWrite(target):
            _remove_unfinished_checkpoints(path_without_symlinks(checkpoints_folder.parent, checkpoints_folder.name))
            save_policies(part / "policies")
            save_state(part / "state", state)
            # Each file is flushed to disk; its size, checksum and tensors go into the manifest, so that damage shows.
            sizes, checksums, tensors = {}, {}, {}
            for file in sorted(filter(Path.is_file, part.rglob("*"))):
                name = str(file.relative_to(part))
                sizes[name], checksums[name] = file.stat().st_size, fsync_and_hash(file)
                if file.suffix == ".safetensors":
                    tensors[name] = tensor_dtypes_and_shapes(file)
            record = {"format": FORMAT, **asdict(meta), "files": sizes, "sha256": checksums, "tensors": tensors}
            (part / "manifest.json").write_text(json.dumps(record, indent=1))
            fsync(part / "manifest.json")
            for path in filter(Path.is_dir, (part, *part.rglob("*"))):
                fsync(path)
            part.rename(target)
            fsync(checkpoints_folder)
    except RunFolderError as error:
        shutil.rmtree(part, ignore_errors=True)
        have = ", ".join(f"{s:06d}" for s in intact_checkpoint_steps(checkpoints_folder)) or "none"
        raise CheckpointError(f"checkpoint {error}; whole checkpoints: {have}") from error
    prune_checkpoints(checkpoints_folder, retention)
    return target


def prune_checkpoints(checkpoints_folder: Path, retention: CheckpointRetention) -> None:
    """Remove the intact checkpoints that `retention` does not keep, and unfinished ones.

    Raises:
        RunFolderError: if a checkpoint cannot be removed.
    """
    with RaiseRunFolderErrorOnFailedWrite(checkpoints_folder):
        for old in intact_checkpoint_steps(checkpoints_folder)[: -retention.newest]:
            if old == retention.best:
                continue
            with checkpoint_lock(checkpoints_folder / f"{old:06d}", removing=True) as unread:
                if unread:
                    # The folder is renamed first, so that a killed run leaves no partial checkpoint of this name.
                    shutil.rmtree((checkpoints_folder / f"{old:06d}").rename(checkpoints_folder / f".{old:06d}.old"))
        _remove_unfinished_checkpoints(checkpoints_folder)


def mark_checkpoint_evaluated(checkpoints_folder: Path, step: int, metrics_bytes: int) -> None:
    """Record in checkpoint `step` that its step was evaluated, and that metrics.jsonl holds the step's row.

    `metrics_bytes` is the length of metrics.jsonl with this row.

    Raises:
        RunFolderError: if the manifest cannot be written.
    """
    path = checkpoints_folder / f"{step:06d}"
    record = {**asdict(verify_file_sizes(path)), "metrics_bytes": metrics_bytes, "unmeasured": None}
    with RaiseRunFolderErrorOnFailedWrite(path):
        write_atomically(path / "manifest.json", json.dumps(record, indent=1).encode())
        fsync(path / "manifest.json")
        fsync(path)


def _remove_unfinished_checkpoints(checkpoints_folder: Path) -> None:
    """Remove checkpoints that a killed process left half written or half removed."""
    for path in [*checkpoints_folder.glob(".*.part"), *checkpoints_folder.glob(".*.old")]:
        shutil.rmtree(path_without_symlinks(checkpoints_folder, path.name))


def rename_checkpoints_after(checkpoints_folder: Path, last_kept_step: int) -> None:
    """Rename the checkpoints after step `last_kept_step` to `STEP.asideN`, because the run continues from
    `last_kept_step`."""
    for step in checkpoint_steps(checkpoints_folder):
        if step > last_kept_step:
            number = 1
            while (free := checkpoints_folder / f"{step:06d}.aside{number}").exists():
                number += 1
            (checkpoints_folder / f"{step:06d}").rename(free)


def read_checkpoint(checkpoints_folder: Path, step: int) -> tuple[CheckpointManifest, dict[str, Any]]:
    """Return the manifest and the state of checkpoint `step`.

    Raises:
        CheckpointError: if a file is missing, cut short, changed or unreadable; the message names it.
    """
    path = checkpoints_folder / f"{step:06d}"
    manifest = verify_checksums(path)
    try:
        return manifest, load_state(path / "state")
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(f"checkpoint {path} is damaged: state cannot be read: {error}") from error


def verify_checksums(checkpoint: Path, name_prefix: str = "") -> CheckpointManifest:
    """Return the manifest of the checkpoint `checkpoint`, after comparing its files with the recorded checksums.

    Only files whose relative path starts with `name_prefix` are compared (default: all files).

    Raises:
        CheckpointError: if a file is missing or unreadable, has changed or lies outside the run; the message names it.
    """
    manifest = verify_file_sizes(checkpoint)
    try:
        for name, written in manifest.tensors.items():
            if not name.startswith(name_prefix):
                continue
            present = tensor_dtypes_and_shapes(checkpoint / name)
            if changed := written.items() ^ present.items():
                tensor, _ = min(changed)
                now, before = present.get(tensor, "nothing"), written.get(tensor, "nothing")
                raise CheckpointError(
                    f"checkpoint {checkpoint} is damaged: {name} has {tensor!r} as {now}; written was {before}"
                )
        for name, digest in manifest.sha256.items():
            if name.startswith(name_prefix) and checksum(checkpoint / name) != digest:
                raise CheckpointError(
                    f"checkpoint {checkpoint} is damaged: {name} has changed since it was written (SHA-256)"
                )
    except OSError as error:  # such as a file that was removed after its size had been compared
        raise CheckpointError(f"checkpoint {checkpoint} is damaged: {error}") from error
    return manifest


def verify_policy_checksums(checkpoint: Path) -> CheckpointManifest:
    """Return the manifest of the checkpoint `checkpoint`, after comparing the policies' files with their checksums.

    Raises:
        CheckpointError: if a file is missing, has changed or lies outside the run; the message names the file.
    """
    return verify_checksums(checkpoint, "policies/")


def verify_file_sizes(checkpoint: Path) -> CheckpointManifest:
    """Return the manifest of the checkpoint `checkpoint`, after checking the sizes of its files without reading them.

    Raises:
        CheckpointError: if a file is missing or cut short, or a link leads out of the run; the message names it.
    """
    try:
        path_within(checkpoint.parents[1], *checkpoint.parts[-2:])
    except RunFolderError as error:
        raise CheckpointError(f"checkpoint {error}") from error
    if not checkpoint.is_dir():
        have = ", ".join(f"{s:06d}" for s in checkpoint_steps(checkpoint.parent)) or "none"
        raise CheckpointError(f"checkpoint {checkpoint}: there is none of this name; checkpoints: {have}")
    try:
        with path_within(checkpoint, "manifest.json").open("rb") as opened:
            manifest = TypeAdapter(CheckpointManifest).validate_json(opened.read(_MAX_MANIFEST_BYTES))
    except (RunFolderError, OSError, ValueError) as error:
        why = one_line_error_message(error) if isinstance(error, ValueError) else str(error)
        raise CheckpointError(f"checkpoint {checkpoint} is damaged: no readable manifest.json ({why})") from error
    if manifest.format != FORMAT:
        raise CheckpointError(f"checkpoint {checkpoint} {unsupported_format_message(manifest.format)}")
    if checkpoint.name != f"{manifest.step:06d}":
        raise CheckpointError(f"checkpoint {checkpoint} is damaged: its manifest.json is of step {manifest.step}")
    try:
        # All links are checked, because model loaders also read files that the manifest does not list.
        require_links_stay_within(checkpoint)
    except RunFolderError as error:
        raise CheckpointError(f"checkpoint {checkpoint} is damaged: {error}") from error
    for name, size in manifest.files.items():
        try:
            file = path_within(checkpoint, name)
            present = file.stat().st_size if file.is_file() else None
        except (RunFolderError, OSError, ValueError) as error:
            # A damaged manifest may contain a file name that is too long or has a null character.
            raise CheckpointError(f"checkpoint {checkpoint} is damaged: {error}") from error
        if present != size:
            problem = "is missing" if present is None else f"has {present} bytes of {size}"
            raise CheckpointError(f"checkpoint {checkpoint} is damaged: {name} {problem}")
    if unknown := (manifest.sha256.keys() | manifest.tensors.keys()) - manifest.files.keys():
        raise CheckpointError(
            f"checkpoint {checkpoint} is damaged: its manifest.json tells of {min(unknown)}, which is none of its files"
        )
    return manifest


def checkpoint_steps(checkpoints_folder: Path) -> list[int]:
    """Return the steps of all checkpoints under `checkpoints_folder`, intact or damaged, oldest first."""
    steps = [step_in_file_name(path.name) for path in checkpoints_folder.glob("*")]
    return sorted(step for step in steps if step is not None)


def step_in_file_name(name: str) -> int | None:
    """Return the step in the name of a file or folder, such as 40 for `000040`, or None for any other name."""
    return int(name) if name.isdecimal() and f"{int(name):06d}" == name else None


def intact_checkpoint_steps(checkpoints_folder: Path) -> list[int]:
    """Return the steps of the checkpoints in `checkpoints_folder` without a missing or shortened file, in order."""
    return [
        step
        for step in checkpoint_steps(checkpoints_folder)
        if checkpoint_damage_message(checkpoints_folder, step, verify_file_sizes) is None
    ]


def checkpoint_damage_message(
    checkpoints_folder: Path, step: int, verify: Callable[[Path], CheckpointManifest] = verify_checksums
) -> str | None:
    """Return the error message of `verify` for checkpoint `step`, or None if the checkpoint is intact."""
    try:
        verify(checkpoints_folder / f"{step:06d}")
    except CheckpointError as error:
        return str(error)
    return None
