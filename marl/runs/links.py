"""Symbolic links in a run's folder, which somebody else may have put there: they are never followed out of it."""

from __future__ import annotations

import os
from pathlib import Path

from marl.errors import FolderError


def expect_no_link(home: Path, *parts: str) -> Path:
    """Return the path `home/parts...`, to be written.

    Raises:
        FolderError: if it, or a folder on the way from `home` to it, is a symbolic link.
    """
    path = home
    for part in ("", *parts):
        path = path / part
        if path.is_symlink():
            raise FolderError(f"{path} is a symbolic link to {os.readlink(path)}: a run writes through none")
    return path


def expect_no_links(home: Path, names: tuple[str, ...]) -> None:
    """Check a run's folder, and all that is below these of its entries, before a run writes there.

    Raises:
        FolderError: if there is a symbolic link.
    """
    for name in names:
        top = expect_no_link(home, name)
        for folder, folders, files in os.walk(top):
            for entry in (*folders, *files):
                expect_no_link(Path(folder), entry)


def inside(home: Path, *parts: str) -> Path:
    """Return the path `home/parts...`, to be read.

    Raises:
        FolderError: if it leads out of `home`, by a symbolic link or by `..`.
    """
    path = home.joinpath(*parts)
    if not path.resolve().is_relative_to(home.resolve()):
        raise FolderError(f"{path} leads out of {home}, to {path.resolve()}: it is not read")
    return path
