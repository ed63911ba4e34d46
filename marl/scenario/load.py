"""From a YAML file and dotted overrides to a validated scenario, or to an error that says how to correct it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from marl.core.config import Config, choices_hint, shorten
from marl.core.plugins import PluginField
from marl.host.paths import PathResolver, current_resolver, mark_command_line_text, use_resolver
from marl.protocols import GameConfig
from marl.scenario.checks import missing_requirements
from marl.scenario.schema import Scenario
from marl.scenario.trust import consent_check
from marl.scenario.yaml_text import ScenarioError, read_yaml, read_yaml_file

_Settings = TypeVar("_Settings", bound=Config)
_MOST_PROBLEMS, _LONGEST_PROBLEM = 30, 1500
_WHOLE, _NUMBER, _BOOL = "must be a whole number", "must be a number", "must be true or false"
_MAPPING, _LIST = "must be a mapping (`name: value`)", "must be a list ([a, b])"
_MESSAGES = {
    "missing": "missing; it must be given",
    "int_type": _WHOLE,
    "int_parsing": _WHOLE,
    "int_from_float": _WHOLE,
    "float_type": _NUMBER,
    "float_parsing": _NUMBER,
    "finite_number": "must be a finite number",
    "bool_type": _BOOL,
    "bool_parsing": _BOOL,
    "string_type": "must be text",
    "path_type": "must be a path",
    "dict_type": _MAPPING,
    "model_type": _MAPPING,
    "tuple_type": _LIST,
    "list_type": _LIST,
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "too_short": "must have at least {min_length}, has {actual_length}",
    "too_long": "must have at most {max_length}, has {actual_length}",
}
"""Type of a pydantic error -> our message."""


def load(
    source: str | Path | Mapping[str, Any],
    overrides: Iterable[str] = (),
    *,
    to_train: bool = True,
    random_play: bool = False,
) -> Scenario:
    """Return the scenario in a YAML file, with overrides (`dotted.path=value`, the value in YAML), validated.

    Relative paths in the file begin at its folder, those in overrides at the working directory. In place of a file,
    `source` may be the data that one would hold, in which paths begin at the working directory, too. A scenario that is
    not `to_train` may do without a learner.

    Args:
        random_play: accept that weights, data sets and the like are absent without which random players can do.

    Raises:
        ScenarioError: naming file, field, value and choices.
    """
    if isinstance(source, Mapping):
        name, folder, data = "scenario", Path.cwd(), dict(source)
    else:
        name, folder, data = str(source), Path(source).parent, _read(Path(source))
    fields = [_override(data, override) for override in overrides]
    places = PathResolver(folder)
    with use_resolver(places):
        scenario = validate(data, name, fields, to_train=to_train)
    if problems := missing_requirements(scenario, random_play=random_play):
        raise _error(name, [places.explain_paths(problem) for problem in problems])
    return scenario


def validate(
    data: Mapping[str, Any], name: str = "scenario", typed_fields: Sequence[str] = (), *, to_train: bool = True
) -> Scenario:
    """Return the scenario given as plain data. Its relative paths stay as they are, except within `relative_to`.

    Args:
        data: as a YAML file holds it.
        name: the file, or what else to call it in messages.
        typed_fields: fields (dotted) that the user typed, and so wants.
        to_train: False if it is only played, so that nothing in it need learn.

    Raises:
        ScenarioError: as `load`, or, in a command, if the user does not consent to what it reaches.
    """
    return _validated(Scenario, data, name, typed_fields, {"to_train": to_train})


def load_settings(path: Path, settings: type[_Settings]) -> _Settings:
    """Return the settings in a YAML file that is no scenario, such as a suite; relative paths begin at its folder.

    Raises:
        ScenarioError: as `load`.
    """
    with use_resolver(PathResolver(path.parent)):
        return _validated(settings, _read(path, settings), str(path))


class _GameAlone(Config):
    game: Annotated[GameConfig, PluginField("games", GameConfig)]
    """The game."""


def game_settings(kind: str, settings: Mapping[str, Any]) -> GameConfig:
    """Return the settings of a game, as in a scenario's `game`; relative paths begin at the working directory.

    Raises:
        ScenarioError: naming field, value and choices.
    """
    with use_resolver(PathResolver(Path.cwd())):
        return _validated(_GameAlone, {"game": {**settings, "kind": kind}}, "env").game


def _validated(
    settings: type[_Settings],
    data: Mapping[str, Any],
    name: str,
    typed_fields: Sequence[str] = (),
    context: Mapping[str, Any] | None = None,
) -> _Settings:
    if check_reach := consent_check.get():
        check_reach(data, name, typed_fields)
    try:
        return settings.model_validate(data, context=dict(context or {}))
    except ValidationError as error:
        problems, places = explain(error), current_resolver()
        raise _error(name, [places.explain_paths(problem) for problem in problems] if places else problems) from error


def problem_list(problems: Sequence[str]) -> str:
    """Return problems a line each, as many and as much of them as a person would read."""
    lines = [f"  {shorten(problem, _LONGEST_PROBLEM)}" for problem in problems[:_MOST_PROBLEMS]]
    return "\n".join([*lines, *([f"  and {more} more"] if (more := len(problems) - len(lines)) else [])])


def _error(name: str, problems: Sequence[str]) -> ScenarioError:
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return ScenarioError(f"{name}: {count}\n{problem_list(problems)}")


def _read(path: Path, settings: type[Config] = Scenario) -> dict[str, Any]:
    try:
        data = read_yaml_file(path)
    except FileNotFoundError as error:
        near = ", ".join(str(p) for p in sorted(path.parent.glob("*.yaml"))[:12]) if path.parent.is_dir() else ""
        raise ScenarioError(f"{path}: no such file; scenarios there: {near or 'none'}") from error
    if not isinstance(data, dict):
        kind = "an empty file" if data is None else type(data).__name__
        fields = settings.model_fields.items()
        # A scenario has a `game`, or, which is rarer, several `games`.
        required = [name for name, field in fields if field.is_required() or name == "game"]
        raise ScenarioError(f"{path}: must be a mapping with {', '.join(required)}; got {kind}")
    return data


def _override(data: dict[str, Any], override: str) -> str:
    """Carry out an override; return its field."""
    dotted, equals, text = override.partition("=")
    keys = dotted.split(".")
    if not equals or not all(keys):
        raise ScenarioError(f"override {override!r}: write it as dotted.path=value, e.g. schedule.steps=100")
    parent = data
    for depth, key in enumerate(keys[:-1], 1):
        inner = {} if parent.get(key) is None else parent[key]
        if not isinstance(inner, dict):
            field = ".".join(keys[:depth])
            hint = f"; to set fields of it, write it as {{kind: {inner}}} first" if isinstance(inner, str) else ""
            raise ScenarioError(f"override {override!r}: {field} is {inner!r}, which has no fields{hint}")
        # Copied, so that a section which YAML aliases made one object with another is overridden alone.
        parent[key] = parent = dict(inner)
    parent[keys[-1]] = mark_command_line_text(read_yaml(text, f"override {override!r}"))
    return dotted


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return the changes from one resolved scenario to another, a line each: `field: old -> new`."""
    lines = []
    for key in sorted({*old, *new}):
        a, b, field = old.get(key), new.get(key), f"{prefix}{key}"
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            lines += differences(a, b, f"{field}.")
        elif a != b:
            lines.append(f"{field}: {a!r} -> {b!r}")
    return lines


