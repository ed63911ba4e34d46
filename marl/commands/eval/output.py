"""Result files (JSON) that the subcommands of `marl eval` and `marl best-response` write."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from marl.core.errors import RaiseRunFolderErrorOnFailedWrite
from marl.host.data_files import write_atomically
from marl.scenario.load import ScenarioError


def create_output_folder(file: Path | None) -> None:
    """Create the folder of `file` before a long measurement starts.

    Raises:
        ScenarioError: if the name of the file does not end in .json.
        RunFolderError: if the folder cannot be created.
    """
    if file is None:
        return
    if file.suffix != ".json":
        raise ScenarioError(f"--out {file}: no such format {file.suffix!r}; choices: .json")
    with RaiseRunFolderErrorOnFailedWrite(file):
        file.parent.mkdir(parents=True, exist_ok=True)


def replace_nonfinite_by_none(metric_values: Mapping[str, float]) -> dict[str, float | None]:
    """Return `metric_values` with infinities and NaN, which JSON cannot hold, replaced by None."""
    # A confidence interval of a single episode, for instance, has infinite bounds.
    return {name: value if math.isfinite(value) else None for name, value in metric_values.items()}


def write_json_results(file: Path, content: Mapping[str, Any], *, indent: int | None = 1) -> None:
    """Write `content` as JSON in one atomic step, so that an interrupted command leaves no partial file."""
    with RaiseRunFolderErrorOnFailedWrite(file):
        write_atomically(file, f"{json.dumps(content, indent=indent, allow_nan=False)}\n".encode())
