"""Watchdog for plug-in code in this process: interrupts a call that exceeds its time limit, and names it in the
error."""

from __future__ import annotations

import atexit
import math
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from threading import get_ident, main_thread
from time import monotonic
from types import FrameType, TracebackType

from marl.core.errors import RunError

_CHECKS_PER_LIMIT = 4
"""Number of checks of a watchdog within its limit. Each check after the limit interrupts the call again, because the
call may have swallowed the last interruption."""
_MAIN_THREAD = main_thread().ident
"""Identifier of the main thread, the only thread to which Python delivers signals."""


class CallTimeoutError(RunError):
    """A call of a game, a role or a credit rule exceeded its time limit. The message names the call."""


class _TimeLimitExceeded(BaseException):
    """Interrupts a call that exceeds its limit. A subclass of Exception could be caught by a loop in that call."""


@dataclass(slots=True)
class CallWatchdog:
    """Context manager that interrupts a call after `limit_s` seconds. It has no effect outside the main thread.

    A nested watchdog, such as the watchdog of a game played by a credit rule, suspends the outer watchdog and restarts
    the outer limit when it ends. All watchdogs share one timer (SIGALRM) with few checks, so they cost next to nothing.
    """

    call_name: Callable[[], str]
    """Function that returns the name of the call for the error message."""
    limit_s: float
    """Maximum duration of the call in seconds; `math.inf` only suspends the outer watchdog."""
    setting: str = "schedule.deadline_s"
    """Setting of the limit, for the error message."""
    started: float = math.inf
    """Time at which the call began or was resumed, by `time.monotonic`."""

    def __enter__(self) -> None:
        if get_ident() == _MAIN_THREAD:
            self.started = monotonic()
            _active.append(self)
            if self.limit_s < _timer.limit_s:
                _timer.start(self.limit_s)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if get_ident() == _MAIN_THREAD:
            _active.pop()
            # An unlimited watchdog, such as the one around a simulator's engines, never reads its time.
            if _active and _active[-1].limit_s != math.inf:
                _active[-1].started = monotonic()
        if error is not None:
            self.raise_error_of_call(error)

    @property
    def full_call_name(self) -> str:
        """Name of the call for the error message: by default the result of `call_name`."""
        return self.call_name()

    def raise_error_of_call(self, error: BaseException) -> None:
        """Raise the error for `error`, which the call raised, or return to let `error` pass unchanged.

        Raises:
            CallTimeoutError: if the call exceeded its limit; names the interrupted line.
        """
        if isinstance(error, _TimeLimitExceeded):
            # The last frame of the traceback is the timer's signal handler; the frame before it was interrupted.
            line = traceback.extract_tb(error.__traceback__)[-2]
            raise CallTimeoutError(
                f"{self.full_call_name} did not come back within {self.limit_s:g} s ({self.setting}); "
                f"it was at {line.filename}:{line.lineno}, in {line.name}"
            ) from error


class _WatchdogTimer:
    """Timer that checks the innermost watchdog at intervals, and stops when no watchdog is active."""

    _stops_at_exit = False
    """True once the timer's stop is registered for the end of the process."""
    limit_s = math.inf
    """Shortest limit for which the interval between checks is short enough; infinite while the timer is stopped."""

    def start(self, limit_s: float) -> None:
        if not self._stops_at_exit:
            self._stops_at_exit = True
            # Python drops its signal handlers at exit, and SIGALRM without a handler would kill the process.
            atexit.register(signal.setitimer, signal.ITIMER_REAL, 0.0)
        self.limit_s = limit_s
        signal.signal(signal.SIGALRM, self._interrupt_overdue_call)
        signal.setitimer(signal.ITIMER_REAL, limit_s / _CHECKS_PER_LIMIT, limit_s / _CHECKS_PER_LIMIT)

    def _interrupt_overdue_call(self, signal_number: int, stack_frame: FrameType | None) -> None:
        if not _active:
            self.limit_s = math.inf
            signal.setitimer(signal.ITIMER_REAL, 0.0)
        elif monotonic() - _active[-1].started >= _active[-1].limit_s:
            raise _TimeLimitExceeded


_timer = _WatchdogTimer()
_active: list[CallWatchdog] = []
"""Active watchdogs, the outermost first. Only the last watchdog, the innermost, measures time."""
