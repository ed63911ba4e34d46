"""Jinja2 templates of roles: a scenario's own, and those in `roles/prompts`, which it can extend or include."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import FileSystemLoader, StrictUndefined, TemplateNotFound, TemplateSyntaxError, meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from marl.config import nearest
from marl.templating import Compiled
from roles.parsing import spoken

# Scenario files are shared, so their templates run in a sandbox; an unknown name is an error, not an empty string.
_environment = ImmutableSandboxedEnvironment(
    loader=FileSystemLoader(Path(__file__).parent / "prompts"),
    undefined=StrictUndefined,
    trim_blocks=True,
    keep_trailing_newline=False,
    auto_reload=False,
)
_environment.filters["spoken"] = spoken


@lru_cache(maxsize=256)
def template(source: str) -> Compiled:
    """The template, compiled."""
    return Compiled(_environment.from_string(source))


def known_names() -> frozenset[str]:
    """What every template has, such as `range`."""
    return frozenset(_environment.globals)


@lru_cache(maxsize=256)
def uses(source: str) -> frozenset[str]:
    """The names that a template and those it extends or includes read.

    Raises:
        ValueError: if it is no jinja2 template, or refers to one that is not in `roles/prompts`.
    """
    try:
        tree = _environment.parse(source)
        template(source)
    except TemplateSyntaxError as error:
        raise ValueError(f"not a jinja2 template: {error.message} (line {error.lineno})") from error
    names = meta.find_undeclared_variables(tree)
    for name in meta.find_referenced_templates(tree):
        names |= uses(_packaged(name))
    return frozenset(names)


def _packaged(name: str | None) -> str:
    choices = _environment.list_templates()
    if name is None:
        raise ValueError(f"a template to extend or include must be named in quotes; {nearest('', choices)}")
    try:
        return _environment.loader.get_source(_environment, name)[0]  # type: ignore[union-attr]
    except TemplateNotFound as error:
        raise ValueError(f"no template {name!r} to extend or include; {nearest(name, choices)}") from error


def source_of(value: Any) -> Any:
    """A template's text. That of `{file: PATH}`, relative to where the command is typed, is taken in: so what a run's
    folder says was said stays true when the file is edited.

    Raises:
        ValueError: if there is no such file, or it is no text.
    """
    if not isinstance(value, Mapping):
        return value
    if list(value) != ["file"] or not isinstance(value["file"], str):
        raise ValueError(f"must be text or {{file: PATH}}; got {dict(value)}")
    try:
        return Path(value["file"]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"file {value['file']!r} cannot be read: {error}") from error
