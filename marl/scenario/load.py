"""Loading of scenarios: a YAML file and dotted overrides become a validated scenario, or an error with a remedy."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Sized
from copy import copy
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from marl.core.config import FIELD_PREFIX, Config, choices_hint, shorten
from marl.core.plugins import PluginField
from marl.host.paths import PathResolver, current_resolver, mark_texts_as_command_line_text, use_path_resolver
from marl.protocols import GameConfig
from marl.scenario.checks import missing_requirements
from marl.scenario.schema import Scenario
from marl.scenario.trust import consent_check
from marl.scenario.yaml_text import ScenarioError, read_yaml, read_yaml_file

_Settings = TypeVar("_Settings", bound=Config)
_MAX_PROBLEMS, _MAX_PROBLEM_LENGTH = 30, 1500
"""Maximum number of problems in an error message, and maximum length of each (characters)."""
_UNION_BRANCH = re.compile(r"constrained-\w+|(literal|tuple|list|dict)\[.*\]|bool|int|float|str")
"""Name that pydantic gives to one alternative of a union of types, in the location of an error."""
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
"""Type of a pydantic error -> message for the scenario's author."""


def load(
    source: str | Path | Mapping[str, Any],
    overrides: Iterable[str] = (),
    *,
    to_train: bool = True,
    random_play: bool = False,
) -> Scenario:
    """Return the validated scenario of a YAML file, or of equal plain data.

    Relative paths in a file start at the file's folder. Relative paths in plain data and in overrides start at the
    working directory.

    Args:
        source: path of the file, or plain data.
        overrides: changes of single settings, as `dotted.path=value` with the value in YAML.
        to_train: True if some policy must have a learner.
        random_play: True to check only requirements of random play, without weights and training data.

    Raises:
        ScenarioError: naming file, field, value and choices.
    """
    if isinstance(source, Mapping):
        name, folder, data = "scenario", Path.cwd(), dict(source)
    else:
        name, folder, data = str(source), Path(source).parent, _read_yaml_mapping(Path(source))
    typed_fields = [_apply_override(data, override) for override in overrides]
    resolver = PathResolver(folder)
    with use_path_resolver(resolver):
        scenario = validate(data, name, typed_fields, to_train=to_train)
    problems = missing_requirements(scenario, random_play=random_play)
    if problems:
        raise _scenario_error(name, list(map(resolver.add_original_path_notes, problems)))
    return scenario


def validate(
    data: Mapping[str, Any], name: str = "scenario", user_typed_fields: Sequence[str] = (), *, to_train: bool = True
) -> Scenario:
    """Return the validated scenario of plain data. Relative paths stay unchanged, except within `use_path_resolver`.

    Args:
        data: content of a scenario file.
        name: name of the file, or another name for the data in error messages.
        user_typed_fields: dotted paths of the fields that the user typed, which need no consent.
        to_train: True if some policy must have a learner.

    Raises:
        ScenarioError: as `load`, or, in a command, if the user does not consent to an access outside the scenario.
    """
    return _validate_as(Scenario, data, name, user_typed_fields, to_train=to_train)


def load_settings(path: Path, settings: type[_Settings]) -> _Settings:
    """Return the validated settings of a YAML file that is no scenario, such as a suite.

    Relative paths start at the file's folder.

    Raises:
        ScenarioError: as `load`.
    """
    with use_path_resolver(PathResolver(path.parent)):
        return _validate_as(settings, _read_yaml_mapping(path, settings), str(path))


class _SingleGameSettings(Config):
    game: Annotated[GameConfig, PluginField("games", GameConfig)]
    """Game to validate without a scenario."""


def game_settings(kind: str, settings: Mapping[str, Any]) -> GameConfig:
    """Return the validated settings of a game, as under a scenario's `game`.

    Relative paths start at the working directory.

    Raises:
        ScenarioError: naming field, value and choices.
    """
    with use_path_resolver(PathResolver(Path.cwd())):
        return _validate_as(_SingleGameSettings, {"game": {**settings, "kind": kind}}, "env").game


def _validate_as(
    settings: type[_Settings],
    data: Mapping[str, Any],
    name: str,
    user_typed_fields: Sequence[str] = (),
    *,
    to_train: bool = True,
) -> _Settings:
    """Return `data` as `settings`, after the user's consent. `name` stands for the file in error messages."""
    if check_consent := consent_check.get():
        check_consent(data, name, user_typed_fields)
    try:
        return settings.model_validate(data, context={"to_train": to_train})
    except ValidationError as error:
        problems, resolver = explain_validation_error(error), current_resolver.get()
        raise _scenario_error(
            name, list(map(resolver.add_original_path_notes, problems)) if resolver else problems
        ) from error


def format_problem_list(problems: Sequence[str]) -> str:
    """Return `problems` with one per line, at most `_MAX_PROBLEMS` of them, and each at most of `_MAX_PROBLEM_LENGTH`.

    A last line counts the omitted problems.
    """
    lines = [f"  {shorten(problem, _MAX_PROBLEM_LENGTH)}" for problem in problems[:_MAX_PROBLEMS]]
    omitted = len(problems) - len(lines)
    if omitted:
        lines.append(f"  and {omitted} more")
    return "\n".join(lines)


def _scenario_error(name: str, problems: Sequence[str]) -> ScenarioError:
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return ScenarioError(f"{name}: {count}\n{format_problem_list(problems)}")


