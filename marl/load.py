"""From a YAML file and dotted overrides to a checked scenario, or to an error that says what to mend."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from marl.scenario import Scenario


class ScenarioError(ValueError):
    """What a scenario's author got wrong; one line for each problem: field, value, what would be right."""


class _Loader(yaml.SafeLoader):
    """Safe YAML in which a key given twice is an error: plain YAML would keep the last one and say nothing."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key, _ in node.value:
            name = self.construct_object(key, deep=True)
            if name in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {name!r} is given twice", key.start_mark)
            seen.add(name)
        return super().construct_mapping(node, deep)


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
    return validate(data, str(path))


def validate(data: Mapping[str, Any], name: str = "scenario") -> Scenario:
    """Check a scenario given as plain data.

    Raises:
        ScenarioError: as `load`.
    """
    try:
        return Scenario.model_validate(data)
    except ValidationError as error:
        problems = [line for details in error.errors() for line in _lines(details)]
        raise ScenarioError(f"{name}: {_count(len(problems))}\n" + "\n".join(f"  {p}" for p in problems)) from error


def _count(problems: int) -> str:
    return "1 problem" if problems == 1 else f"{problems} problems"


def _lines(details: ErrorDetails) -> list[str]:
    where = ".".join(str(part) for part in details["loc"])
    message = details["msg"].removeprefix("Value error, ")
    if details["type"] == "missing":
        return [f"{where}: missing; it must be given"]
    if details["type"] == "value_error" and (not where or "\n" in message):
        return message.split("\n")
    value = repr(details["input"])
    shown = f" (got {value if len(value) <= 80 else value[:77] + '...'})"
    return [f"{where}: {message[0].lower()}{message[1:]}{'' if value in message else shown}"]


def _read(path: Path) -> dict[str, Any]:
    try:
        data = yaml.load(path.read_text(), _Loader)
    except FileNotFoundError as error:
        near = ", ".join(str(p) for p in sorted(path.parent.glob("*.yaml"))[:12]) if path.parent.is_dir() else ""
        raise ScenarioError(f"{path}: no such file; scenarios there: {near or 'none'}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{path}: cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise ScenarioError(f"{path}: not YAML: {error}") from error
    if not isinstance(data, dict):
        raise ScenarioError(f"{path}: a scenario is a mapping with game, seats, roles, ..., got {type(data).__name__}")
    return data


def _override(data: dict[str, Any], override: str) -> None:
    dotted, equals, text = override.partition("=")
    if not equals or not all(keys := dotted.split(".")):
        raise ScenarioError(f"override {override!r}: write it as dotted.path=value, e.g. schedule.steps=100")
    here = data
    for key in keys[:-1]:
        if here.get(key) is None:
            here[key] = {}
        here = here[key]
        if not isinstance(here, dict):
            raise ScenarioError(f"override {override!r}: {key!r} is {here!r}, which has no fields")
    try:
        here[keys[-1]] = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise ScenarioError(f"override {override!r}: {text!r} is not YAML") from error


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
