"""Files of data: JSON lines, packed or not, CSV and Parquet. What comes from outside is read within limits."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import zstandard
from pydantic import ValidationError

from marl.text import read_json, well_formed

FORMATS = (".jsonl", ".jsonl.zst", ".csv", ".parquet")
LONGEST_LINE = 2**26
"""Most bytes of a line, unpacked."""
LARGEST_FILE = 2**32
"""Most bytes of a file, unpacked: rows are held in memory, where they take several times as much."""
MOST_ROWS = 10**7
"""Most lines or rows of a file."""
_PACKED_PIECE = 2**10
"""Bytes that are unpacked at once. A packed byte holds up to 32 KiB, so that is at most 32 MiB."""
_MOST_PROBLEMS = 20
_BATCH = 1000
"""Rows of Parquet that are read at once."""


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
        ValueError: naming the path, the line where there is one, and the limit (of this module) if one is exceeded.
    """
    if not path.is_file():
        raise ValueError(f"path: no such file: {path}")
    try:
        rows, lines = _READERS.get(path.suffix, _json_lines)(path)
    except (ValueError, OSError) as error:
        raise ValueError(f"path: {path}: {error}") from error
    shared = set(rows[0]).intersection(*rows) if rows else set()
    return Rows(str(path), tuple(name for name in (rows[0] if rows else ()) if name in shared), rows, lines)


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file, with their line feeds; one whose name ends in `.zst` is unpacked on the way.

    Raises:
        ValueError: if it is no whole zstd file, or exceeds `LONGEST_LINE`, `LARGEST_FILE` or `MOST_ROWS`; callers name
            the path.
    """
    size = 0
    with path.open("rb") as file:
        lines: BinaryIO = io.BufferedReader(_Unpacked(file)) if path.suffix == ".zst" else file
        for number, line in enumerate(iter(partial(lines.readline, LONGEST_LINE + 1), b""), 1):
            size += len(line)
            if len(line) > LONGEST_LINE:
                raise ValueError(f"line {number} is longer than the limit of {LONGEST_LINE >> 20} MiB")
            _expect_within_limits(size, number)
            yield line


def _expect_within_limits(size: int, rows: int) -> None:
    if size > LARGEST_FILE:
        raise ValueError(f"unpacked, it is larger than the limit of {LARGEST_FILE >> 30} GiB")
    if rows > MOST_ROWS:
        raise ValueError(f"it has more rows than the limit of {MOST_ROWS:,}")


def problems(error: ValueError) -> str:
    """Return what is wrong with a record; of very many faults, how many there are."""
    if isinstance(error, ValidationError) and error.error_count() > _MOST_PROBLEMS:
        return f"{error.error_count()} problems"
    return str(error)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file whole or not at all, under another name that is then changed. Links in the way are replaced."""
    part = path.with_name(path.name + ".part")
    part.unlink(missing_ok=True)
    with part.open("xb") as file:
        file.write(data)
    part.replace(path)


class _Unpacked(io.RawIOBase):
    """Unpacks a zstd file piece by piece, so that no more than a few MiB are held, whatever the file claims.

    zstandard's own reader takes a file that was cut short for a whole one.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._pieces, self._ready = _unpack(file), memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._ready = memoryview(piece)
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        return count


def _unpack(file: BinaryIO) -> Iterator[bytes]:
    unpacker = zstandard.ZstdDecompressor().decompressobj()
    begun = True
    try:
        for piece in iter(partial(file.read, _PACKED_PIECE), b""):
            rest = piece
            while rest:
                if not begun:
                    unpacker, begun = zstandard.ZstdDecompressor().decompressobj(), True
                yield unpacker.decompress(rest)
                rest, begun = unpacker.unused_data, not unpacker.eof
    except zstandard.ZstdError as error:
        raise ValueError(f"not a whole zstd file ({error})") from error
    if begun:
        raise ValueError("not a whole zstd file (it was cut short)")


def _json_lines(path: Path) -> tuple[list[dict[str, Any]], list[int]]:
    rows: dict[int, dict[str, Any]] = {}
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        try:
            row = read_json(line.decode(), finite=True)
        except UnicodeDecodeError as error:
            raise ValueError(f"not UTF-8 text (line {number}: {error})") from error
        except ValueError as error:
            raise ValueError(f"line {number}: not JSON ({error})") from error
        if not isinstance(row, dict):
            raise ValueError(f"line {number}: must be an object with columns, got {type(row).__name__}")
        rows[number] = row
    return list(rows.values()), list(rows)


def _csv(path: Path) -> tuple[list[dict[str, Any]], list[int]]:
    """Return the rows below a header, which shows what stands between cells (, ; or a tab). Every cell is a text."""
    texts = (line.decode("utf-8-sig" if number == 0 else "utf-8") for number, line in enumerate(read_lines(path)))
    rows: dict[int, dict[str, Any]] = {}
    try:
        header = next(texts, "")
        table = csv.reader(
            chain([header], texts), delimiter=max(",;\t", key=header.count), strict=True, skipinitialspace=True
        )
        columns = [name.strip() for name in next(table, [])]
        _check_header(columns)
        for cells in table:
            if len(cells) != len(columns) and cells:
                raise ValueError(f"line {table.line_num}: {len(cells)} cells, but the header has {len(columns)}")
            if cells:
                rows[table.line_num] = dict(zip(columns, map(well_formed, cells), strict=True))
    except csv.Error as error:
        raise ValueError(f"no CSV after {len(rows)} rows ({error})") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 text after {len(rows)} rows ({error.reason}); save it as UTF-8") from error
    return list(rows.values()), list(rows)


def _check_header(columns: Sequence[str]) -> None:
    if twice := next((name for i, name in enumerate(columns) if name in columns[:i]), None):
        raise ValueError(f"line 1: two columns are called {twice!r}")
    if "" in columns or not columns:
        raise ValueError(f"line 1: a column without a name; the header has {columns}")


def _parquet(path: Path) -> tuple[list[dict[str, Any]], list[int]]:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise ValueError("reading Parquet needs pyarrow: pip install 'marl-llm[data]'") from error
    rows: list[dict[str, Any]] = []
    size = 0
    try:
        with ParquetFile(path) as file:
            for batch in file.iter_batches(_BATCH):
                size += batch.nbytes
                _expect_within_limits(size, len(rows) + batch.num_rows)
                rows += batch.to_pylist()
    except (ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"no Parquet file ({error})") from error
    return rows, []


_READERS = {".csv": _csv, ".parquet": _parquet}
"""Suffix -> function that returns the rows of a file, and their lines; others are JSON lines."""
