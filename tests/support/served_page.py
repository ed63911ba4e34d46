"""A server of the page for runs on disk, and the browser that looks at it."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from marl.commands.web_view import OfflineCreditRecomputation
from marl.view.page.page_data import PageApi
from marl.view.page.server import PageServer

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
LOOK_MS = 90_000
"""Time within which the page looks at its runs again on a busy machine [ms]: ten times the slowest answer."""


@contextmanager
def serving(runs: Sequence[Path], port: int = 0) -> Iterator[PageServer]:
    """Serve the page of indexed runs."""
    with PageServer(PageApi(runs, OfflineCreditRecomputation()), port) as server:
        for run in server.data.runs.values():
            run.index.index_new_steps()
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
