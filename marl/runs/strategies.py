"""Strategies on disk: `strategies/000100.jsonl.zst`, the move probabilities that an evaluation measured, one JSON line
for each situation of a game."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import zstandard
from pydantic import TypeAdapter

from marl.data_files import problems, read_lines, write_whole


@dataclass(frozen=True, slots=True)
class StrategyRow:
    """Move probabilities of a policy in one situation. `game`: its name among several, or ""."""

    game: str
    agent: str
    state: str
    attempt: int
    moves: dict[str, float]
    """Legal move -> probability; the rest to 1 is anything else that the policy may say."""


@cache
def _codec() -> TypeAdapter[StrategyRow]:
    return TypeAdapter(StrategyRow)


def write_strategies(path: Path, rows: Iterable[StrategyRow]) -> None:
    """Write one evaluation's strategies. The file appears whole or not at all."""
    lines = b"".join(_codec().dump_json(row) + b"\n" for row in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, zstandard.ZstdCompressor(write_checksum=True).compress(lines))


def read_strategies(path: Path) -> list[StrategyRow]:
    """Return what `write_strategies` wrote.

    Raises:
        ValueError: if the file is damaged, or exceeds a limit of `marl/data_files.py`.
    """
    try:
        return [_codec().validate_json(line) for line in read_lines(path)]
    except ValueError as error:
        raise ValueError(f"{path}: not a whole file of strategies ({problems(error).splitlines()[0]})") from error
