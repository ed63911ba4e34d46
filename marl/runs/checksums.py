"""Checksums of files, flushing to disk, and the shapes and dtypes of tensors in safetensors files."""

from __future__ import annotations

import hashlib
import json
import os
from functools import lru_cache
from pathlib import Path

_MAX_HEADER_BYTES = 10**8
"""Maximum size of a safetensors header, as in safetensors itself."""


def fsync_and_hash(file: Path) -> str:
    """Flush a file to disk, so that it survives a power loss, and return its SHA-256."""
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
        os.fsync(opened.fileno())
    return digest


def fsync(path: Path) -> None:
    """Flush the contents of a file, or the entries of a folder, to disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def checksum(file: Path) -> str:
    """Return a file's SHA-256, cached until the file's inode, size or modification time changes."""
    stat = file.stat()
    return _cached_checksum(file.resolve(), stat.st_ino, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=4096)
def _cached_checksum(file: Path, _inode: int, _size: int, _changed_ns: int) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def tensor_dtypes_and_shapes(file: Path) -> dict[str, str]:
    """Return tensor -> dtype and shape, such as `F32[16, 64]`, of a safetensors file, or {} for any other file."""
    try:
        with file.open("rb") as opened:
            header = json.loads(opened.read(min(int.from_bytes(opened.read(8), "little"), _MAX_HEADER_BYTES)))
        header.pop("__metadata__", None)
        return {name: f"{entry['dtype']}{entry['shape']}" for name, entry in header.items()}
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
        return {}
