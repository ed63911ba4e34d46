"""Reads rows: JSON lines, Parquet, Hugging Face data sets."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Rows:
    """A table and what to call it in messages."""

    name: str
    columns: tuple[str, ...]
    """Those that every row has."""
    rows: Sequence[Mapping[str, Any]]


def read_file(path: Path) -> Rows:
    """A `.jsonl` or `.parquet` file.

    Raises:
        ValueError: naming the path, and the line where there is one.
    """
    if not path.is_file():
        raise ValueError(f"path: no such file: {path}")
    rows = _parquet(path) if path.suffix == ".parquet" else _json_lines(path)
    shared = set(rows[0]).intersection(*rows) if rows else set()
    return Rows(str(path), tuple(name for name in (rows[0] if rows else ()) if name in shared), rows)


def _json_lines(path: Path) -> list[dict[str, Any]]:
    rows = []
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"path: {path}: not UTF-8 text ({error})") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"path: {path}, line {number}: not JSON ({error})") from error
        if not isinstance(row, dict):
            raise ValueError(f"path: {path}, line {number}: must be an object with columns, got {type(row).__name__}")
        rows.append(row)
    return rows


def _parquet(path: Path) -> list[dict[str, Any]]:
    try:
        from pyarrow import ArrowInvalid
        from pyarrow.parquet import read_table
    except ImportError as error:
        raise ValueError(f"path: {path}: reading Parquet needs pyarrow: pip install marl[data]") from error
    try:
        return read_table(path).to_pylist()
    except ArrowInvalid as error:
        raise ValueError(f"path: {path}: no Parquet file ({error})") from error


def read_split(path: str, name: str | None, revision: str | None, split: str) -> Rows:
    """One split of a Hugging Face data set. Code that comes with a data set is never run.

    Raises:
        ValueError: naming data set and split.
    """
    try:
        from datasets import Dataset, load_dataset
        from datasets.exceptions import DatasetsError
    except ImportError as error:
        raise ValueError(f"path: {path}: data sets need the package `datasets`: pip install marl[data]") from error
    where = f"data set {path}" + (f" ({name})" if name else "") + f", split {split!r}"
    try:
        table = load_dataset(path, name, split=split, revision=revision)
    except (OSError, ValueError, RuntimeError, DatasetsError) as error:
        # A missing data set, a split or configuration that it lacks, no network, a script that would have to be run.
        raise ValueError(f"path: {where}: {error}") from error
    if not isinstance(table, Dataset):
        raise ValueError(f"split: {where}: must name one split")
    return Rows(where, tuple(table.column_names), table.to_list())
