"""Files of figures that the subcommands of `marl eval` and `marl best-response` write."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from marl.core.errors import Writing
from marl.host.data_files import write_atomically
from marl.scenario.load import ScenarioError


def prepare_output(file: Path | None) -> None:
    """Create the folder of `file` before a long measurement starts.

    Raises:
        ScenarioError: if the name of the file does not end in .json.
        FolderError: if the folder cannot be created.
    """
    if file is None:
        return
    if file.suffix != ".json":
        raise ScenarioError(f"--out {file}: no such format {file.suffix!r}; choices: .json")
    with Writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)


def finite_or_null(figures: Mapping[str, float]) -> dict[str, float | None]:
    """Return `figures` with None for infinities and NaN, which JSON cannot hold."""
    # The interval of a single episode has infinite bounds.
    return {name: value if math.isfinite(value) else None for name, value in figures.items()}


def write_figures_file(file: Path, content: Mapping[str, Any], *, indent: int | None = 1) -> None:
    """Write `content` as JSON in one atomic step, so that an interrupted command leaves no partial file."""
    with Writing(file):
        write_atomically(file, f"{json.dumps(content, indent=indent, allow_nan=False)}\n".encode())
