"""Batches of failed updates, saved so that `marl rerun` can repeat the failure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter, with_config
from safetensors import SafetensorError

from marl.core.errors import RaiseRunFolderErrorOnFailedWrite
from marl.core.state import load_state, save_state
from marl.core.types import Sample
from marl.host.data_files import one_line_error_message
from marl.protocols import Learner
from marl.runs.symlinks import path_within


def _samples_codec() -> TypeAdapter[list[Sample]]:
    # A batch often fails because of infinite or NaN numbers, which JSON can hold only as constants.
    codable = with_config(ConfigDict(ser_json_inf_nan="constants"))(Sample)
    return TypeAdapter(list[codable])  # type: ignore[valid-type]


def save_failed_batch(batch_folder: Path, learner: Learner, samples: list[Sample]) -> None:
    """Write the samples of a failed update, and the learner's state before the update.

    Raises:
        RunFolderError: if the files cannot be written.
    """
    with RaiseRunFolderErrorOnFailedWrite(batch_folder):
        save_state(batch_folder / "learner", learner.state_dict())
        (batch_folder / "samples.json").write_bytes(_samples_codec().dump_json(samples))


def load_failed_batch(batch_folder: Path) -> tuple[dict[str, Any], list[Sample]]:
    """Return the learner's state and the samples of a failed update, as written by `save_failed_batch`.

    Raises:
        RunFolderError: if a file is a symbolic link that leads out of `batch_folder`.
        ValueError: if `batch_folder` holds no saved batch, or the batch cannot be read.
    """
    file = path_within(batch_folder, "samples.json")
    if not file.is_file():
        raise ValueError(f"{batch_folder}: no kept batch here (no samples.json)")
    for path in (batch_folder / "learner").rglob("*"):
        path_within(batch_folder, *path.relative_to(batch_folder).parts)
    try:
        return load_state(batch_folder / "learner"), _samples_codec().validate_json(file.read_bytes())
    except (OSError, ValueError, SafetensorError) as error:
        why = one_line_error_message(error) if isinstance(error, ValueError) else str(error)
        raise ValueError(f"{batch_folder}: the kept batch cannot be read: {why}") from error
