"""Guards against symbolic links that lead out of a run's folder, which may come from a stranger."""

from __future__ import annotations

import os
from pathlib import Path

from marl.core.errors import FolderError


def path_without_symlinks(home: Path, *parts: str) -> Path:
    """Return the path `home/parts...` for writing.

    Raises:
        FolderError: if the path, `home` or a folder between them is a symbolic link.
    """
    path = home
    for part in ("", *parts):
        path = path / part
        if path.is_symlink():
            raise FolderError(f"{path} is a symbolic link to {os.readlink(path)}: a run writes through none")
    return path


def expect_no_links(home: Path, names: tuple[str, ...]) -> None:
    """Check that the entries `names` of a run's folder hold no symbolic link, at any depth.

    Raises:
        FolderError: if there is a symbolic link.
    """
    for name in names:
        top = path_without_symlinks(home, name)
        for folder, folders, files in os.walk(top):
            for entry in (*folders, *files):
                path_without_symlinks(Path(folder), entry)


def path_within(home: Path, *parts: str) -> Path:
    """Return the path `home/parts...` for reading.

    Raises:
        FolderError: if the path leads out of `home`, by a symbolic link or by `..`.
    """
    path = home.joinpath(*parts)
    if not path.resolve().is_relative_to(home.resolve()):
        raise FolderError(f"{path} leads out of {home}, to {path.resolve()}: it is not read")
    return path
