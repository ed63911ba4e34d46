"""Resolution of paths in settings.

A relative path in a scenario file starts at the folder of the file; one typed on the command line or given from Python
starts at the working directory. `~` is the user's home and `$MARL_CACHE` the folder of `cache_folder`. A run stores
absolute paths, so that it can be moved and resumed from anywhere.
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
"""Settings of plug-ins that name a file or folder."""
CACHE = "$MARL_CACHE"
"""First part of a path that lies in the folder of `cache_folder`."""
_DATA_SUFFIXES = (".csv", ".jsonl", ".zst", ".parquet", ".txt", ".jinja2")
_HUB_NAME = re.compile(r"\w[\w.-]*(/[\w.-]+)?")
_MAX_PATH_CHARACTERS = 4096


class CommandLineText(str):
    """A text that the user typed on the command line."""

    __slots__ = ()


def mark_command_line_text(value: Any) -> Any:
    """Return `value` with every text in it marked as typed on the command line."""
    if isinstance(value, Mapping):
        return {key: mark_command_line_text(item) for key, item in value.items()}
    if isinstance(value, list):
        return [mark_command_line_text(item) for item in value]
    return CommandLineText(value) if isinstance(value, str) else value


def is_possible_hub_name(text: str) -> bool:
    """Return True if `text` could name a model or data set on the Hugging Face hub, and not a file."""
    return _HUB_NAME.fullmatch(text) is not None and not text.endswith(_DATA_SUFFIXES)


class PathResolver:
    """Resolves the relative paths of a scenario, and records how each was written for error messages."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        self._written: dict[str, tuple[str, str]] = {}
        """Absolute path -> (setting, text) that named it."""

    def resolve_field(self, field: str, annotation: Any, value: Any) -> Any:
        """Return the value of setting `field`, made absolute if the setting's type or name marks it as a path.

        Raises:
            ValueError: see `resolve_or_hub_name`.
        """
        is_file = "Path" in str(annotation)
        if isinstance(value, list | tuple):
            return [self.resolve_field(field, annotation, item) for item in value] if is_file else value
        if not isinstance(value, str) or not (is_file or field in FILE_FIELDS):
            return value
        return self.resolve_recorded(field, value) if is_file else self.resolve_or_hub_name(field, value)

    def resolve(self, field: str, text: str) -> str:
        """Return the absolute path of `text` in setting `field`. The bare name of a run stands for `runs/NAME`.

        A text that cannot be a path (empty, too long, or of several lines) is returned unchanged.
        """
        if not text or len(text) > _MAX_PATH_CHARACTERS or "\n" in text:
            return text
        path = self._start(field, text) / _expanded(text)
        return str(path.resolve() if ".." in path.parts else path)

    def resolve_recorded(self, field: str, text: str) -> str:
        """Return the path of `resolve`, and record how it was written if that was relative."""
        path = self.resolve(field, text)
        if path != str(_expanded(text)):
            self._written[path] = (field, text)
        return path

    def resolve_or_hub_name(self, field: str, text: str) -> str:
        """Return the absolute path if such a file exists or `text` cannot be a hub name; otherwise return `text`.

        Raises:
            ValueError: if the file exists in another folder than the one at which relative paths start.
        """
        path = self.resolve_recorded(field, text)
        if field == "run" or not is_possible_hub_name(text) or exists(path):
            return path
        if path in self._written and (hint := self._hint(path)):
            raise ValueError(f"{path}: no such file or folder{hint}")
        return text

    def explain_paths(self, problem: str) -> str:
        """Return the message `problem` with a note on each relative path in it: the folder at which it starts."""
        notes = [self._note(path) for path in self._written if re.search(rf"{re.escape(path)}(?![\w-]|\.\w)", problem)]
        return "\n    ".join([problem, *notes])

    def _note(self, path: str) -> str:
        field, text = self._written[path]
        start = self._start(field, text)
        if _is_run_name(field, text):
            origin = "where `marl train` puts runs; a folder elsewhere is written with a slash"
        else:
            origin = "the working directory" if start != self._folder else "the scenario's folder"
        return f"({field}: {text} is relative to {start}, {origin}{self._hint(path)})"

    def _hint(self, path: str) -> str:
        """Return where a file of this name exists outside `path` and how to write its path, or "" if nowhere."""
        _, text = self._written[path]
        if exists(path):
            return ""
        for other in (Path.cwd() / text, self._folder / text, Path.cwd() / "runs" / text):
            if exists(str(other)):
                start = Path.cwd() if isinstance(text, CommandLineText) else self._folder
                relative = os.path.relpath(other, start)
                return f"; there is {other}: write {relative if '/' in relative else f'./{relative}'}"
        return ""

    def _start(self, field: str, text: str) -> Path:
        if _is_run_name(field, text):
            return Path.cwd() / "runs"
        return Path.cwd() if isinstance(text, CommandLineText) else self._folder


def _is_run_name(field: str, text: str) -> bool:
    return field == "run" and "/" not in text and text not in (".", "..")


def cache_folder() -> Path:
    """Return the folder for models cached between runs: `$MARL_CACHE` (default: `~/.cache/marl`)."""
    return Path(os.environ.get("MARL_CACHE") or "~/.cache/marl").expanduser()


def _expanded(text: str) -> Path:
    if text == CACHE or text.startswith(f"{CACHE}/"):
        return cache_folder().absolute() / text.removeprefix(CACHE).lstrip("/")
    with suppress(RuntimeError):  # no such user
        return Path(text).expanduser()
    return Path(text)


def exists(path: str) -> bool:
    """Return True if a file or folder `path` exists; names that no file can have are False, not an error."""
    with suppress(OSError, ValueError):  # too long a name, a null character
        return os.path.exists(path)
    return False


_current: ContextVar[PathResolver | None] = ContextVar("path_resolver", default=None)


def current_resolver() -> PathResolver | None:
    """Return the resolver of the scenario that is being validated, or None if its paths stay relative."""
    return _current.get()


@contextmanager
def use_resolver(resolver: PathResolver | None) -> Iterator[None]:
    """Context in which validated settings get absolute paths by `resolver` (None: paths stay as they are)."""
    token = _current.set(resolver)
    try:
        yield
    finally:
        _current.reset(token)
