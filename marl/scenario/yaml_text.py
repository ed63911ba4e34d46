"""YAML from outside: plain data of bounded size, or an error that names the line.

A few hundred bytes of YAML can stand for billions of values (aliases of aliases, merges of merges), for a list that
holds itself, for dates, or for numbers that take minutes to read. None of this has a place in a scenario.
"""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError

from marl.host.outside import replace_surrogates

MAX_BYTES = 1 << 19
MAX_DEPTH = 40
"""Of lists and mappings within each other."""
MAX_VALUES = 10_000
"""Keys, values and list items, with all aliases and merges written out."""
_MAX_DIGITS = 100
_TAG = "tag:yaml.org,2002:"
_TEXT = f"{_TAG}str"
_MISREAD = {f"{_TAG}bool": "true or false", f"{_TAG}null": "nothing"}
_NO_SCALARS = (f"{_TAG}timestamp", f"{_TAG}value")
"""Kinds of scalars that scenarios do not have: `2026-01-31` and `=` are text."""


class ScenarioError(ValueError):
    """A mistake in a scenario; the message has one line for each problem: field, value, what would be right."""


class _Loader(yaml.SafeLoader):
    """Safe YAML in which a key given twice is an error (plain YAML would keep the last one) and all is bounded."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = self._composed = 0
        self._values: dict[yaml.Node, int] = {}
        """Node -> the number of values that it stands for, itself included; none while it is being composed."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()
        self._depth += 1
        self._composed += 1
        if self._depth > MAX_DEPTH:
            raise _error(f"more than {MAX_DEPTH} lists and mappings within each other", event)
        if self._composed > MAX_VALUES:
            raise _error(f"more than {MAX_VALUES} values", event)
        if not isinstance(event, yaml.AliasEvent) and event.tag not in (None, "!", _TEXT):
            raise _error(f"tag {event.tag[:40]!r}: scenarios have plain text, numbers, lists and mappings", event)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if node is not None:
            self._measure(node, event)
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _error("a key must be a name", key)
            if key.tag in _MISREAD:
                raise _error(f"key {key.value!r} means {_MISREAD[key.tag]} in YAML; quote it", key)
            if key.value in seen:
                raise _error(f"key {key.value[:80]!r} is given twice", key)
            seen.add(key.value)
        return node

    def construct_number(self, node: yaml.ScalarNode) -> int | float:
        """Return the number written as a YAML scalar.

        Raises:
            ConstructorError: if it is none, or one of more than 63 bits.
        """
        try:
            read = self.construct_yaml_float if node.tag.endswith("float") else self.construct_yaml_int
            value = read(node) if len(node.value) <= _MAX_DIGITS else None
        except (ValueError, OverflowError):
            value = None
        if value is None or (isinstance(value, int) and abs(value) >= 1 << 63):
            problem = f"{node.value[:40]!r} is no number of up to 63 bits; quote it if it is text"
            raise ConstructorError(None, None, problem, node.start_mark)
        return value

    def _measure(self, node: yaml.Node, event: Any) -> None:
        """Note how many values `node` stands for, and refuse what is too much or endless."""
        if isinstance(event, yaml.AliasEvent):
            if node not in self._values:
                raise _error(f"*{event.anchor[:40]} lies in what it stands for", event)
            return
        if isinstance(node, yaml.ScalarNode):
            if replace_surrogates(node.value) != node.value:
                raise _error("half of a surrogate pair, which is no character", event)
            self._values[node] = 1
            return
        parts = chain.from_iterable(node.value) if isinstance(node, yaml.MappingNode) else node.value
        self._values[node] = 1 + sum(self._values[part] for part in parts)
        if self._values[node] > MAX_VALUES:
            raise _error(f"more than {MAX_VALUES} values, with aliases and merges written out", event)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _NO_SCALARS]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _kind in ("int", "float"):
    _Loader.add_constructor(_TAG + _kind, _Loader.construct_number)


def _error(problem: str, place: Any) -> ComposerError:
    return ComposerError(None, None, problem, place.start_mark)


def read_yaml(text: str, name: str) -> Any:
    """Return the plain data that YAML text means.

    Raises:
        ScenarioError: naming `name`, the line and, where it exceeds one, the limit.
    """
    if len(text) > MAX_BYTES:
        raise ScenarioError(f"{name}: longer than {MAX_BYTES:,} characters, which is as much as is read")
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise ScenarioError(f"{name}: not YAML: {_position(error)}") from error
    except (ValueError, OverflowError) as error:  # PyYAML checks no character that is written as its number
        raise ScenarioError(f"{name}: not YAML: {error}") from error


def read_yaml_file(path: Path) -> Any:
    """Return the plain data in a YAML file.

    Raises:
        ScenarioError: as `read_yaml`, or if the file cannot be read.
        FileNotFoundError: if there is no such file.
    """
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1).decode("utf-8")
    except FileNotFoundError:
        raise
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{path}: cannot be read: {error}") from error
    return read_yaml(text, str(path))


def _position(error: yaml.YAMLError) -> str:
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return str(error)
    problem = error.problem or ""
    # An editor does not show a tab, and PyYAML names it by its escape.
    hint = "; indent with spaces" if "'\\t'" in problem else ""
    mark = error.problem_mark
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}{hint}\n{mark.get_snippet()}"
