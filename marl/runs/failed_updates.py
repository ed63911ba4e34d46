"""A batch on which a learner failed, kept so that the failure can be studied and repeated."""

from __future__ import annotations

from pathlib import Path

from pydantic import ConfigDict, TypeAdapter, with_config

from marl.errors import Writing
from marl.protocols import Learner
from marl.runs.run_folder import RunFolder
from marl.state import load_state, save_state
from marl.training.run import build
from marl.types import Metrics, Sample


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


def rerun(folder: Path) -> Metrics:
    """Do the update kept in RUN/failed/STEP/POLICY again; raises what it raised then.

    Raises:
        ValueError: if `folder` holds no kept batch.
    """
    file = folder / "samples.json"
    if not file.is_file():
        raise ValueError(f"{folder}: no kept batch here (no samples.json)")
    learner = build(RunFolder(folder.resolve().parents[2]).scenario()).learners[folder.resolve().name]
    learner.load_state_dict(load_state(folder / "learner"))
    return learner.update(_codec().validate_json(file.read_bytes()))
