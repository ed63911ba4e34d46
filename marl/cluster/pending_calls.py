"""Wait for pending Ray calls of any number of processes at once, in a thread of its own.

One call of `ray.wait` covers all pending calls, and one wake-up of the event loop delivers all results that came
together. The cost of a wait grows with the number of pending calls, so more calls are waited for more rarely.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray.exceptions import RayError

_GATHER_S_PER_CALL = 1e-3
"""Time for which results are gathered after the first, in seconds per pending call."""
_MAX_GATHER_S = 0.2
"""Maximum time for which results are gathered, in seconds."""


class PendingCalls:
    """Pending Ray calls, whose results one thread delivers to futures of an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._new: deque[tuple[Any, asyncio.Future[Any]]] = deque()
        """Calls that the thread does not wait for yet, with their futures. Both threads may change a deque."""
        self._changed = threading.Event()
        """Event that is set when there is a new call, or when the thread shall end."""
        self._is_closed = False
        threading.Thread(target=self._deliver_results, daemon=True).start()

    def result_of(self, call: Any) -> asyncio.Future[Any]:
        """Return the future of the result, or of the error, of a Ray call (its reference)."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._new.append((call, future))
        self._changed.set()
        return future

    def close(self) -> None:
        """End the thread. Results that are still pending are not delivered."""
        self._is_closed = True
        self._changed.set()

    def _deliver_results(self) -> None:
        pending: dict[Any, asyncio.Future[Any]] = {}
        while True:
            if not pending:
                self._changed.wait()
            if self._is_closed:
                return
            self._changed.clear()
            while self._new:
                call, future = self._new.popleft()
                pending[call] = future
            # The caller of a call with a cancelled future waits no longer: its process is killed, or the run ends.
            pending = {call: future for call, future in pending.items() if not future.cancelled()}
            if pending:
                ready = _wait_for_any(list(pending))
                outcomes = list(zip([pending.pop(call) for call in ready], _results(ready), strict=True))
                if outcomes:
                    self._loop.call_soon_threadsafe(_set_results, outcomes)


def _wait_for_any(calls: list[Any]) -> list[Any]:
    """Return the calls that have ended, after a short wait for the first; new calls wait for the end of this wait."""
    gather_s = min(_GATHER_S_PER_CALL * len(calls), _MAX_GATHER_S)
    ready, _ = ray.wait(calls, num_returns=1, timeout=gather_s)
    if ready and len(calls) > 1:
        time.sleep(gather_s)
        ready, _ = ray.wait(calls, num_returns=len(calls), timeout=0)
    return ready


def _results(calls: list[Any]) -> list[Any]:
    """Return the result of each ended call, or its error."""
    with _garbage_collection_paused():
        try:
            return ray.get(calls)
        except RayError:
            return [_result_or_error(call) for call in calls]


@contextmanager
def _garbage_collection_paused() -> Iterator[None]:
    """Let Python collect no garbage in this context.

    The tuples of tokens in unpickled episodes would start many collections, which find nothing to free and take as
    long as unpickling itself.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _result_or_error(call: Any) -> Any:
    try:
        return ray.get(call)
    except RayError as error:
        return error


def _set_results(outcomes: list[tuple[asyncio.Future[Any], Any]]) -> None:
    for future, outcome in outcomes:
        if not future.cancelled():
            if isinstance(outcome, RayError):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
