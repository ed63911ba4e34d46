"""Batches on which a learner failed, kept so that the failure can be studied and repeated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter, with_config
from safetensors import SafetensorError

from marl.data_files import problems
from marl.errors import Writing
from marl.protocols import Learner
from marl.runs.links import inside
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
        FolderError: if a file is a symbolic link that leads out of `folder`.
        ValueError: if `folder` holds no kept batch, or one that cannot be read.
    """
    file = inside(folder, "samples.json")
    if not file.is_file():
        raise ValueError(f"{folder}: no kept batch here (no samples.json)")
    for name in ("state.json", "state.safetensors"):
        inside(folder, "learner", name)
    try:
        return load_state(folder / "learner"), _codec().validate_json(file.read_bytes())
    except (OSError, ValueError, SafetensorError) as error:
        why = problems(error) if isinstance(error, ValueError) else str(error)
        raise ValueError(f"{folder}: the kept batch cannot be read: {why}") from error
