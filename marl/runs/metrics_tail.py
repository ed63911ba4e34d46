"""Newest rows of metrics.jsonl, read from the end of the file, and then only what is added to it."""

from __future__ import annotations

import json
import os
from collections import deque
from pathlib import Path
from typing import Any, BinaryIO

from marl.core.errors import FolderError
from marl.host.outside import parse_json
from marl.runs.symlinks import path_within

MAX_READ_BYTES = 4 << 20
"""Most bytes that are read of the file at once. Of more, the last ones are."""
Row = dict[str, Any]


class MetricsTail:
    """The last rows of a run's metrics. The file may grow, be cut back or begin anew at any moment."""

    def __init__(self, run: Path, max_rows: int = 512) -> None:
        """Take up to `most` rows."""
        self._run = run
        self._rows: deque[Row] = deque(maxlen=max_rows)
        self._file = (0, 0)
        self._offset = 0
        """Bytes of the file up to the first line that was not whole yet."""

    @property
    def rows(self) -> list[Row]:
        """Return the rows, oldest first."""
        return list(self._rows)

    def update(self) -> list[Row]:
        """Read what was added since the last call; return those of its rows that are among the last.

        Raises:
            FolderError: if a line is no row, or the file is a link that leads out of the run's folder.
        """
        path = path_within(self._run, "metrics.jsonl")
        try:
            with path.open("rb") as file:
                return self._read(file)
        except FileNotFoundError:
            self._restart((0, 0))
            return []

    def _read(self, file: BinaryIO) -> list[Row]:
        status = os.fstat(file.fileno())
        identity = (status.st_dev, status.st_ino)
        if identity != self._file or status.st_size < self._offset:
            self._restart(identity)
        try:
            return self._add(file, status.st_size)
        except ValueError:
            # A run that went on from a checkpoint has cut the file back, and it has grown beyond this place since.
            self._restart(identity)
        try:
            return self._add(file, status.st_size)
        except ValueError as error:
            raise FolderError(f"{self._run / 'metrics.jsonl'}: no rows of metrics: {error}") from error

    def _restart(self, identity: tuple[int, int]) -> None:
        self._rows.clear()
        self._file, self._offset = identity, 0

    def _add(self, file: BinaryIO, size: int) -> list[Row]:
        begin = max(self._offset, size - MAX_READ_BYTES)
        cut = begin > self._offset  # then the first line is the end of one
        file.seek(begin)
        text = file.read(size - begin)
        whole = text.rfind(b"\n") + 1
        lines = text[:whole].split(b"\n")[1 if cut else 0 : -1]
        rows = [_row(line) for line in lines[-(self._rows.maxlen or 0) :]]
        for row in rows:
            while self._rows and self._rows[-1]["step"] >= row["step"]:
                self._rows.pop()  # the run went on from an earlier step
            self._rows.append(row)
        self._offset = begin + whole
        return rows


def _row(line: bytes) -> Row:
    row = parse_json(line.decode())
    if not isinstance(row, dict) or type(row.get("step")) is not int:
        raise ValueError(f"must be an object with a whole number `step`, got {json.dumps(row)[:60]}")
    return {name: value for name, value in row.items() if isinstance(value, int | float)}
