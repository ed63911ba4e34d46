"""Resolution of relative paths in settings.

A relative path in a scenario file starts at the folder of the file. A relative path on the command line or from Python
starts at the working directory. `~` is the user's home, and `$MARL_CACHE` is the folder of `cache_folder`. A run stores
absolute paths, so that it can be resumed from any working directory.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

FILE_FIELDS = frozenset({"path", "file", "folder", "held_out_path", "run", "libraries", "python"})
"""Names of settings fields that hold the path of a file or folder."""
CACHE = "$MARL_CACHE"
"""Prefix of a path that stands for the folder `cache_folder()`."""
_DATA_SUFFIXES = (".csv", ".jsonl", ".zst", ".parquet", ".txt", ".jinja2")
_HUB_NAME = re.compile(r"\w[\w.-]*(/[\w.-]+)?")
_MAX_PATH_CHARACTERS = 4096


class CommandLineText(str):
    """Text from the command line. Relative paths in it start at the working directory."""

    __slots__ = ()


def mark_texts_as_command_line_text(yaml_value: Any) -> Any:
    """Return `yaml_value` of an override with all texts as `CommandLineText`."""
    if isinstance(yaml_value, Mapping):
        return {key: mark_texts_as_command_line_text(inner) for key, inner in yaml_value.items()}
    if isinstance(yaml_value, list):
        return list(map(mark_texts_as_command_line_text, yaml_value))
    return CommandLineText(yaml_value) if isinstance(yaml_value, str) else yaml_value


def is_possible_hub_name(text: str) -> bool:
    """Return True if `text` could name a model or data set on the Hugging Face hub, and not a file."""
    return _HUB_NAME.fullmatch(text) is not None and not text.endswith(_DATA_SUFFIXES)


class PathResolver:
    """Resolver of the relative paths in a scenario, which records the original texts for error messages."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        self._original_texts: dict[str, tuple[str, str]] = {}
        """Absolute path -> (setting, original text of the path)."""

    def resolve_paths_in_field(self, field: str, annotation: Any, value: Any) -> Any:
        """Return `value` of setting `field`, as an absolute path if the setting's type or name says it is a path.

        Raises:
            ValueError: as `resolve_path_or_keep_hub_name`.
        """
        is_file = "Path" in str(annotation)
        if isinstance(value, list | tuple):
            return [self.resolve_paths_in_field(field, annotation, path) for path in value] if is_file else value
        if not isinstance(value, str) or not (is_file or field in FILE_FIELDS):
            return value
        return (
            self.resolve_path_and_record_original(field, value)
            if is_file
            else self.resolve_path_or_keep_hub_name(field, value)
        )

    def absolute_setting_path(self, field: str, path_text: str) -> str:
        """Return the absolute path of `path_text` in setting `field`. A run's bare name means `runs/NAME`.

        A text that cannot be a path (empty, too long, or of several lines) is returned unchanged.
        """
        if not path_text or len(path_text) > _MAX_PATH_CHARACTERS or "\n" in path_text:
            return path_text
        path = self._start_folder_of_relative_path(field, path_text) / _expand_home_and_cache(path_text)
        # Only paths with `..` are resolved, because `resolve` also replaces symbolic links.
        return str(path.resolve() if ".." in path.parts else path)

    def resolve_path_and_record_original(self, field: str, text: str) -> str:
        """Return the absolute path as `absolute_setting_path`. A relative `text` is recorded for error messages."""
        path = self.absolute_setting_path(field, text)
        # Error messages explain how a relative path was resolved; an absolute path needs no explanation.
        if path != str(_expand_home_and_cache(text)):
            self._original_texts[path] = (field, text)
        return path

    def resolve_path_or_keep_hub_name(self, field: str, text: str) -> str:
        """Return the absolute path of `text` if a file exists there or `text` cannot be a hub name, else `text`.

        Raises:
            ValueError: if there is no file, but one of this name relative to another folder.
        """
        path = self.resolve_path_and_record_original(field, text)
        if field == "run" or not is_possible_hub_name(text) or path_exists(path):
            return path
        if path in self._original_texts and (hint := self._similar_file_hint(path)):
            raise ValueError(f"{path}: no such file or folder{hint}")
        return text

    def add_original_path_notes(self, error_message: str) -> str:
        """Return the error message `error_message` with a note for each resolved path in it.

        A note names the original relative path and the folder at which it starts.
        """
        lines = [error_message]
        for path, (field, text) in self._original_texts.items():
            if not re.search(rf"{re.escape(path)}(?![\w-]|\.\w)", error_message):
                continue
            start = self._start_folder_of_relative_path(field, text)
            if _is_bare_run_name(field, text):
                origin = "where `marl train` puts runs; a folder elsewhere is written with a slash"
            else:
                origin = "the working directory" if start != self._folder else "the scenario's folder"
            lines.append(f"({field}: {text} is relative to {start}, {origin}{self._similar_file_hint(path)})")
        return "\n    ".join(lines)

    def _similar_file_hint(self, missing_path: str) -> str:
        """Return a hint at a file that the relative path of the missing file `missing_path` names elsewhere, or ""."""
        _, text = self._original_texts[missing_path]
        if path_exists(missing_path):
            return ""
        for other in (Path.cwd() / text, self._folder / text, Path.cwd() / "runs" / text):
            if path_exists(str(other)):
                start = Path.cwd() if isinstance(text, CommandLineText) else self._folder
                relative = os.path.relpath(other, start)
                return f"; there is {other}: write {relative if '/' in relative else f'./{relative}'}"
        return ""

    def _start_folder_of_relative_path(self, field: str, path_text: str) -> Path:
        """Return the folder at which the relative path `path_text` in setting `field` starts."""
        if _is_bare_run_name(field, path_text):
            return Path.cwd() / "runs"
        return Path.cwd() if isinstance(path_text, CommandLineText) else self._folder


def _is_bare_run_name(field: str, path_text: str) -> bool:
    return field == "run" and "/" not in path_text and path_text not in (".", "..")


def cache_folder() -> Path:
    """Return the folder for models cached between runs: `$MARL_CACHE` (default: `~/.cache/marl`)."""
    return Path(os.environ.get("MARL_CACHE") or "~/.cache/marl").expanduser()


def _expand_home_and_cache(text: str) -> Path:
    """Return the path `text` with a leading `~` or `$MARL_CACHE` replaced by its folder."""
    if text == CACHE or text.startswith(f"{CACHE}/"):
        return cache_folder().absolute() / text.removeprefix(CACHE).lstrip("/")
    # `expanduser` raises RuntimeError for the home of a user who does not exist.
    with suppress(RuntimeError):
        return Path(text).expanduser()
    return Path(text)


def path_exists(path: str) -> bool:
    """Return True if a file or folder `path` exists. A name that no file can have gives False."""
    # The system refuses a name that is too long, and Python refuses a name with a null character.
    with suppress(OSError, ValueError):
        return os.path.exists(path)
    return False


current_resolver: ContextVar[PathResolver | None] = ContextVar("path_resolver", default=None)
"""Resolver of the paths in the scenario that is being validated, or None if the paths stay relative."""


@contextmanager
def use_path_resolver(resolver: PathResolver | None) -> Iterator[None]:
    """Resolve paths by `resolver` in settings that the body validates (None: paths stay unchanged)."""
    token = current_resolver.set(resolver)
    try:
        yield
    finally:
        current_resolver.reset(token)