def explain(error: ValidationError) -> list[str]:
    """Return one line for each problem that pydantic found: field, what is wrong, value."""
    return [line for details in error.errors() if not _only_follows(details) for line in _problem_lines(details)]


def _only_follows(details: ErrorDetails) -> bool:
    """Return True if a list is said to be too short just because some of its items, which are reported, are wrong."""
    items, least = details["input"], details.get("ctx", {}).get("min_length", 0)
    return details["type"] == "too_short" and isinstance(items, Sized) and len(items) >= least


def _problem_lines(details: ErrorDetails) -> Iterator[str]:
    field, context = ".".join(map(str, details["loc"])), details.get("ctx", {})
    if details["type"] == "wrong":
        for below, problem in context["below"].items():
            yield f"{field}.{below}: {problem}" if field else f"{below}: {problem}"
        return
    for line in _message(details, context).split("\n"):
        yield f"{field}: {line}{_value(details, line)}" if field else line


def _message(details: ErrorDetails, context: Mapping[str, Any]) -> str:
    if details["type"] == "literal_error":
        choices = re.findall(r"'([^']*)'", context["expected"])
        return (
            f"unknown; {choices_hint(str(details['input']), choices)}" if choices else f"must be {context['expected']}"
        )
    if details["type"] == "string_type" and isinstance(details["input"], int | float):
        misread = "YAML reads yes, no, on and off as truth values; " if isinstance(details["input"], bool) else ""
        return f"must be text: {misread}quote it"
    if details["type"] in _MESSAGES:
        return _MESSAGES[details["type"]].format(**context)
    return details["msg"].removeprefix("Value error, ")


def _value(details: ErrorDetails, line: str) -> str:
    """Return ` (got VALUE)`, or "" where the message already says it or the value is a whole section of the file."""
    value = details["input"]
    shown = repr(value)
    section = isinstance(value, Mapping) and details["type"] in ("value_error", "missing")
    if section or details["type"] == "missing" or (isinstance(value, str) and shown in line):
        return ""
    return f" (got {shorten(shown)})"
