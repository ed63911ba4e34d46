"""Batches on which a learner failed, kept so that the failure can be studied and repeated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter, with_config

from marl.errors import Writing
from marl.protocols import Learner
from marl.state import load_state, save_state
from marl.types import Sample


def _codec() -> TypeAdapter[list[Sample]]:
    # What is not finite must come back as it was.
    spelled = with_config(ConfigDict(ser_json_inf_nan="constants"))(Sample)
    return TypeAdapter(list[spelled])  # type: ignore[valid-type]


def keep(folder: Path, learner: Learner, samples: list[Sample]) -> None:
    """Write the samples, and the learner as it was when it met the one that failed.

    Raises:
        FolderError: if they cannot be written.
    """
    with Writing(folder):
        save_state(folder / "learner", learner.state_dict())
        (folder / "samples.json").write_bytes(_codec().dump_json(samples))


def read_kept(folder: Path) -> tuple[dict[str, Any], list[Sample]]:
    """Return the learner's state and the samples that `keep` wrote.

    Raises:
        ValueError: if `folder` holds no kept batch.
    """
    file = folder / "samples.json"
    if not file.is_file():
        raise ValueError(f"{folder}: no kept batch here (no samples.json)")
    return load_state(folder / "learner"), _codec().validate_json(file.read_bytes())
