"""Checksums of the rows of metrics.jsonl, which show changed bits and missing rows.

The last entry of a row, `crc32`, is the CRC-32 of the row without this entry, begun with the checksum of the row before
it. A changed, added or removed row therefore shows at the next row.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

CRC = "crc32"
"""Key of the checksum in a row."""
_CRC_ENTRY = re.compile(rb', "crc32": (\d{1,10})\}\n$')


def metrics_line_with_checksum(row: Mapping[str, float], previous_crc: int) -> tuple[bytes, int]:
    """Return the line of `row` with its checksum, and the checksum. `previous_crc`: that of the previous row, or 0."""
    text = json.dumps(row)
    crc = zlib.crc32(text.encode(), previous_crc)
    return f'{text[:-1]}, "{CRC}": {crc}}}\n'.encode(), crc


def last_row_checksum(lines: Iterable[bytes]) -> int:
    """Return the checksum of the last complete row, or 0 without one."""
    crc = 0
    for line in lines:
        if entry := _CRC_ENTRY.search(line):
            crc = int(entry[1])
    return crc


@dataclass(slots=True)
class RowChecksumChain:
    """Verifier of rows in the order of the file. Rows of older versions, which may come first, have no checksum."""

    _last_crc: int | None = None
    """Checksum of the last row, or None before the first row with a checksum."""

    def verify_row(self, line: bytes) -> bytes:
        """Return the row in `line` without its checksum.

        Raises:
            ValueError: if the checksum is missing or wrong.
        """
        entry = _CRC_ENTRY.search(line)
        if entry is None:
            if self._last_crc is not None:
                raise ValueError("its checksum is missing, so the row was changed")
            return line
        body, crc = line[: entry.start()] + b"}", int(entry[1])
        if zlib.crc32(body, self._last_crc or 0) != crc:
            raise ValueError("its checksum does not fit: the row was changed, or rows before it are missing")
        self._last_crc = crc
        return body
