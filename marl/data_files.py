"""Tables in files: JSON lines and Parquet."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zstandard

FORMATS = (".jsonl", ".jsonl.zst", ".parquet")


@dataclass(frozen=True, slots=True)
class Rows:
    """A table, and its name in messages."""

    name: str
    columns: tuple[str, ...]
    """Columns that every row has."""
    rows: Sequence[Mapping[str, Any]]
    lines: Sequence[int] = ()
    """The line (from 1) of each row, in a file that has lines."""

    def place(self, index: int) -> str:
        """Return file and line of row `index` (from 0), for messages."""
        return f"{self.name}, " + (f"line {self.lines[index]}" if self.lines else f"row {index + 1}")


def known_format(path: Path) -> Path:
    """Return the path, if `read_file` knows its format.

    Raises:
        ValueError: naming the path and the formats.
    """
    if not path.name.endswith(FORMATS):
        raise ValueError(f"{path}: unknown format {path.suffix!r}; choices: {', '.join(FORMATS)}")
    return path


def read_file(path: Path) -> Rows:
    """Return the table in a file of one of the `FORMATS`.

    Raises:
        ValueError: naming the path, and the line where there is one.
    """
    if not path.is_file():
        raise ValueError(f"path: no such file: {path}")
    rows, lines = _parquet(path) if path.suffix == ".parquet" else _json_lines(path)
    shared = set(rows[0]).intersection(*rows) if rows else set()
    return Rows(str(path), tuple(name for name in (rows[0] if rows else ()) if name in shared), rows, lines)


def _text(path: Path) -> str:
    data = path.read_bytes()
    try:
        if path.suffix == ".zst":
            data = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data), read_across_frames=True).read()
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"path: {path}: not UTF-8 text ({error})") from error
    except zstandard.ZstdError as error:
        raise ValueError(f"path: {path}: not a whole zstd file ({error})") from error


def _json_lines(path: Path) -> tuple[list[dict[str, Any]], list[int]]:
    rows: dict[int, dict[str, Any]] = {}
    for number, line in enumerate(_text(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"path: {path}, line {number}: not JSON ({error})") from error
        if not isinstance(row, dict):
            raise ValueError(f"path: {path}, line {number}: must be an object with columns, got {type(row).__name__}")
        rows[number] = row
    return list(rows.values()), list(rows)


def _parquet(path: Path) -> tuple[list[dict[str, Any]], list[int]]:
    try:
        from pyarrow import ArrowInvalid
        from pyarrow.parquet import read_table
    except ImportError as error:
        raise ValueError(f"path: {path}: reading Parquet needs pyarrow: pip install marl[data]") from error
    try:
        return read_table(path).to_pylist(), []
    except ArrowInvalid as error:
        raise ValueError(f"path: {path}: no Parquet file ({error})") from error
