"""Paths in settings: those in a scenario's file are relative to it, typed ones to the working directory.

`~` at the beginning of a path is the user's home, and `$MARL_CACHE` the folder of `cache_folder`.
Without a file, from Python, all are relative to the working directory. Runs keep absolute paths, so that they can be
moved, and resumed from anywhere.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

FILE_FIELDS = frozenset({"path", "file", "held_out_path", "run", "libraries"})
"""Fields of parts that name a file or folder."""
CACHE = "$MARL_CACHE"
"""Beginning of a path in the folder of `cache_folder`."""
_DATA_SUFFIXES = (".csv", ".jsonl", ".zst", ".parquet", ".txt", ".jinja2")
_HUB_NAME = re.compile(r"\w[\w.-]*(/[\w.-]+)?")
_LONGEST = 4096


class Typed(str):
    """A text that the user typed on the command line."""

    __slots__ = ()


def typed(value: Any) -> Any:
    """Return the same data, every text in it marked as typed."""
    if isinstance(value, Mapping):
        return {key: typed(each) for key, each in value.items()}
    if isinstance(value, list):
        return [typed(each) for each in value]
    return Typed(value) if isinstance(value, str) else value


def may_be_on_hub(text: str) -> bool:
    """Return True if a text could be the name of a model or a data set on the Hugging Face hub."""
    return _HUB_NAME.fullmatch(text) is not None and not text.endswith(_DATA_SUFFIXES)


class Places:
    """Folder at which the relative paths of a scenario begin; it remembers how they were written, for messages."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        self._written: dict[str, tuple[str, str]] = {}
        """Absolute path -> field and text that named it."""

    def in_field(self, field: str, annotation: Any, value: Any) -> Any:
        """Return the value of a setting, absolute if its type or its name says that it is a path.

        Raises:
            ValueError: as `absolute_or_hub`.
        """
        is_file = "Path" in str(annotation)
        if isinstance(value, list | tuple):
            return [self.in_field(field, annotation, each) for each in value] if is_file else value
        if not isinstance(value, str) or not (is_file or field in FILE_FIELDS):
            return value
        return self.absolute(field, value) if is_file else self.absolute_or_hub(field, value)

    def path(self, field: str, text: str) -> str:
        """Return the absolute path that `text` means in `field`; the bare name of a run is in `runs/`, where runs go.

        What cannot be a path, as it is empty, too long or of several lines, is returned as it is.
        """
        if not text or len(text) > _LONGEST or "\n" in text:
            return text
        path = self._start(field, text) / _expanded(text)
        return str(path.resolve() if ".." in path.parts else path)

    def absolute(self, field: str, text: str) -> str:
        """Return as `path`, and remember how it was written if that was relative."""
        path = self.path(field, text)
        if path != str(_expanded(text)):
            self._written[path] = (field, text)
        return path

    def absolute_or_hub(self, field: str, text: str) -> str:
        """Return as `absolute`; but what could be on the hub stays, unless there is such a file or folder.

        Raises:
            ValueError: if there is one in the working directory, where the paths of a file do not begin.
        """
        path = self.absolute(field, text)
        if field == "run" or not may_be_on_hub(text) or exists(path):
            return path
        if path in self._written and (hint := self._hint(path)):
            raise ValueError(f"{path}: no such file or folder{hint}")
        return text

    def explain(self, problem: str) -> str:
        """Return the problem, and where relative paths that it names begin."""
        notes = [self._note(path) for path in self._written if re.search(rf"{re.escape(path)}(?![\w-]|\.\w)", problem)]
        return "\n    ".join([problem, *notes])

    def _note(self, path: str) -> str:
        field, text = self._written[path]
        start = self._start(field, text)
        if _is_run_name(field, text):
            why = "where `marl train` puts runs; a folder elsewhere is written with a slash"
        else:
            why = "the working directory" if start != self._folder else "the scenario's folder"
        return f"({field}: {text} is relative to {start}, {why}{self._hint(path)})"

    def _hint(self, path: str) -> str:
        """Return where there is such a file, if not at `path`, and how to write that; "" if there is none."""
        _, text = self._written[path]
        if exists(path):
            return ""
        for other in (Path.cwd() / text, self._folder / text, Path.cwd() / "runs" / text):
            if exists(str(other)):
                start = Path.cwd() if isinstance(text, Typed) else self._folder
                relative = os.path.relpath(other, start)
                return f"; there is {other}: write {relative if '/' in relative else f'./{relative}'}"
        return ""

    def _start(self, field: str, text: str) -> Path:
        if _is_run_name(field, text):
            return Path.cwd() / "runs"
        return Path.cwd() if isinstance(text, Typed) else self._folder


def _is_run_name(field: str, text: str) -> bool:
    return field == "run" and "/" not in text and text not in (".", "..")


def cache_folder() -> Path:
    """Return the folder in which made models are kept between runs, `~/.cache/marl` if the environment names none."""
    return Path(os.environ.get("MARL_CACHE") or "~/.cache/marl").expanduser()


def _expanded(text: str) -> Path:
    if text == CACHE or text.startswith(f"{CACHE}/"):
        return cache_folder().absolute() / text.removeprefix(CACHE).lstrip("/")
    with suppress(RuntimeError):  # no such user
        return Path(text).expanduser()
    return Path(text)


def exists(path: str) -> bool:
    """Return True if there is a file or folder of this name."""
    with suppress(OSError, ValueError):  # too long a name, a null character
        return os.path.exists(path)
    return False


_current: ContextVar[Places | None] = ContextVar("places", default=None)


def current() -> Places | None:
    """Return where the relative paths of the scenario begin that is being read; None: they stay as they are."""
    return _current.get()


@contextmanager
def relative_to(places: Places | None) -> Iterator[None]:
    """Context in which settings are read whose relative paths begin there; None: they stay as they are."""
    token = _current.set(places)
    try:
        yield
    finally:
        _current.reset(token)
