"""Checksums of files, forms of the tensors in them, and files that are sure to be on the disk."""

from __future__ import annotations

import hashlib
import json
import os
from functools import lru_cache
from pathlib import Path

_LARGEST_HEADER = 10**8
"""Most bytes of a safetensors header, as in safetensors itself."""


def settle(file: Path) -> str:
    """Bring a file's contents to the disk, so that they outlive a loss of power; return its SHA-256."""
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
        os.fsync(opened.fileno())
    return digest


def sync(path: Path) -> None:
    """Bring a file's contents, or the names in a folder, to the disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def checksum(file: Path) -> str:
    """Return a file's SHA-256. One that has not changed since is not read again."""
    stat = file.stat()
    return _checksum(file.resolve(), stat.st_ino, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=4096)
def _checksum(file: Path, _inode: int, _size: int, _changed_ns: int) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def forms(file: Path) -> dict[str, str]:
    """Return the tensors of a safetensors file: name -> type and shape, such as `F32[16, 64]`; {} if it is none."""
    try:
        with file.open("rb") as opened:
            header = json.loads(opened.read(min(int.from_bytes(opened.read(8), "little"), _LARGEST_HEADER)))
        tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
        return {name: f"{entry['dtype']}{entry['shape']}" for name, entry in tensors.items()}
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
        return {}
