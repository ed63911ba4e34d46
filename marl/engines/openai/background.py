"""An event loop in a thread of its own, so that whoever asks never waits for a connection."""

from __future__ import annotations

import asyncio
import threading
import weakref


def loop_for(owner: object) -> asyncio.AbstractEventLoop:
    """A running event loop that ends, and gives up what it was doing, with `owner` or with the process."""
    loop = asyncio.new_event_loop()
    # A daemon: what a connection still waits for must not keep the process alive.
    threading.Thread(target=_serve, args=(loop,), name="marl remote", daemon=True).start()
    weakref.finalize(owner, loop.call_soon_threadsafe, loop.stop)
    return loop


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.get_loop().run_forever()
