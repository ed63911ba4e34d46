"""From a YAML file and dotted overrides to a checked scenario, or to an error that says what to mend."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from yaml.composer import ComposerError

from marl.scenario.checks import absent
from marl.scenario.explain import explain
from marl.scenario.schema import Scenario

_SECTIONS = tuple(name for name, field in Scenario.model_fields.items() if field.is_required())


class ScenarioError(ValueError):
    """What a scenario's author got wrong; one line for each problem: field, value, what would be right."""


class _Loader(yaml.SafeLoader):
    """Safe YAML in which a key given twice is an error: plain YAML would keep the last one and say nothing."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise ComposerError(None, None, "a key must be a name", key.start_mark)
            if key.value in seen:
                raise ComposerError(None, None, f"key {key.value!r} is given twice", key.start_mark)
            seen.add(key.value)
        return node


def load(path: str | Path, overrides: Iterable[str] = ()) -> Scenario:
    """Read, override and check a scenario.

    Args:
        path: a YAML file.
        overrides: `dotted.path=value`, the value in YAML.

    Raises:
        ScenarioError: naming file, field, value and choices.
    """
    path = Path(path)
    data = _read(path)
    for override in overrides:
        _override(data, override)
    scenario = validate(data, str(path))
    if problems := absent(scenario):
        raise _error(str(path), problems)
    return scenario


def validate(data: Mapping[str, Any], name: str = "scenario") -> Scenario:
    """Check a scenario given as plain data.

    Raises:
        ScenarioError: as `load`.
    """
    try:
        return Scenario.model_validate(data)
    except ValidationError as error:
        raise _error(name, explain(error)) from error


def _error(name: str, problems: Sequence[str]) -> ScenarioError:
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return ScenarioError("\n".join([f"{name}: {count}", *(f"  {problem}" for problem in problems)]))


def _read(path: Path) -> dict[str, Any]:
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except FileNotFoundError as error:
        near = ", ".join(str(p) for p in sorted(path.parent.glob("*.yaml"))[:12]) if path.parent.is_dir() else ""
        raise ScenarioError(f"{path}: no such file; scenarios there: {near or 'none'}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{path}: cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise ScenarioError(f"{path}: not YAML: {_where(error)}") from error
    if not isinstance(data, dict):
        what = "an empty file" if data is None else type(data).__name__
        raise ScenarioError(f"{path}: must be a mapping with {', '.join(_SECTIONS)}; got {what}")
    return data


def _where(error: yaml.YAMLError) -> str:
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return str(error)
    problem = error.problem or ""
    # A tab is not seen in an editor, and PyYAML names it by its escape.
    hint = "; indent with spaces" if "'\\t'" in problem else ""
    mark = error.problem_mark
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}{hint}\n{mark.get_snippet()}"


def _override(data: dict[str, Any], override: str) -> None:
    dotted, equals, text = override.partition("=")
    keys = dotted.split(".")
    if not equals or not all(keys):
        raise ScenarioError(f"override {override!r}: write it as dotted.path=value, e.g. schedule.steps=100")
    here = data
    for depth, key in enumerate(keys[:-1], 1):
        inner = {} if here.get(key) is None else here[key]
        if not isinstance(inner, dict):
            raise ScenarioError(f"override {override!r}: {_closed('.'.join(keys[:depth]), inner)}")
        # A copy: what YAML aliases made one thing is overridden where it was asked for, and nowhere else.
        here[key] = here = dict(inner)
    try:
        here[keys[-1]] = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise ScenarioError(f"override {override!r}: {text!r} is not YAML: {_where(error)}") from error


def _closed(field: str, value: Any) -> str:
    hint = f"; to set fields of it, write it as {{kind: {value}}} first" if isinstance(value, str) else ""
    return f"{field} is {value!r}, which has no fields{hint}"


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """What changed between two resolved scenarios, a line each: `field: old -> new`."""
    lines = []
    for key in sorted({*old, *new}):
        a, b, field = old.get(key), new.get(key), f"{prefix}{key}"
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            lines += differences(a, b, f"{field}.")
        elif a != b:
            lines.append(f"{field}: {a!r} -> {b!r}")
    return lines
