"""Strategies on disk: `strategies/000100.jsonl.zst` holds the move probabilities measured by one evaluation.

The file has one JSON line for each information state.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import zstandard
from pydantic import TypeAdapter

from marl.host.data_files import one_line_error_message, read_lines, write_atomically


@dataclass(frozen=True, slots=True)
class StrategyRow:
    """Move probabilities of a policy in one information state."""

    game: str
    """Name of the game in a run of several games, else ""."""
    agent: str
    """Agent that decides."""
    state: str
    """Name of the information state."""
    attempt: int
    """Number of earlier answers to the same observation that the game refused."""
    moves: dict[str, float]
    """Legal move -> probability. The remaining probability up to 1 is that of illegal answers."""


_CODEC = TypeAdapter(StrategyRow)


def write_strategies(path: Path, rows: Iterable[StrategyRow]) -> None:
    """Write the strategies of one evaluation, completely or not at all."""
    lines = b"".join(_CODEC.dump_json(row) + b"\n" for row in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, zstandard.ZstdCompressor(write_checksum=True).compress(lines))


def read_strategies(path: Path) -> list[StrategyRow]:
    """Return the strategies of one evaluation, as written by `write_strategies`.

    Raises:
        ValueError: if the file is damaged, or exceeds a limit of `marl/host/data_files.py`.
    """
    try:
        return [*map(_CODEC.validate_json, read_lines(path))]
    except ValueError as error:
        raise ValueError(f"{path}: not a whole file of strategies ({one_line_error_message(error)})") from error
