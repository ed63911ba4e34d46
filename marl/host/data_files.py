"""Reader of data files (JSON lines, plain or zstd-compressed, CSV and Parquet) within limits of size and rows."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import zstandard
from pydantic import ValidationError

from marl.host.parquet_files import parquet_rows
from marl.host.untrusted_text import parse_json, replace_surrogates

FORMATS = (".jsonl", ".jsonl.zst", ".csv", ".parquet")
_RowsAndLineNumbers = tuple[list[dict[str, Any]], list[int]]
"""Rows of a data file (name of a column -> value), and the line number of each row."""
MAX_LINE_BYTES = 2**26
"""Maximum size of a decompressed line in bytes."""
MAX_FILE_BYTES = 2**32
"""Maximum size of a decompressed file in bytes. In memory, the rows are several times larger."""
MAX_EXPANSION, EXPANSION_FREE_BYTES = 1000, 2**28
"""Maximum ratio of the decompressed size to the compressed size, for a file that decompresses to more than
`EXPANSION_FREE_BYTES`. Recorded episodes reach ratios of about 30."""
MAX_ROWS = 10**7
"""Maximum number of rows (lines) of a file."""
MAX_COLUMNS = 10_000
"""Maximum number of columns of a CSV file."""
MAX_VALUES = 5 * 10**7
"""Maximum number of values of a CSV or Parquet file: rows times columns, and the items of lists."""
MAX_CONTAINERS = 2 * 10**7
"""Maximum number of lists and objects in a file of JSON lines. `[],` has three bytes, and 64 bytes in memory."""
_COMPRESSED_CHUNK = 2**10
"""Number of compressed bytes that are read at once. A byte can expand to 32 KiB, so a chunk has at most 32 MiB."""
_MAX_PROBLEMS = 1000
"""Maximum number of problems of a record of which the first is described. Pydantic describes all or none."""
_SHOWN_CHARACTERS = 80
"""Maximum length of a value in an error message."""
_ERRORS_WITHOUT_VALUE = frozenset({"missing", "missing_argument", "missing_keyword_only_argument", "json_invalid"})
"""Pydantic's types of errors whose input is not the value of the named field."""


@dataclass(frozen=True, slots=True)
class DataTable:
    """Rows of a data file, with the file's name for error messages."""

    name: str
    columns: tuple[str, ...]
    """Names of the columns that all rows have."""
    rows: Sequence[Mapping[str, Any]]
    """Rows as dicts: name of a column -> value."""
    lines: Sequence[int] = ()
    """Line number (from 1) of each row; empty for a Parquet file, which has no lines."""

    def row_location(self, row_index: int) -> str:
        """Return the file and line of row `row_index` (from 0), for error messages."""
        return f"{self.name}, " + (f"line {self.lines[row_index]}" if self.lines else f"row {row_index + 1}")


def check_data_file_format(path: Path) -> Path:
    """Return `path` unchanged if `read_data_table` can read its format.

    Raises:
        ValueError: if the format is unknown, naming the path and the known formats.
    """
    if not path.name.endswith(FORMATS):
        raise ValueError(f"{path}: unknown format {path.suffix!r}; choices: {', '.join(FORMATS)}")
    return path


def read_data_table(path: Path) -> DataTable:
    """Return the table in the data file `path`, which has one of the `FORMATS`.

    Raises:
        ValueError: if the file cannot be read, naming the path, the line if there is one, and an exceeded limit.
    """
    if not path.is_file():
        raise ValueError(f"path: no such file: {path}")
    try:
        rows, lines = _READERS.get(path.suffix, _read_json_lines)(path)
    except (ValueError, OSError) as error:
        raise ValueError(f"path: {path}: {error}") from error
    if not rows:
        return DataTable(str(path), (), rows, lines)
    # Only columns that all JSON lines have are columns of the table.
    shared = set(rows[0]).intersection(*rows)
    return DataTable(str(path), tuple(filter(shared.__contains__, rows[0])), rows, lines)


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file with their line feeds. A file named `*.zst` is decompressed on the fly.

    Raises:
        ValueError: if the zstd data are cut short or damaged, or the file exceeds `MAX_LINE_BYTES`, `MAX_FILE_BYTES`,
            `MAX_EXPANSION` or `MAX_ROWS`. The message lacks the path, which callers add.
    """
    size = 0
    expansion_limit = max(EXPANSION_FREE_BYTES, MAX_EXPANSION * path.stat().st_size)
    with path.open("rb") as file:
        lines: BinaryIO = io.BufferedReader(_DecompressedStream(file)) if path.suffix == ".zst" else file
        for number, line in enumerate(iter(partial(lines.readline, MAX_LINE_BYTES + 1), b""), 1):
            size += len(line)
            # `readline` returns at most one byte beyond the limit, so that memory stays bounded.
            if len(line) > MAX_LINE_BYTES:
                raise ValueError(f"line {number} is longer than the limit of {MAX_LINE_BYTES >> 20} MiB")
            if size > expansion_limit and path.suffix == ".zst":
                raise ValueError(f"it unpacks to more than {MAX_EXPANSION} times its size")
            check_file_limits(size, number)
            yield line


def check_file_limits(unpacked_bytes: int, row_count: int) -> None:
    """Raise ValueError if a table is larger than `MAX_FILE_BYTES` when decoded, or has more rows than `MAX_ROWS`."""
    if unpacked_bytes > MAX_FILE_BYTES:
        raise ValueError(f"unpacked, it is larger than the limit of {MAX_FILE_BYTES >> 30} GiB")
    if row_count > MAX_ROWS:
        raise ValueError(f"it has more rows than the limit of {MAX_ROWS:,}")


def one_line_error_message(error: ValueError) -> str:
    """Return the message of `error` about an invalid record in one line.

    Pydantic's message of several lines becomes a sentence with the field, the problem and the value of the first
    problem, and the number of further problems.
    """
    if isinstance(error, ValidationError) and error.error_count() > _MAX_PROBLEMS:
        return f"{error.error_count()} problems"
    if not isinstance(error, ValidationError):
        return " ".join(str(error).split("\n"))
    first = error.errors(include_url=False, include_context=False)[0]
    field, problem = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
    problem = problem[:1].lower() + problem[1:]
    sentence = f"{field}: {problem}" if field else problem
    # `got …` is left out for errors whose input is a full section or an unreadable text, and so too long.
    if first["type"] not in _ERRORS_WITHOUT_VALUE:
        value = repr(first["input"])
        sentence += f" (got {value if len(value) <= _SHOWN_CHARACTERS else value[: _SHOWN_CHARACTERS - 3] + '...'})"
    others = error.error_count() - 1
    return f"{sentence}, and {others} more problem{'s' * (others > 1)}" if others else sentence


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` to a temporary file and rename it to `path`, so that `path` (or a link there) is replaced whole."""
    temporary = path.with_name(path.name + ".part")
    # An old temporary file is removed, and mode `x` creates a new one, so that no link at this path is followed.
    temporary.unlink(missing_ok=True)
    with temporary.open("xb") as file:
        file.write(data)
    temporary.replace(path)


