"""Reader of YAML from outside: plain data of bounded size, or an error that names the line.

A few hundred bytes of YAML can mean billions of values (aliases of aliases, merges of merges), a list that contains
itself, a date, or a number that takes minutes to read. Scenarios need none of this, so it is refused.
"""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError

from marl.host.untrusted_text import replace_surrogates

MAX_BYTES = 1 << 19
"""Maximum size of a YAML file in bytes."""
MAX_DEPTH = 40
"""Maximum nesting depth of lists and mappings in YAML."""
MAX_VALUES = 10_000
"""Maximum number of keys, values and list items in YAML, with all aliases and merges expanded."""
_MAX_DIGITS = 100
_TAG = "tag:yaml.org,2002:"
_TEXT = f"{_TAG}str"
_MISREAD = {f"{_TAG}bool": "true or false", f"{_TAG}null": "nothing"}
"""Tag of a scalar that YAML does not read as text -> its meaning in YAML, for error messages about keys."""
_TEXT_SCALARS = (f"{_TAG}timestamp", f"{_TAG}value")
"""Tags of scalars that scenarios read as text, such as `2026-01-31` and `=`."""


class ScenarioError(ValueError):
    """A scenario has mistakes. The message has one line per mistake, with field, value and remedy."""


class _StrictYamlLoader(yaml.SafeLoader):
    """Safe YAML loader with limits on size, in which a repeated key is an error (plain YAML keeps the last value)."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = self._composed = 0
        self._value_counts: dict[yaml.Node, int] = {}
        """Composed node -> number of values that it contains with its aliases expanded, itself included."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()
        self._depth += 1
        self._composed += 1
        if self._depth > MAX_DEPTH:
            raise _error_at(f"more than {MAX_DEPTH} lists and mappings within each other", event)
        if self._composed > MAX_VALUES:
            raise _error_at(f"more than {MAX_VALUES} values", event)
        if not isinstance(event, yaml.AliasEvent) and event.tag not in (None, "!", _TEXT):
            raise _error_at(f"tag {event.tag[:40]!r}: scenarios have plain text, numbers, lists and mappings", event)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if node is None:
            return None
        if isinstance(event, yaml.AliasEvent):
            # A node without a count is still being composed: the alias lies inside of the node that it stands for.
            if node not in self._value_counts:
                raise _error_at(f"*{event.anchor[:40]} lies in what it stands for", event)
        elif isinstance(node, yaml.ScalarNode):
            if replace_surrogates(node.value) != node.value:
                raise _error_at("half of a surrogate pair, which is no character", event)
            self._value_counts[node] = 1
        else:
            children = chain.from_iterable(node.value) if isinstance(node, yaml.MappingNode) else node.value
            count = self._value_counts[node] = 1 + sum(map(self._value_counts.__getitem__, children))
            if count > MAX_VALUES:
                raise _error_at(f"more than {MAX_VALUES} values, with aliases and merges written out", event)
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _error_at("a key must be a name", key)
            if key.tag in _MISREAD:
                raise _error_at(f"key {key.value!r} means {_MISREAD[key.tag]} in YAML; quote it", key)
            if key.value in seen:
                raise _error_at(f"key {key.value[:80]!r} is given twice", key)
            seen.add(key.value)
        return node

    def construct_number(self, node: yaml.ScalarNode) -> int | float:
        """Return the number in a YAML scalar.

        Raises:
            ConstructorError: if the scalar is no number, or a number of more than 63 bits.
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


_StrictYamlLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _TEXT_SCALARS]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _kind in ("int", "float"):
    _StrictYamlLoader.add_constructor(_TAG + _kind, _StrictYamlLoader.construct_number)


def _error_at(problem: str, node_or_event: Any) -> ComposerError:
    """Return the error for `problem` at the position of a YAML node or event."""
    return ComposerError(None, None, problem, node_or_event.start_mark)


def read_yaml(text: str, source_name: str) -> Any:
    """Return the plain data of a YAML text.

    Raises:
        ScenarioError: naming `source_name`, the line, and the limit if one is exceeded.
    """
    if len(text) > MAX_BYTES:
        raise ScenarioError(f"{source_name}: longer than {MAX_BYTES:,} characters, which is as much as is read")
    try:
        return yaml.load(text, _StrictYamlLoader)
    except yaml.MarkedYAMLError as error:
        if error.problem_mark is None:
            raise ScenarioError(f"{source_name}: not YAML: {error}") from error
        problem, mark = error.problem or "", error.problem_mark
        # The hint helps, because editors do not show tabs, and PyYAML's message has only the escape \t.
        hint = "; indent with spaces" if "'\\t'" in problem else ""
        position = f"line {mark.line + 1}, column {mark.column + 1}"
        raise ScenarioError(f"{source_name}: not YAML: {position}: {problem}{hint}\n{mark.get_snippet()}") from error
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        # PyYAML raises ValueError and OverflowError for characters that are written as an invalid number.
        raise ScenarioError(f"{source_name}: not YAML: {error}") from error


def read_yaml_file(path: Path) -> Any:
    """Return the plain data of a YAML file.

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
