"""Creation of an export folder: it appears complete or not at all, and never replaces an existing path."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from marl.core.errors import RaiseRunFolderErrorOnFailedWrite
from marl.scenario.load import ScenarioError


@contextmanager
def atomic_folder(out_folder: Path) -> Iterator[Path]:
    """Yield a path for the body to create as a folder. At the end the folder is renamed to `out_folder`.

    Raises:
        ScenarioError: if `out_folder` exists.
        RunFolderError: if the folder cannot be written.
    """
    # `lexists` also finds a dangling link, which the rename would replace.
    if os.path.lexists(out_folder):
        raise ScenarioError(f"{out_folder} exists already; choose another folder")
    with RaiseRunFolderErrorOnFailedWrite(out_folder):
        out_folder.parent.mkdir(parents=True, exist_ok=True)
        # The unique folder keeps concurrent exports apart. A rename is atomic only beside `out`.
        with TemporaryDirectory(prefix=".export-", dir=out_folder.parent) as temporary:
            folder = Path(temporary) / out_folder.name
            yield folder
            folder.rename(out_folder)