class _DecompressedStream(io.RawIOBase):
    """Stream of the decompressed bytes of a zstd file, which needs bounded memory even for a hostile file."""

    # zstandard's own stream reader is not used, because it accepts a truncated file.

    def __init__(self, file: BinaryIO) -> None:
        self._chunks, self._ready = _decompressed_chunks(file), memoryview(b"")

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


def _decompressed_chunks(file: BinaryIO) -> Iterator[bytes]:
    """Yield the decompressed chunks of a zstd file, which may consist of several frames."""
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


def _read_json_lines(path: Path) -> _RowsAndLineNumbers:
    """Return the rows of a file of JSON lines, and their line numbers. Blank lines are skipped."""
    rows: dict[int, dict[str, Any]] = {}
    containers = 0
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        # Brackets are counted before parsing, also inside of strings: this is fast, and never counts too few.
        containers += line.count(b"[") + line.count(b"{")
        if containers > MAX_CONTAINERS:
            raise ValueError(f"line {number}: more lists and objects than the limit of {MAX_CONTAINERS:,} for a file")
        try:
            row = parse_json(line.decode(), only_finite_numbers=True)
        except UnicodeDecodeError as error:
            raise ValueError(f"not UTF-8 text (line {number}: {error})") from error
        except ValueError as error:
            raise ValueError(f"line {number}: not JSON ({error})") from error
        if not isinstance(row, dict):
            raise ValueError(f"line {number}: must be an object with columns, got {type(row).__name__}")
        rows[number] = row
    return list(rows.values()), list(rows)


def _read_csv(path: Path) -> _RowsAndLineNumbers:
    """Return the rows of a CSV file and their line numbers. The header decides the separator: `,`, `;` or a tab."""
    lines = read_lines(path)
    rows: dict[int, dict[str, Any]] = {}
    try:
        # `utf-8-sig` drops the byte order mark with which spreadsheet programs begin a UTF-8 file.
        header = next(lines, b"").decode("utf-8-sig")
        texts = chain([header], map(bytes.decode, lines))
        table = csv.reader(texts, delimiter=max(",;\t", key=header.count), strict=True, skipinitialspace=True)
        columns = list(map(str.strip, next(table, [])))
        if len(columns) > MAX_COLUMNS:
            raise ValueError(f"line 1: {len(columns):,} columns; the limit is {MAX_COLUMNS:,}")
        if "" in columns or not columns:
            raise ValueError(f"line 1: a column without a name; the header has {str(columns)[:200]}")
        if repeated := [name for name, count in Counter(columns).items() if count > 1]:
            raise ValueError(f"line 1: two columns are called {repeated[0][:80]!r}")
        for cells in table:
            if len(cells) != len(columns) and cells:
                raise ValueError(f"line {table.line_num}: {len(cells)} cells, but the header has {len(columns)}")
            if len(rows) * len(columns) > MAX_VALUES:
                raise ValueError(f"it has more values than the limit of {MAX_VALUES:,}")
            if cells:
                rows[table.line_num] = dict(zip(columns, map(replace_surrogates, cells), strict=True))
    except csv.Error as error:
        raise ValueError(f"no CSV after {len(rows)} rows ({error})") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 text after {len(rows)} rows ({error.reason}); save it as UTF-8") from error
    return list(rows.values()), list(rows)


def _read_parquet(path: Path) -> _RowsAndLineNumbers:
    """Return the rows of a Parquet file, which has no line numbers."""
    rows: list[dict[str, Any]] = []
    for batch in parquet_rows(path, MAX_VALUES, MAX_FILE_BYTES):
        check_file_limits(0, len(rows) + len(batch))
        rows += batch
    return rows, []


_READERS = {".csv": _read_csv, ".parquet": _read_parquet}
"""File suffix -> function that reads (rows, line numbers). Files with another known suffix are JSON lines."""
