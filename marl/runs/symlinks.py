"""Guards against symbolic links out of a run's folder, and against pipes in it. The folder may be a stranger's."""

from __future__ import annotations

import os
from pathlib import Path

from marl.core.errors import RunFolderError


def path_without_symlinks(base_folder: Path, *names: str) -> Path:
    """Return the path `base_folder/name/name...` for writing.

    Raises:
        RunFolderError: if the path, `base_folder` or a folder between them is a symbolic link.
    """
    path = base_folder
    for name in ("", *names):
        path = path / name
        if path.is_symlink():
            raise RunFolderError(f"{path} is a symbolic link to {os.readlink(path)}: a run writes through none")
    return path


def require_no_symlinks(base_folder: Path, names: tuple[str, ...]) -> None:
    """Check that the entries `names` of the folder `base_folder` contain no symbolic link, at any depth.

    Raises:
        RunFolderError: if there is a symbolic link.
    """
    for name in names:
        top = path_without_symlinks(base_folder, name)
        for folder, folders, files in os.walk(top):
            for entry in (*folders, *files):
                path_without_symlinks(Path(folder), entry)


def path_within(base_folder: Path, *names: str) -> Path:
    """Return the path `base_folder/name/name...` for reading.

    Raises:
        RunFolderError: if the path leads out of `base_folder`, by a symbolic link or by `..`, or is a pipe or a device,
            whose reader could wait forever.
    """
    path = base_folder.joinpath(*names)
    if not path.resolve().is_relative_to(base_folder.resolve()):
        raise RunFolderError(f"{path} leads out of {base_folder}, to {path.resolve()}: it is not read")
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise RunFolderError(f"{path} is neither a file nor a folder: it is not read")
    return path


def require_links_stay_within(folder: Path) -> None:
    """Check that no symbolic link in `folder`, at any depth, leads out of `folder`.

    Raises:
        RunFolderError: if one does.
    """
    for directory, folders, files in os.walk(folder):
        for entry in (*folders, *files):
            if (path := Path(directory, entry)).is_symlink():
                path_within(folder, str(path.relative_to(folder)))
