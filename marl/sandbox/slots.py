"""How many sandboxes run at once on this machine, whatever number of processes starts them."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from marl.errors import RunError

SLOTS = os.cpu_count() or 1
_LOOK_AGAIN_S = 0.005


@contextmanager
def slot() -> Iterator[int]:
    """Wait for one of the `SLOTS` places and hold it; gives its number. The kernel frees it if the holder dies."""
    folder = _folder()
    while True:
        for number in range(SLOTS):
            descriptor = os.open(folder / str(number), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                continue
            try:
                yield number
            finally:
                os.close(descriptor)
            return
        time.sleep(_LOOK_AGAIN_S)


def _folder() -> Path:
    """Where this user's places are.

    Raises:
        RunError: if somebody else has put a folder of this name there.
    """
    folder = Path(tempfile.gettempdir()) / f"marl-sandboxes-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise RunError(f"sandbox: {folder} belongs to somebody else; remove it, or set TMPDIR to a folder of your own")
    return folder
