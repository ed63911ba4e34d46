"""Version of a run's file format. Runs of another version are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from marl.host.untrusted_text import parse_json
from marl.runs.symlinks import path_within
from marl.scenario.yaml_text import ScenarioError

FORMAT = 2
"""Format of run folders and checkpoints that this version reads and writes."""

_MAX_ENVIRONMENT_BYTES = 2**24


def read_environment(run: Path) -> dict[str, Any]:
    """Return the contents of environment.json in the folder `run`, or {} without this file.

    Raises:
        ValueError: if the file is no JSON object.
        RunFolderError: if the file is a link that leads out of the folder, or a pipe.
    """
    file = path_within(run, "environment.json")
    if not file.exists():
        return {}
    with file.open("rb") as opened:
        written = parse_json(opened.read(_MAX_ENVIRONMENT_BYTES).decode())
    if not isinstance(written, dict):
        raise ValueError(f"must be an object, got {type(written).__name__}")
    return written


def unsupported_format_message(written_format: int) -> str:
    """Return the last part of an error message about files in another format than `FORMAT`."""
    return f"was written by another version of marl (format {written_format}; this version reads {FORMAT}): train anew"


def require_current_format(run: Path) -> None:
    """Check that the folder `run` has the current format. A folder without environment.json passes.

    Raises:
        ScenarioError: if another version of marl wrote it.
    """
    try:
        written = read_environment(run)
    except ValueError:
        return  # a damaged environment.json is reported by the commands that use it
    written_format = written.get("format", 1) if written else FORMAT
    if written_format != FORMAT:
        raise ScenarioError(f"{run} {unsupported_format_message(written_format)}")
