"""Creation of an export folder: it appears complete or not at all, and never replaces an existing path."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from marl.core.errors import Writing
from marl.scenario.load import ScenarioError


@contextmanager
def atomic_folder(out: Path) -> Iterator[Path]:
    """Yield a path for the body to create as a folder; at the end the folder is renamed to `out`.

    Raises:
        ScenarioError: if `out` exists.
        FolderError: if it cannot be written.
    """
    # `exists` is false for a dangling link, and the rename would replace the link.
    if os.path.lexists(out):
        raise ScenarioError(f"{out} exists already; choose another folder")
    with Writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        # A unique directory, so that two concurrent exports cannot delete each other's files. It lies beside `out`,
        # because a rename across file systems is not atomic.
        with TemporaryDirectory(prefix=".export-", dir=out.parent) as temporary:
            folder = Path(temporary) / out.name
            yield folder
            folder.rename(out)
