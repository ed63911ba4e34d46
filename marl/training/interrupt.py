"""A request to stop: what is under way may end, for a while, and is then broken off."""

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
"""Seconds after the request at which play, judging or an evaluation is broken off ..."""
UPDATE_S = 18.0
"""... or an update, ..."""
LEAVE_S = 24.0
"""... and at which a call that cannot be broken off ends with its process."""
_LOOK_S = 1.0
_AGAIN_S = 5.0
"""Seconds between two attempts to break something off, in case the first one was swallowed."""
_REQUESTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGXCPU)
_MESSAGE = (
    f"\nstopping after this step, at the latest in {STEP_S:g} s, with a checkpoint; "
    "Ctrl-C once more stops at once, without\n"
)


class Stopped(KeyboardInterrupt):
    """After a request to stop, something took too long to wait for."""


class Interrupt:
    """Ctrl-C, or a signal by which a scheduler or a closing terminal says that time is up, asks to stop.

    What runs then is broken off, by `Stopped`, when the patience with it is over: see `patient`. Where there is none,
    and after a second Ctrl-C, it is a plain KeyboardInterrupt, at once. Signals that are ignored (`nohup`) stay so.
    """

    def __init__(self, *, exits: bool = False) -> None:
        """`exits`: end the process if one call, out of Python's reach, is still not over `LEAVE_S` after a request."""
        self.requested = False
        self._exits = exits
        self._since = math.inf
        self._patience = LEAVE_S
        """Seconds after the request for which what runs now may go on."""
        self._raised = -math.inf
        self._before: dict[signal.Signals, Callable[[int, FrameType | None], Any] | int] = {}
        self._wakeup: tuple[int, int] | None = None
        """The pipe to which Python writes signals, and the one of whoever was there before."""

    def __enter__(self) -> Interrupt:
        # Python gives signals to the main thread; elsewhere they are for whoever started the thread.
        if threading.current_thread() is threading.main_thread():
            for number in _REQUESTS:
                if (handler := signal.getsignal(number)) not in (signal.SIG_IGN, None):
                    self._before[number] = handler
                    signal.signal(number, self._ask)
            # Ignored by default, so that one that comes late does no harm.
            self._before[signal.SIGURG] = signal.signal(signal.SIGURG, self._look) or signal.SIG_DFL
            self._start_thread()
        return self

    def _start_thread(self) -> None:
        # The pipe hears of a signal at once, a handler only when the main thread is back from the call that it is in.
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        self._wakeup = writer, signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        threading.Thread(target=self._remind, args=(reader, threading.get_ident()), daemon=True).start()

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()
        if self._wakeup:
            writer, before = self._wakeup
            signal.set_wakeup_fd(before)
            os.close(writer)
            self._wakeup = None

    @contextmanager
    def patient(self, seconds: float) -> Iterator[None]:
        """Let what runs in this context go on for so long after a request (infinity: to its end; 0: not at all)."""
        before, self._patience = self._patience, seconds
        try:
            yield
        finally:
            self._patience = before

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not self.requested:
            self.requested, self._since = True, time.monotonic()
            if 0 < self._patience != LEAVE_S:
                # Not print: a signal may come in the middle of one.
                with suppress(OSError):
                    os.write(2, _MESSAGE.encode())
        self._look(number, frame)

    def _look(self, number: int, frame: FrameType | None) -> None:
        """Break off what runs if the patience with it is over."""
        now = time.monotonic()
        if now - self._since >= self._patience and now - self._raised >= _AGAIN_S:
            self._raised = now
            raise Stopped if self._patience else KeyboardInterrupt

    def _remind(self, signals: int, main_thread: int) -> None:
        """Wait for a request, in a thread of its own; from then on, let the main thread look again and again."""
        while not (came := os.read(signals, 64)) or set(came).isdisjoint(_REQUESTS):
            if not came:
                os.close(signals)
                return
        requested_at = time.monotonic()
        while not _closed_within(_LOOK_S, signals):
            signal.pthread_kill(main_thread, signal.SIGURG)
            if self._exits and math.isfinite(self._patience) and time.monotonic() - requested_at > LEAVE_S:
                with suppress(OSError):
                    os.write(2, b"marl: left in the middle of a call that does not end; no checkpoint was added\n")
                os._exit(130)
        os.close(signals)


def _closed_within(seconds: float, pipe: int) -> bool:
    """Return True as soon as the other end of a pipe is closed, or False after so long; what comes is dropped."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if select.select([pipe], [], [], left)[0] and not os.read(pipe, 64):
            return True
    return False
