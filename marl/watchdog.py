"""Watchdog over parts that run in this process: a call that does not come back is broken off and named."""

from __future__ import annotations

import atexit
import math
import signal
import threading
import traceback
from collections.abc import Callable
from time import monotonic
from types import FrameType, TracebackType

from marl.errors import RunError

_LOOKS = 4
"""Looks at a watch in its time; one that is overdue is broken off at each of them, in case that was swallowed."""
_MAIN_THREAD = threading.main_thread().ident
"""Signals reach no other thread."""


class HangError(RunError):
    """Code of a game, a role or a credit rule does not come back; the message names it."""


class _Overdue(BaseException):
    """Breaks off what a watch is over. No plain exception, as code in a loop may catch those."""


class Watch:
    """Context in which a call may take `limit_s` seconds; does nothing outside the main thread.

    A watch inside it, such as one over a game that a credit rule plays, suspends it, and starts its time anew at its
    end. It uses SIGALRM and its timer, which looks now and then, so that a watch costs next to nothing.
    """

    __slots__ = ("_began", "_limit_s", "_name", "_setting")

    def __init__(self, name: Callable[[], str], limit_s: float, setting: str = "schedule.deadline_s") -> None:
        """`name` says what does not come back; `setting` is where the limit comes from."""
        self._name, self._limit_s, self._setting, self._began = name, limit_s, setting, math.inf

    def __enter__(self) -> None:
        if threading.get_ident() == _MAIN_THREAD:
            self._began = monotonic()
            _open.append(self)
            if self._limit_s < _timer.limit_s:
                _timer.start(self._limit_s)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if threading.get_ident() != _MAIN_THREAD:
            return
        _open.pop()
        if _open:
            _open[-1]._began = monotonic()
        if kind is _Overdue:
            raise HangError(
                f"{self._name()} did not come back within {self._limit_s:g} s ({self._setting}); "
                f"it was at {_last_line(tb)}"
            ) from error

    @property
    def overdue(self) -> bool:
        """Return True if what it is over should have come back."""
        return monotonic() - self._began >= self._limit_s


def unwatched() -> Watch:
    """Return a context that suspends the watch around it without a limit of its own."""
    return Watch(str, math.inf)


class _Timer:
    """Timer that looks at the innermost watch, and stops by itself when there is none."""

    _stops_at_exit = False
    limit_s = math.inf
    """Shortest limit of a watch that it looks often enough for; infinite while it is stopped."""

    def start(self, limit_s: float) -> None:
        if not self._stops_at_exit:
            self._stops_at_exit = True
            # While Python ends it gives up its handlers, and then a tick would kill the process.
            atexit.register(signal.setitimer, signal.ITIMER_REAL, 0.0)
        self.limit_s = limit_s
        signal.signal(signal.SIGALRM, self._look)
        signal.setitimer(signal.ITIMER_REAL, limit_s / _LOOKS, limit_s / _LOOKS)

    def _look(self, number: int, frame: FrameType | None) -> None:
        if not _open:
            self.limit_s = math.inf
            signal.setitimer(signal.ITIMER_REAL, 0.0)
        elif _open[-1].overdue:
            raise _Overdue


_timer = _Timer()
_open: list[Watch] = []
"""Watches from the outermost to the innermost, whose time runs."""


def _last_line(tb: TracebackType | None) -> str:
    """Return the line at which what was broken off had arrived."""
    last = traceback.extract_tb(tb)[-2]  # before that of the timer
    return f"{last.filename}:{last.lineno}, in {last.name}"
