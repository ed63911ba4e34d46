"""Data files: JSON lines (plain or zstd-compressed), CSV and Parquet, read within limits of size and rows."""

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

from marl.host.outside import parse_json, replace_surrogates

FORMATS = (".jsonl", ".jsonl.zst", ".csv", ".parquet")
MAX_LINE_BYTES = 2**26
"""Maximum size of a line, decompressed [bytes]."""
MAX_FILE_BYTES = 2**32
"""Maximum size of a file, decompressed [bytes]. Rows are held in memory, where they take several times as much."""
MAX_ROWS = 10**7
"""Maximum number of lines or rows of a file."""
_COMPRESSED_CHUNK = 2**10
"""Compressed bytes that are read at once. Each can expand to 32 KiB, so a chunk holds at most 32 MiB."""
_MAX_PROBLEMS = 20
"""Maximum number of problems of a record that a message lists."""
_PARQUET_BATCH = 1000
"""Number of Parquet rows that are read at once."""


@dataclass(frozen=True, slots=True)
class DataTable:
    """Rows of a data file, with the file's name for messages."""

    name: str
    columns: tuple[str, ...]
    """Names of the columns that every row has."""
    rows: Sequence[Mapping[str, Any]]
    lines: Sequence[int] = ()
    """Line number (from 1) of each row; empty for a file without lines (Parquet)."""

    def location(self, index: int) -> str:
        """Return the file and line of row `index` (from 0), for messages."""
        return f"{self.name}, " + (f"line {self.lines[index]}" if self.lines else f"row {index + 1}")


def check_format(path: Path) -> Path:
    """Return `path` unchanged if `read_file` can read its format.

    Raises:
        ValueError: if not, naming the path and the known formats.
    """
    if not path.name.endswith(FORMATS):
        raise ValueError(f"{path}: unknown format {path.suffix!r}; choices: {', '.join(FORMATS)}")
    return path


def read_file(path: Path) -> DataTable:
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
    return DataTable(str(path), tuple(name for name in (rows[0] if rows else ()) if name in shared), rows, lines)


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file with their line feeds. A file named `*.zst` is decompressed on the fly.

    Raises:
        ValueError: if the zstd data are cut short or damaged, or the file exceeds `MAX_LINE_BYTES`, `MAX_FILE_BYTES` or
            `MAX_ROWS`. The message lacks the path, which callers add.
    """
    size = 0
    with path.open("rb") as file:
        lines: BinaryIO = io.BufferedReader(_Decompressed(file)) if path.suffix == ".zst" else file
        for number, line in enumerate(iter(partial(lines.readline, MAX_LINE_BYTES + 1), b""), 1):
            size += len(line)
            if len(line) > MAX_LINE_BYTES:
                raise ValueError(f"line {number} is longer than the limit of {MAX_LINE_BYTES >> 20} MiB")
            _check_limits(size, number)
            yield line


def _check_limits(size: int, rows: int) -> None:
    if size > MAX_FILE_BYTES:
        raise ValueError(f"unpacked, it is larger than the limit of {MAX_FILE_BYTES >> 30} GiB")
    if rows > MAX_ROWS:
        raise ValueError(f"it has more rows than the limit of {MAX_ROWS:,}")


def summarize_error(error: ValueError) -> str:
    """Return the message of `error`, or only the number of problems if a record has very many."""
    if isinstance(error, ValidationError) and error.error_count() > _MAX_PROBLEMS:
        return f"{error.error_count()} problems"
    return str(error)


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file completely or not at all: to a temporary name, then renamed. A link at `path` is replaced."""
    part = path.with_name(path.name + ".part")
    part.unlink(missing_ok=True)
    with part.open("xb") as file:
        file.write(data)
    part.replace(path)


class _Decompressed(io.RawIOBase):
    """Stream of the decompressed bytes of a zstd file, which holds at most a few MiB, whatever the file claims."""

    # Not zstandard's own reader, which accepts a file that was cut short.

    def __init__(self, file: BinaryIO) -> None:
        self._chunks, self._ready = _decompress(file), memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._ready = memoryview(chunk)
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        return count


def _decompress(file: BinaryIO) -> Iterator[bytes]:
    """Yield decompressed chunks of one or several zstd frames in a row."""
    decompressor = zstandard.ZstdDecompressor().decompressobj()
    in_frame = True
    try:
        for chunk in iter(partial(file.read, _COMPRESSED_CHUNK), b""):
            remaining = chunk
            while remaining:
                if not in_frame:
                    decompressor, in_frame = zstandard.ZstdDecompressor().decompressobj(), True
                yield decompressor.decompress(remaining)
                remaining, in_frame = decompressor.unused_data, not decompressor.eof
    except zstandard.ZstdError as error:
        raise ValueError(f"not a whole zstd file ({error})") from error
    if in_frame:
        raise ValueError("not a whole zstd file (it was cut short)")


def _json_lines(path: Path) -> tuple[list[dict[str, Any]], list[int]]:
    rows: dict[int, dict[str, Any]] = {}
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        try:
            row = parse_json(line.decode(), finite=True)
        except UnicodeDecodeError as error:
            raise ValueError(f"not UTF-8 text (line {number}: {error})") from error
        except ValueError as error:
            raise ValueError(f"line {number}: not JSON ({error})") from error
        if not isinstance(row, dict):
            raise ValueError(f"line {number}: must be an object with columns, got {type(row).__name__}")
        rows[number] = row
    return list(rows.values()), list(rows)


def _csv(path: Path) -> tuple[list[dict[str, Any]], list[int]]:
    """Return the rows below the header and their line numbers. The header decides the separator: , ; or a tab."""
    texts = (line.decode("utf-8-sig" if number == 0 else "utf-8") for number, line in enumerate(read_lines(path)))
    rows: dict[int, dict[str, Any]] = {}
    try:
        header = next(texts, "")
        table = csv.reader(
            chain([header], texts), delimiter=max(",;\t", key=header.count), strict=True, skipinitialspace=True
        )
        columns = [name.strip() for name in next(table, [])]
        if twice := next((name for i, name in enumerate(columns) if name in columns[:i]), None):
            raise ValueError(f"line 1: two columns are called {twice!r}")
        if "" in columns or not columns:
            raise ValueError(f"line 1: a column without a name; the header has {columns}")
        for cells in table:
            if len(cells) != len(columns) and cells:
                raise ValueError(f"line {table.line_num}: {len(cells)} cells, but the header has {len(columns)}")
            if cells:
                rows[table.line_num] = dict(zip(columns, map(replace_surrogates, cells), strict=True))
    except csv.Error as error:
        raise ValueError(f"no CSV after {len(rows)} rows ({error})") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 text after {len(rows)} rows ({error.reason}); save it as UTF-8") from error
    return list(rows.values()), list(rows)


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
            for batch in file.iter_batches(_PARQUET_BATCH):
                size += batch.nbytes
                _check_limits(size, len(rows) + batch.num_rows)
                rows += batch.to_pylist()
    except (ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"no Parquet file ({error})") from error
    return rows, []


_READERS = {".csv": _csv, ".parquet": _parquet}
"""File suffix -> reader of (rows, line numbers). Every other known suffix means JSON lines."""
