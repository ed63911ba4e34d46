"""Watchdog for plug-in code in this process: interrupts a call that exceeds its time limit, and names it in the
error."""

from __future__ import annotations

import atexit
import math
import signal
import threading
import traceback
from collections.abc import Callable
from time import monotonic
from types import FrameType, TracebackType

from marl.core.errors import RunError

_CHECKS_PER_LIMIT = 4
"""Number of checks of a watchdog within its limit. Each check after the limit interrupts the call again, in case that
the call swallowed the interruption."""
_MAIN_THREAD = threading.main_thread().ident
"""The only thread to which Python delivers signals."""


class HangError(RunError):
    """A call of a game, a role or a credit rule exceeded its time limit. The message names the call."""


class _Overdue(BaseException):
    """Interrupts a call that exceeds its limit. A subclass of Exception could be caught by a loop in that call."""


class CallWatchdog:
    """Context in which a call may take `limit_s` seconds. It has no effect outside the main thread.

    A nested watchdog, such as that of a game played by a credit rule, suspends the outer one and restarts the outer
    limit when it ends. All share one timer (SIGALRM) with few checks, so that entering the context costs next to
    nothing.
    """

    __slots__ = ("_limit_s", "_name", "_setting", "_started")

    def __init__(self, name: Callable[[], str], limit_s: float, setting: str = "schedule.deadline_s") -> None:
        """`name` returns the name of the call for the error message; `setting` is the setting of the limit."""
        self._name, self._limit_s, self._setting, self._started = name, limit_s, setting, math.inf

    def __enter__(self) -> None:
        if threading.get_ident() == _MAIN_THREAD:
            self._started = monotonic()
            _active.append(self)
            if self._limit_s < _timer.limit_s:
                _timer.start(self._limit_s)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if threading.get_ident() != _MAIN_THREAD:
            return
        _active.pop()
        if _active:
            _active[-1]._started = monotonic()
        if kind is _Overdue:
            # The last frame is the timer's signal handler, the one before it the interrupted line.
            line = traceback.extract_tb(tb)[-2]
            raise HangError(
                f"{self._name()} did not come back within {self._limit_s:g} s ({self._setting}); "
                f"it was at {line.filename}:{line.lineno}, in {line.name}"
            ) from error

    @property
    def overdue(self) -> bool:
        """Return True if the call has exceeded its limit."""
        return monotonic() - self._started >= self._limit_s


def suspend_watchdog() -> CallWatchdog:
    """Return a context without a time limit, in which the watchdog around it is suspended."""
    return CallWatchdog(str, math.inf)


class _Timer:
    """Timer that checks the innermost watchdog at intervals, and stops when no watchdog is active."""

    _stops_at_exit = False
    limit_s = math.inf
    """Shortest limit for which the interval between checks is short enough; infinite while the timer is stopped."""

    def start(self, limit_s: float) -> None:
        if not self._stops_at_exit:
            self._stops_at_exit = True
            # Python drops its signal handlers at exit, and SIGALRM without a handler would kill the process.
            atexit.register(signal.setitimer, signal.ITIMER_REAL, 0.0)
        self.limit_s = limit_s
        signal.signal(signal.SIGALRM, self._check)
        signal.setitimer(signal.ITIMER_REAL, limit_s / _CHECKS_PER_LIMIT, limit_s / _CHECKS_PER_LIMIT)

    def _check(self, number: int, frame: FrameType | None) -> None:
        if not _active:
            self.limit_s = math.inf
            signal.setitimer(signal.ITIMER_REAL, 0.0)
        elif _active[-1].overdue:
            raise _Overdue


_timer = _Timer()
_active: list[CallWatchdog] = []
"""Active watchdogs, the outermost first. Only the time of the innermost, the last one, runs."""
