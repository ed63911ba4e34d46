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

from marl.core.errors import RaiseRunFolderErrorOnFailedWrite, RunFolderError

LOCK_FILE = ".lock"
"""File in a run's folder that the training process locks, and that holds its process id."""
_CONTENTION = (errno.EWOULDBLOCK, errno.EACCES)
"""Error numbers of `flock` if another process holds a conflicting lock."""


@contextmanager
def run_lock(run_path: Path) -> Iterator[None]:
    """Create a run's folder and hold its lock, so that no other process trains there.

    Raises:
        RunFolderError: if another process holds the lock, or the folder cannot be written or locked.
    """
    path = run_path / LOCK_FILE
    with RaiseRunFolderErrorOnFailedWrite(run_path):
        run_path.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        with RaiseRunFolderErrorOnFailedWrite(run_path):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in _CONTENTION:
                    raise
                owner = os.read(file, 20).decode(errors="replace").strip() or "another one"
                raise RunFolderError(f"{run_path} is being trained by process {owner}") from None
            # The file is truncated only under the lock: until then it may hold the id of the process that trains.
            os.ftruncate(file, 0)
            os.write(file, str(os.getpid()).encode())
        yield
    finally:
        # The lock file stays: after a removal, two processes could lock different files of this name.
        os.close(file)


def lock_owner(run_path: Path) -> str | None:
    """Return the id of the process that holds a run's lock, or None if no process holds it.

    The check takes a shared lock for a moment, and a run that starts at this moment is refused. The status file gives
    the same information without a lock, but may be outdated.
    """
    try:
        # O_NONBLOCK: in a stranger's folder the lock file may be a named pipe, whose opening would wait for a writer.
        file = os.open(run_path / LOCK_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        written = os.read(file, 20).decode(errors="replace").strip()
        return written if written.isdigit() else "of unknown number"
    except OSError:  # the file system supports no locks
        return None
    finally:
        os.close(file)
    return None


@contextmanager
def checkpoint_lock(checkpoint: Path, *, removing: bool = False) -> Iterator[bool]:
    """Lock a checkpoint against removal, or with `removing` against readers; yield True if the lock was acquired.

    The call does not wait: it yields False if another process holds a conflicting lock. After True, a reader must check
    that the folder still exists, because it may have been removed before. On a file system without locks the call
    yields True and protects nothing.
    """
    kind = fcntl.LOCK_EX if removing else fcntl.LOCK_SH
    try:
        # Network file systems grant an exclusive lock only on a file opened for writing.
        file = (checkpoint / "manifest.json").open("r+b" if removing else "rb")
    except OSError:
        yield True  # no manifest, so there is no checkpoint to protect
        return
    with file:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
            acquired = True
        except OSError as error:
            acquired = error.errno not in _CONTENTION
        yield acquired
