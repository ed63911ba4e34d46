"""Stop requests: training may finish its present work within a grace period, and is then interrupted."""

from __future__ import annotations

import math
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

STEP_S = 10.0
"""Grace period of play, credit and evaluations after a stop request, in seconds."""
UPDATE_S = 18.0
"""Grace period of an update after a stop request, in seconds."""
LEAVE_S = 24.0
"""Seconds after a stop request at which a process inside an uninterruptible call exits."""
_CHECK_S = 1.0
"""Seconds between two checks of the grace period."""
_RETRY_S = 5.0
"""Seconds between two interruptions, as a library may swallow the first exception."""
_REQUESTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGXCPU)
_MESSAGE = (
    f"\nstopping after this step, at the latest in {STEP_S:g} s, with a checkpoint; "
    "Ctrl-C once more stops at once, without\n"
)


class StopDeadlineExceeded(KeyboardInterrupt):
    """Work took longer than its grace period after a stop request."""


class StopRequest:
    """Request to stop by Ctrl-C, or by a signal of a scheduler or a closing terminal.

    Present work is interrupted by `StopDeadlineExceeded` at the end of its grace period (see `grace_period`). With a
    grace period of 0, or at a second Ctrl-C, a plain KeyboardInterrupt is raised at once. Ignored signals (`nohup`)
    stay ignored.
    """

    def __init__(self, *, exits: bool = False) -> None:
        """`exits`: exit the process if a call outside Python still runs `LEAVE_S` after a stop request."""
        self.requested = False
        self._exits = exits
        self._requested_at = math.inf
        self._grace_s = LEAVE_S
        """Grace period of the present work, in seconds after the request."""
        self._raised_at = -math.inf
        self._handlers: dict[signal.Signals, Callable[[int, FrameType | None], Any] | int] = {}
        """Signal -> handler to restore."""
        self._wakeup: tuple[int, int] | None = None
        """File descriptor to which Python writes signals, and the descriptor to restore."""

    def __enter__(self) -> StopRequest:
        # Python runs signal handlers in the main thread only; in other threads there is nothing to install.
        if threading.current_thread() is threading.main_thread():
            for number in _REQUESTS:
                if (handler := signal.getsignal(number)) not in (signal.SIG_IGN, None):
                    self._handlers[number] = handler
                    signal.signal(number, self._on_request)
            # SIGURG is ignored by default, so that a late one after `__exit__` does no harm.
            self._handlers[signal.SIGURG] = signal.signal(signal.SIGURG, self._on_check) or signal.SIG_DFL
            # Python writes to the pipe at once, and calls a handler only when the main thread returns from C code.
            reader, writer = os.pipe()
            os.set_blocking(writer, False)
            self._wakeup = writer, signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
            threading.Thread(target=self._watch, args=(reader, threading.get_ident()), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers.clear()
        if self._wakeup:
            writer, before = self._wakeup
            signal.set_wakeup_fd(before)
            os.close(writer)
            self._wakeup = None

    @contextmanager
    def grace_period(self, seconds: float) -> Iterator[None]:
        """After a stop request, let the body run for at most `seconds` (inf: until it returns; 0: stop at once)."""
        before, self._grace_s = self._grace_s, seconds
        try:
            yield
        finally:
            self._grace_s = before

    def _on_request(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not self.requested:
            self.requested, self._requested_at = True, time.monotonic()
            if 0 < self._grace_s != LEAVE_S:
                # `print` is not reentrant, and the signal may have interrupted one.
                with suppress(OSError):
                    os.write(2, _MESSAGE.encode())
        self._on_check(number, frame)

    def _on_check(self, number: int, frame: FrameType | None) -> None:
        """Interrupt the present work if its grace period is over."""
        now = time.monotonic()
        if now - self._requested_at >= self._grace_s and now - self._raised_at >= _RETRY_S:
            self._raised_at = now
            raise StopDeadlineExceeded if self._grace_s else KeyboardInterrupt

    def _watch(self, signals: int, main_thread: int) -> None:
        """Wait in a separate thread for a request; from then on, make the main thread check its grace period."""
        while not (received := os.read(signals, 64)) or set(received).isdisjoint(_REQUESTS):
            if not received:  # closed by `__exit__`
                os.close(signals)
                return
        requested_at = time.monotonic()
        while not _closed_within(_CHECK_S, signals):
            signal.pthread_kill(main_thread, signal.SIGURG)
            if self._exits and math.isfinite(self._grace_s) and time.monotonic() - requested_at > LEAVE_S:
                with suppress(OSError):
                    os.write(2, b"marl: left in the middle of a call that does not end; no checkpoint was added\n")
                os._exit(130)
        os.close(signals)


def _closed_within(seconds: float, pipe: int) -> bool:
    """Return True when the other end of a pipe is closed, or False after `seconds`; bytes read are dropped."""
    deadline = time.monotonic() + seconds
    while (remaining_s := deadline - time.monotonic()) > 0:
        if select.select([pipe], [], [], remaining_s)[0] and not os.read(pipe, 64):
            return True
    return False
