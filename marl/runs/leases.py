"""Leases of checkpoints: one that somebody reads is not removed meanwhile. Nobody waits for anybody.

A lease is a lock on the checkpoint's manifest.json, of which the operating system lets go when its process ends.
"""

from __future__ import annotations

import errno
import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_HELD = (errno.EWOULDBLOCK, errno.EACCES)
_NEEDED = {fcntl.LOCK_SH: "rb", fcntl.LOCK_EX: "r+b"}
"""Kind of lock -> mode in which network file systems want the file opened."""


@contextmanager
def leased(checkpoint: Path) -> Iterator[bool]:
    """Keep a checkpoint's folder from being removed by the run that trains, as long as this context lasts.

    Yields False if it is being removed. Otherwise look again whether it is there: it may have gone before. Where files
    cannot be locked, nothing is kept.
    """
    with _locked(checkpoint, fcntl.LOCK_SH) as free:
        yield free


@contextmanager
def unleased(checkpoint: Path) -> Iterator[bool]:
    """Yield True if nobody has leased a checkpoint's folder, and nobody can as long as this context lasts."""
    with _locked(checkpoint, fcntl.LOCK_EX) as free:
        yield free


@contextmanager
def _locked(checkpoint: Path, kind: int) -> Iterator[bool]:
    """Yield False if another lock is in the way; True as well where there is nothing that could be locked."""
    try:
        file = (checkpoint / "manifest.json").open(_NEEDED[kind])
    except OSError:
        yield True
        return
    with file:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
            free = True
        except OSError as error:
            free = error.errno not in _HELD
        yield free
