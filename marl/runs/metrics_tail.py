"""Newest rows of metrics.jsonl: first the end of the file is read, then only the added lines."""

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
"""Maximum number of bytes read at once. Of a longer addition, only the end is read."""
Row = dict[str, Any]


class MetricsTail:
    """Newest rows of a run's metrics. The file may grow, shrink or be replaced at any moment."""

    def __init__(self, run: Path, max_rows: int = 512) -> None:
        self._run = run
        self._rows: deque[Row] = deque(maxlen=max_rows)
        self._file = (0, 0)
        """Device and inode of the file, which tell a replaced file from a longer one."""
        self._offset = 0
        """Offset of the first line that was still incomplete [bytes]."""

    @property
    def rows(self) -> list[Row]:
        """Return the rows, oldest first."""
        return list(self._rows)

    def update(self) -> list[Row]:
        """Read the rows that were added since the last call, and return those that are still held.

        Raises:
            FolderError: if a line is not a row, or the file is a link that leads out of the run's folder.
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
            return self._append_rows(file, status.st_size)
        except ValueError:
            # A resumed run may have cut the file back, and it has grown beyond the old offset since.
            self._restart(identity)
        try:
            return self._append_rows(file, status.st_size)
        except ValueError as error:
            raise FolderError(f"{self._run / 'metrics.jsonl'}: no rows of metrics: {error}") from error

    def _restart(self, identity: tuple[int, int]) -> None:
        self._rows.clear()
        self._file, self._offset = identity, 0

    def _append_rows(self, file: BinaryIO, size: int) -> list[Row]:
        start = max(self._offset, size - MAX_READ_BYTES)
        skipped = start > self._offset  # then the first line lacks its beginning
        file.seek(start)
        text = file.read(size - start)
        end = text.rfind(b"\n") + 1
        lines = text[:end].split(b"\n")[1 if skipped else 0 : -1]
        rows = []
        for line in lines[-(self._rows.maxlen or 0) :]:
            row = parse_json(line.decode())
            if not isinstance(row, dict) or type(row.get("step")) is not int:
                raise ValueError(f"must be an object with a whole number `step`, got {json.dumps(row)[:60]}")
            rows.append({name: value for name, value in row.items() if isinstance(value, int | float)})
        for row in rows:
            while self._rows and self._rows[-1]["step"] >= row["step"]:
                self._rows.pop()  # the run was resumed from an earlier step
            self._rows.append(row)
        self._offset = start + end
        return rows
