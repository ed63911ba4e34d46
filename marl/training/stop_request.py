"""Stop requests: training may finish its current work within a grace period, and is then interrupted."""

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
"""Grace period of play, credit and evaluations after a stop request [s]."""
UPDATE_S = 18.0
"""Grace period of an update after a stop request [s]."""
LEAVE_S = 24.0
"""Time after a stop request at which a process inside an uninterruptible call exits [s]."""
_CHECK_S = 1.0
"""Time between two checks of the grace period [s]."""
_RETRY_S = 5.0
"""Time between two interruptions [s]: a library may swallow the exception of the first."""
_REQUESTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGXCPU)
_MESSAGE = (
    f"\nstopping after this step, at the latest in {STEP_S:g} s, with a checkpoint; "
    "Ctrl-C once more stops at once, without\n"
)


class StopDeadlineExceeded(KeyboardInterrupt):
    """Interrupt of work that took longer than its grace period after a stop request."""


class StopRequest:
    """Context manager that receives requests to stop: Ctrl-C, or the signal of a scheduler or a closing terminal.

    At the end of its grace period (see `grace_period`), the current work is interrupted by `StopDeadlineExceeded`. With
    a grace period of 0, or at a second Ctrl-C, a plain KeyboardInterrupt is raised at once. Signals that the process
    ignores (`nohup`) stay ignored.
    """

    def __init__(self, *, exits: bool = False) -> None:
        """`exits`: True to exit the process if a call outside Python still runs `LEAVE_S` after a stop request."""
        self.requested = False
        self._exits = exits
        self._requested_at = math.inf
        self._grace_s = LEAVE_S
        """Grace period of the current work [s after the request]."""
        self._raised_at = -math.inf
        self._handlers: dict[signal.Signals, Callable[[int, FrameType | None], Any] | int] = {}
        """Signal -> its handler outside this context, which is restored at the end."""
        self._wakeup: tuple[int, int] | None = None
        """File descriptor to which Python writes signals, and the earlier one, which is restored at the end."""

    def __enter__(self) -> StopRequest:
        # Python allows signal handlers only in the main thread.
        if threading.current_thread() is threading.main_thread():
            for number in _REQUESTS:
                if (handler := signal.getsignal(number)) not in (signal.SIG_IGN, None):
                    self._handlers[number] = handler
                    signal.signal(number, self._handle_stop_signal)
            # The watcher thread sends SIGURG: after `__exit__` it is ignored, so it may come late.
            self._handlers[signal.SIGURG] = (
                signal.signal(signal.SIGURG, self._interrupt_after_grace_period) or signal.SIG_DFL
            )
            # Python writes signals into the pipe at once, while handlers wait until the main thread leaves C code.
            reader, writer = os.pipe()
            os.set_blocking(writer, False)
            self._wakeup = writer, signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
            threading.Thread(target=self._watch_signals, args=(reader, threading.get_ident()), daemon=True).start()
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
        """After a stop request, let the body run for at most `seconds` (inf: until it returns, 0: not at all)."""
        before, self._grace_s = self._grace_s, seconds
        try:
            yield
        finally:
            self._grace_s = before

    def _handle_stop_signal(self, number: int, frame: FrameType | None) -> None:
        """Handle a stop signal: store the request, or stop at once at a second Ctrl-C."""
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not self.requested:
            self.requested, self._requested_at = True, time.monotonic()
            if 0 < self._grace_s != LEAVE_S:
                # `os.write` replaces `print`, which is not reentrant: the signal may have interrupted a `print`.
                with suppress(OSError):
                    os.write(2, _MESSAGE.encode())
        self._interrupt_after_grace_period(number, frame)

    def _interrupt_after_grace_period(self, number: int, frame: FrameType | None) -> None:
        """Interrupt the current work if its grace period is over. This method is also the handler of SIGURG."""
        now = time.monotonic()
        if now - self._requested_at >= self._grace_s and now - self._raised_at >= _RETRY_S:
            self._raised_at = now
            raise StopDeadlineExceeded if self._grace_s else KeyboardInterrupt

    def _watch_signals(self, signal_pipe: int, main_thread_id: int) -> None:
        """Wait in a separate thread for a stop signal; then make the main thread check the grace period regularly."""
        while not (received := os.read(signal_pipe, 64)) or set(received).isdisjoint(_REQUESTS):
            if not received:  # an empty read: `__exit__` has closed the pipe
                os.close(signal_pipe)
                return
        requested_at = time.monotonic()
        while not _is_pipe_closed_within(_CHECK_S, signal_pipe):
            signal.pthread_kill(main_thread_id, signal.SIGURG)
            if self._exits and math.isfinite(self._grace_s) and time.monotonic() - requested_at > LEAVE_S:
                with suppress(OSError):
                    os.write(2, b"marl: left in the middle of a call that does not end; no checkpoint was added\n")
                os._exit(130)
        os.close(signal_pipe)


def _is_pipe_closed_within(max_wait_s: float, pipe_descriptor: int) -> bool:
    """Return True once the other end of `pipe_descriptor` is closed, or False after `max_wait_s`.

    Bytes in the pipe are discarded.
    """
    deadline = time.monotonic() + max_wait_s
    while (remaining_s := deadline - time.monotonic()) > 0:
        if select.select([pipe_descriptor], [], [], remaining_s)[0] and not os.read(pipe_descriptor, 64):
            return True
    return False
