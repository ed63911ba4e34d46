"""Requests over HTTP in an event loop of their own thread, so that the engine's thread never blocks on the network."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Coroutine, Hashable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, Queue
from typing import Any, Generic, TypeVar

_Key = TypeVar("_Key", bound=Hashable)
_Answer = TypeVar("_Answer")


class BackgroundCoroutines(Generic[_Key, _Answer]):
    """Runner of coroutines in a background thread, by key. The thread ends with this object or with the process."""

    def __init__(self) -> None:
        self._open: dict[_Key, Future[_Answer]] = {}
        # A SimpleQueue could wait for ever if a signal, such as the watchdog's, arrives at the end of a timed wait.
        self.finished: Queue[_Key] = Queue()
        """Keys of coroutines that have ended, cancelled ones included."""
        self._loop = asyncio.new_event_loop()
        # The thread is a daemon, so that an open connection does not keep the process alive.
        threading.Thread(target=_run_event_loop, args=(self._loop,), name="marl remote", daemon=True).start()
        weakref.finalize(self, self._loop.call_soon_threadsafe, self._loop.stop)

    def submit(self, key: _Key, coroutine: Coroutine[Any, Any, _Answer]) -> None:
        """Start `coroutine`. A later `take_finished` yields its result with `key`."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        self._open[key] = future
        # The callback must not refer to `self`, which would then live as long as the request; the queue suffices.
        finished = self.finished
        future.add_done_callback(lambda _: finished.put(key))

    def take_finished(self, wait_s: float) -> Iterator[tuple[_Key, _Answer]]:
        """Yield (key, result) of every finished coroutine. Wait at most `wait_s` seconds for the first.

        Raises:
            Exception: any error of a coroutine. Further results are yielded by the next call.
        """
        with suppress(Empty):
            key = self.finished.get(block=wait_s > 0, timeout=wait_s or None)
            while True:
                # A cancelled coroutine also ends here; by now its key may belong to a new one that is not done.
                future = self._open.get(key)
                if future is not None and future.done():
                    del self._open[key]
                    yield key, future.result()
                key = self.finished.get_nowait()

    def cancel(self, keys: Iterable[_Key] | None = None) -> None:
        """Cancel the coroutines with these `keys` (default: all). No results of cancelled coroutines follow."""
        for key in list(self._open) if keys is None else keys:
            future = self._open.pop(key, None)
            if future is not None:
                future.cancel()

    def run_and_wait(self, coroutine: Coroutine[Any, Any, Any], timeout_s: float | None = None) -> Any:
        """Return the result of `coroutine`, run in the background thread. Block for at most `timeout_s` seconds."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout_s)


def _run_event_loop(loop: asyncio.AbstractEventLoop) -> None:
    # A Runner cancels the open coroutines after the loop has been stopped.
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.get_loop().run_forever()
