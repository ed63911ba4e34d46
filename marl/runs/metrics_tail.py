"""Newest rows of metrics.jsonl: first the end of the file is read, then only the added lines."""

from __future__ import annotations

import json
import os
from collections import deque
from pathlib import Path
from typing import Any, BinaryIO

from marl.core.errors import RunFolderError
from marl.host.untrusted_text import parse_json
from marl.runs.metric_rows import CRC
from marl.runs.symlinks import path_within

MAX_READ_BYTES = 4 << 20
"""Maximum number of bytes read at once. If more was added to the file, only the end is read."""
Row = dict[str, Any]
"""Metrics of one step: `step`, and metric -> value."""


class MetricsTail:
    """Newest rows of a run's metrics.jsonl. The file may grow, shrink or be replaced at any moment."""

    def __init__(self, run: Path, max_rows: int = 512) -> None:
        self._run = run
        self._rows: deque[Row] = deque(maxlen=max_rows)
        self._file = (0, 0)
        """Device and inode of the file, which differ after the file was replaced."""
        self._offset = 0
        """Number of bytes that were read: all lines except an incomplete last line."""

    @property
    def rows(self) -> list[Row]:
        """Return the newest rows (at most `max_rows`), oldest first."""
        return list(self._rows)

    def read_new_rows(self) -> list[Row]:
        """Read the rows that were added to the file since the last call, and return them (at most `max_rows`).

        Raises:
            RunFolderError: if a line is not a row, or the file is a link that leads out of the run's folder.
        """
        path = path_within(self._run, "metrics.jsonl")
        try:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                identity = (status.st_dev, status.st_ino)
                if identity != self._file or status.st_size < self._offset:
                    self._clear_rows_for_new_file(identity)
                try:
                    return self._read_rows_up_to_offset(file, status.st_size)
                except ValueError:
                    # A resumed run has truncated the file, which has grown again: the old offset is inside of a line.
                    self._clear_rows_for_new_file(identity)
                return self._read_rows_up_to_offset(file, status.st_size)
        except FileNotFoundError:
            self._clear_rows_for_new_file((0, 0))
            return []
        except ValueError as error:
            raise RunFolderError(f"{self._run / 'metrics.jsonl'}: no rows of metrics: {error}") from error

    def _clear_rows_for_new_file(self, device_and_inode: tuple[int, int]) -> None:
        """Remove all rows, so that the file with the device and inode `device_and_inode` is read from its beginning."""
        self._rows.clear()
        self._file, self._offset = device_and_inode, 0

    def _read_rows_up_to_offset(self, file: BinaryIO, end_offset: int) -> list[Row]:
        """Append the complete rows of `file` between the offset and `end_offset` [bytes], and return them.

        Raises:
            ValueError: if a line is not a row.
        """
        start = max(self._offset, end_offset - MAX_READ_BYTES)
        # If older lines are skipped, reading starts inside of a line, which is dropped.
        first_line = 1 if start > self._offset else 0
        file.seek(start)
        text = file.read(end_offset - start)
        end = text.rfind(b"\n") + 1
        lines = text[:end].split(b"\n")[first_line:-1]
        rows = []
        for line in lines[-(self._rows.maxlen or 0) :]:
            row = parse_json(line.decode())
            if not isinstance(row, dict) or type(row.get("step")) is not int:
                raise ValueError(f"must be an object with a whole number `step`, got {json.dumps(row)[:60]}")
            numbers = {name: value for name, value in row.items() if isinstance(value, int | float)}
            numbers.pop(CRC, None)  # checksums are verified elsewhere, by `RunFolder.rows`
            rows.append(numbers)
        for row in rows:
            while self._rows and self._rows[-1]["step"] >= row["step"]:
                self._rows.pop()  # a resumed run repeats steps: the new row replaces the old one
            self._rows.append(row)
        self._offset = start + end
        return rows
