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


class BackgroundRequests(Generic[_Key, _Answer]):
    """Coroutines by key, run in a background thread. The thread ends with this object or with the process."""

    def __init__(self) -> None:
        self._open: dict[_Key, Future[_Answer]] = {}
        # Not a SimpleQueue: a signal at the end of a timed wait, such as the watchdog's, can make it wait for ever.
        self.finished: Queue[_Key] = Queue()
        """Keys of coroutines that have ended, cancelled ones included."""
        self._loop = asyncio.new_event_loop()
        # A daemon: an open connection must not keep the process alive.
        threading.Thread(target=_serve, args=(self._loop,), name="marl remote", daemon=True).start()
        weakref.finalize(self, self._loop.call_soon_threadsafe, self._loop.stop)

    def submit(self, key: _Key, coroutine: Coroutine[Any, Any, _Answer]) -> None:
        """Start a coroutine; `take` returns its answer under `key`."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        self._open[key] = future
        # The callback holds the queue and not `self`, which would otherwise live as long as the request.
        finished = self.finished
        future.add_done_callback(lambda _: finished.put(key))

    def take(self, wait_s: float) -> Iterator[tuple[_Key, _Answer]]:
        """Yield every finished request with its answer; wait at most `wait_s` seconds for the first.

        Raises:
            Exception: any error of a request. Further answers stay for the next call.
        """
        with suppress(Empty):
            key = self.finished.get(block=wait_s > 0, timeout=wait_s or None)
            while True:
                # A cancelled request also ends here, and by now another request may have its key.
                future = self._open.get(key)
                if future is not None and future.done():
                    del self._open[key]
                    yield key, future.result()
                key = self.finished.get_nowait()

    def cancel(self, keys: Iterable[_Key] | None = None) -> None:
        """Give up requests and close their connections; no answer follows. None cancels every open request."""
        for key in list(self._open) if keys is None else keys:
            future = self._open.pop(key, None)
            if future is not None:
                future.cancel()

    def run(self, coroutine: Coroutine[Any, Any, Any], timeout_s: float | None = None) -> Any:
        """Run a coroutine in the background thread; block until it returns, for at most `timeout_s` seconds."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout_s)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    # A Runner cancels the open coroutines once the loop is stopped.
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.get_loop().run_forever()
