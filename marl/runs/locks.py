"""File locks of a run: one process trains in its folder, and a checkpoint that is being read is not removed.

All are `flock` locks, which the operating system releases when their process ends, even by SIGKILL. No call waits for a
lock.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from marl.core.errors import FolderError, Writing

LOCK_FILE = ".lock"
"""File in a run's folder that the training process locks, and that holds its process id."""
_CONTENTION = (errno.EWOULDBLOCK, errno.EACCES)
_FILE_MODES = {fcntl.LOCK_SH: "rb", fcntl.LOCK_EX: "r+b"}
"""Kind of lock -> mode in which network file systems require the file to be opened."""


@contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Create a run's folder and hold its lock, so that no other process trains there.

    Raises:
        FolderError: if another process holds the lock, or the folder cannot be written or locked.
    """
    path = folder / LOCK_FILE
    with Writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        with Writing(folder):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in _CONTENTION:
                    raise
                owner = os.read(file, 20).decode(errors="replace").strip() or "another one"
                raise FolderError(f"{folder} is being trained by process {owner}") from None
            # Truncated only now: before, the file may hold the id of the process that trains.
            os.ftruncate(file, 0)
            os.write(file, str(os.getpid()).encode())
        yield
    finally:
        # The file stays: removing it would let two processes hold locks on different files of this name.
        os.close(file)


def lock_owner(folder: Path) -> str | None:
    """Return the id of the process that holds a run's lock, or None if no process holds it.

    The check takes a shared lock for a moment, and a run that starts at this moment is refused. So use the status file
    where it suffices.
    """
    try:
        file = os.open(folder / LOCK_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        written = os.read(file, 20).decode(errors="replace").strip()
        return written if written.isdigit() else "of unknown number"
    except OSError:  # a file system without locks
        return None
    finally:
        os.close(file)
    return None


@contextmanager
def read_lock(checkpoint: Path) -> Iterator[bool]:
    """Keep the training process from removing a checkpoint's folder while this context lasts.

    Yields False if the checkpoint is being removed. After True, check that the folder still exists: it may have been
    removed before. On a file system without locks the context yields True and protects nothing.
    """
    with _manifest_lock(checkpoint, fcntl.LOCK_SH) as acquired:
        yield acquired


@contextmanager
def removal_lock(checkpoint: Path) -> Iterator[bool]:
    """Yield True if no process reads a checkpoint's folder, and keep readers away while this context lasts."""
    with _manifest_lock(checkpoint, fcntl.LOCK_EX) as acquired:
        yield acquired


@contextmanager
def _manifest_lock(checkpoint: Path, kind: int) -> Iterator[bool]:
    """Lock a checkpoint's manifest; yield False if another process holds a conflicting lock."""
    try:
        file = (checkpoint / "manifest.json").open(_FILE_MODES[kind])
    except OSError:
        yield True  # no manifest, so nothing to protect
        return
    with file:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
            acquired = True
        except OSError as error:
            acquired = error.errno not in _CONTENTION
        yield acquired