def _read_yaml_mapping(path: Path, settings: type[Config] = Scenario) -> dict[str, Any]:
    """Return the plain data of a YAML file that must be a mapping. `settings` names its fields in error messages."""
    try:
        data = read_yaml_file(path)
    except FileNotFoundError as error:
        nearby = sorted(path.parent.glob("*.yaml"))[:12] if path.parent.is_dir() else []
        scenarios = ", ".join(map(str, nearby)) or "none"
        raise ScenarioError(f"{path}: no such file; scenarios there: {scenarios}") from error
    if not isinstance(data, dict):
        found = "an empty file" if data is None else type(data).__name__
        fields = settings.model_fields.items()
        # `game` is listed as required, although `games` may take its place.
        required = [name for name, field in fields if field.is_required() or name == "game"]
        raise ScenarioError(f"{path}: must be a mapping with {', '.join(required)}; got {found}")
    return data


def _apply_override(data: dict[str, Any], override: str) -> str:
    """Change `data` by an override such as `schedule.steps=100`, and return the dotted path of its field."""
    dotted, equals, text = override.partition("=")
    keys = dotted.split(".")
    if not equals or not all(keys):
        raise ScenarioError(f"override {override!r}: write it as dotted.path=value, e.g. schedule.steps=100")
    parent: Any = data
    for depth, key in enumerate(keys[:-1], 1):
        index = _mapping_key_or_list_index(parent, key, override)
        inner = {} if isinstance(parent, dict) and parent.get(key) is None else parent[index]
        if not isinstance(inner, dict | list):
            field, named = ".".join(keys[:depth]), f"{{kind: {inner}}}"
            if key in ("model", "base"):
                named = f"{{kind: pretrained, path: {inner}}}"
            hint = f"; to set fields of it, write it as {named} first" if isinstance(inner, str) else ""
            raise ScenarioError(f"override {override!r}: {field} is {shorten(repr(inner))}, which has no fields{hint}")
        # The section is copied before it is changed: a YAML alias may make two sections the same object.
        parent[index] = parent = copy(inner)
    parent[_mapping_key_or_list_index(parent, keys[-1], override)] = mark_texts_as_command_line_text(
        read_yaml(text, f"override {override!r}")
    )
    return dotted


def _mapping_key_or_list_index(parent: dict[str, Any] | list[Any], key: str, override: str) -> Any:
    """Return `key` as a key of the mapping `parent`, or as an index (from 0) of the list `parent`.

    Raises:
        ScenarioError: if the list has no such item.
    """
    if isinstance(parent, dict):
        return key
    if not key.isdecimal() or int(key) >= len(parent):
        raise ScenarioError(f"override {override!r}: no item {key!r} in a list of {len(parent)}, counted from 0")
    return int(key)


def setting_change_lines(
    old_settings: Mapping[str, Any], new_settings: Mapping[str, Any], field_prefix: str = ""
) -> list[str]:
    """Return the changes from one resolved scenario to another, one per line, as `field: old -> new`."""
    lines: list[str] = []
    for key in sorted({*old_settings, *new_settings}):
        before, after, field = old_settings.get(key), new_settings.get(key), f"{field_prefix}{key}"
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            lines += setting_change_lines(before, after, f"{field}.")
        elif before != after:
            lines.append(f"{field}: {before!r} -> {after!r}")
    return lines


def explain_validation_error(error: ValidationError) -> list[str]:
    """Return one line for each problem that pydantic found, with field, problem and value."""
    lines: list[str] = []
    for details in error.errors():
        location, context, value = details["loc"], details.get("ctx", {}), details["input"]
        alternative = str(location[-1]) if location else ""
        # A union's alternative that is a section has its class as name.
        field = _dotted_field(location[:-1] if alternative == context.get("class_name") else location)
        if details["type"] == "wrong":
            for name, problem in context["below"].items():
                lines.append(f"{field}.{name}: {problem}" if field else f"{name}: {problem}")
            continue
        # If items of a list are wrong, pydantic also calls the list too short; the items' own errors are enough.
        if details["type"] == "too_short" and isinstance(value, Sized) and len(value) >= context.get("min_length", 0):
            continue
        # Of a union, a list or mapping was meant for another alternative than a text such as `auto`.
        if alternative.startswith("literal[") and isinstance(value, Mapping | list):
            continue
        is_section = isinstance(value, Mapping) and details["type"] == "value_error"
        own_name = field.rpartition(".")[2]
        for text in _problem_message(details, context).split("\n"):
            # A validator may name its field, which stands before the message already.
            line = text if is_section else text.removeprefix(f"{own_name}: ")
            # The value is not shown if the message has it, or if it is a full section, which would be too long.
            hides_value = is_section or details["type"] == "missing" or (isinstance(value, str) and repr(value) in line)
            shown = "" if hides_value else f" (got {shorten(repr(value))})"
            # A section's message may begin with one of its settings: `game` and `task.path: …` give `game.task.path`.
            first = re.split(r"[.:]", line)[0] if FIELD_PREFIX.match(line) else ""
            separator = "." if isinstance(value, Mapping) and is_section and first in value else ": "
            lines.append(f"{field}{separator}{line}{shown}" if field else line)
    return lines


def _dotted_field(location: tuple[int | str, ...]) -> str:
    """Return the dotted name of a field as it stands in the file, without pydantic's names of a union's branches."""
    names: list[str] = []
    for index, name in enumerate(map(str, location)):
        is_stage_branch = name in ("stage", "loop", "keep") and isinstance(location[index - 1], int)
        if not is_stage_branch and not _UNION_BRANCH.fullmatch(name):
            names.append(name)
    return ".".join(names)


def _problem_message(details: ErrorDetails, context: Mapping[str, Any]) -> str:
    """Return the message for a problem that pydantic found. `context` has the values that pydantic's message names."""
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
