"""Batches of failed updates, saved so that `marl rerun` can repeat the failure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter, with_config
from safetensors import SafetensorError

from marl.core.errors import Writing
from marl.core.state import load_state, save_state
from marl.core.types import Sample
from marl.host.data_files import summarize_error
from marl.protocols import Learner
from marl.runs.symlinks import path_within


def _codec() -> TypeAdapter[list[Sample]]:
    # A batch often fails because of infinite or NaN log-probabilities or advantages, which JSON needs as constants.
    codable = with_config(ConfigDict(ser_json_inf_nan="constants"))(Sample)
    return TypeAdapter(list[codable])  # type: ignore[valid-type]


def save_failed_batch(folder: Path, learner: Learner, samples: list[Sample]) -> None:
    """Write the samples of a failed update, and the learner's state before the update.

    Raises:
        FolderError: if the files cannot be written.
    """
    with Writing(folder):
        save_state(folder / "learner", learner.state_dict())
        (folder / "samples.json").write_bytes(_codec().dump_json(samples))


def load_failed_batch(folder: Path) -> tuple[dict[str, Any], list[Sample]]:
    """Return the learner's state and the samples written by `save_failed_batch`.

    Raises:
        FolderError: if a file is a symbolic link that leads out of `folder`.
        ValueError: if `folder` holds no saved batch, or one that cannot be read.
    """
    file = path_within(folder, "samples.json")
    if not file.is_file():
        raise ValueError(f"{folder}: no kept batch here (no samples.json)")
    for name in ("state.json", "state.safetensors"):
        path_within(folder, "learner", name)
    try:
        return load_state(folder / "learner"), _codec().validate_json(file.read_bytes())
    except (OSError, ValueError, SafetensorError) as error:
        why = summarize_error(error) if isinstance(error, ValueError) else str(error)
        raise ValueError(f"{folder}: the kept batch cannot be read: {why}") from error
