"""Version of a run's file format. Runs of another version are refused."""

from __future__ import annotations

from pathlib import Path

from marl.host.outside import parse_json
from marl.runs.symlinks import path_within
from marl.scenario.yaml_text import ScenarioError

FORMAT = 2
"""Format of run folders and checkpoints that this version reads and writes."""


def other_format(written: int) -> str:
    """Return the error message for files in the format `written`."""
    return f"was written by another version of marl (format {written}; this version reads {FORMAT}): train anew"


def expect_format(run: Path) -> None:
    """Check that the folder `run` has the current format. A folder without environment.json passes.

    Raises:
        ScenarioError: if another version of marl wrote it.
    """
    file = path_within(run, "environment.json")
    if not file.exists():
        return
    try:
        written = parse_json(file.read_text(encoding="utf-8"))
    except ValueError:
        return  # readers of the contents report the damage
    written_format = written.get("format", 1) if isinstance(written, dict) else FORMAT
    if written_format != FORMAT:
        raise ScenarioError(f"{run} {other_format(written_format)}")
