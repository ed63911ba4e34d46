"""Checksums of files, and files that are sure to be on the disk."""

from __future__ import annotations

import hashlib
import os
from functools import lru_cache
from pathlib import Path


def settle(file: Path) -> str:
    """Bring a file's contents to the disk, so that they outlive a loss of power; return its SHA-256."""
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
        os.fsync(opened.fileno())
    return digest


def settle_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
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
