"""`marl describe`: types, defaults and meanings of the settings of a plug-in or section, with an example."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill, indent
from typing import Any, get_origin

import yaml
from pydantic.fields import FieldInfo

from marl.core.config import Config, PluginConfig, choices_hint, field_descriptions, similar
from marl.core.plugins import GROUPS, RENAMED_KINDS, find_plugin, import_plugin, known_kinds
from marl.scenario.schema import Scenario
from marl.scenario.yaml_text import ScenarioError, read_yaml
from marl.view.type_descriptions import config_classes, describe_default, describe_type, plugin_marker

SCENARIO_SKELETONS: Mapping[str, str] = {
    "games": "game: PART",
    "tasks": "game: {kind: team, task: PART, stages: [{role: solver}]}",
    "verifiers": "policies: {checker: {engine: {kind: verifiers, checks: {correct: PART}}}}",
    "tools": "policies: {helper: {engine: {kind: tools, tools: {helper: PART}}}}",
    "roles": "roles: {speaker: PART}",
    "models": "policies: {actor: {model: PART}}",
    "encoders": "policies: {actor: {model: {kind: q_network, actions: [a, b], encoder: PART}}}",
    "engines": "policies: {other: {engine: PART}}",
    "experience": "experience: PART",
    "credit": "credit: {assign: PART}",
    "baselines": "credit: {baseline: PART}",
    "trainers": "policies: {actor: {learner: PART}}",
    "losses": "policies: {actor: {learner: {kind: grpo, loss: PART}}}",
}
"""Plug-in group -> YAML skeleton of a scenario, with PART in the plug-in's position."""
GROUP_ALIASES: Mapping[str, str] = {
    **{group.removesuffix("s"): group for group in GROUPS},
    **{"assign": "credit", "learner": "trainers", "loss": "losses"},
}
"""Alternative word for a group -> group."""
_WIDTH = 100


_HOLE = "PART"
_NAME = "first"
"""Placeholder key in examples of mappings from names to settings."""


@dataclass(frozen=True)
class Subject:
    """Subject of a description: a plug-in, the scenario, or a single setting."""

    title: str
    settings: tuple[type[Config], ...]
    """Settings classes of the subject's values, or () for plain values such as numbers."""
    skeleton: Any
    """Part of a scenario with a hole for the values."""
    example_values: Any
    """Example values of the settings."""
    info: FieldInfo | None = None
    """Pydantic field of a setting, or None for the scenario and for plug-ins."""
    meaning: str = ""
    """Description of the field."""

    @property
    def example(self) -> dict[str, Any]:
        """Example scenario with the subject's values in the skeleton."""
        return _filled(self.skeleton, self.example_values)


def describe(words: Sequence[str]) -> str:
    """Return the description of a subject such as `grpo`, `role solver`, `schedule` or `grpo.reference`.

    Raises:
        ScenarioError: if the words match no subject or several; the message lists the choices.
    """
    path: list[str] = []
    for word in words:
        # The dots of an import path (MODULE:CLASS) do not separate settings.
        path += [word] if ":" in word else word.split(".")
    subject = _find(path)
    example = yaml.safe_dump(
        subject.example, sort_keys=False, allow_unicode=True, width=_WIDTH, default_flow_style=None
    )
    return "\n".join([*_lines(subject), "", "example:", indent(example.rstrip(), "  ")])


# --- names -----------------------------------------------------------------------------------------------------------


def _find(path: Sequence[str]) -> Subject:
    if not path or path[0] == "scenario":
        subject, fields = Subject("scenario", (Scenario,), _HOLE, read_yaml(Scenario.example, "example")), path[1:]
    elif len(path) > 1 and (group := _group(path[0])) and (path[1] in _kinds(group) or not _homes(path[0])):
        subject, fields = plugin_subject(group, path[1]), path[2:]
    else:
        subject, fields = _named(path[0]), path[1:]
    for name in fields:
        subject = _setting(subject, name)
    return subject


def _group(word: str) -> str:
    """Return the group for a word in plural or singular, or "" if no group matches."""
    return word if word in GROUPS else GROUP_ALIASES.get(word, "")


def _kinds(group: str) -> set[str]:
    return {*known_kinds(group), *RENAMED_KINDS.get(group, {})}


def _homes(name: str) -> list[str]:
    """Return every owner of `name`: `scenario` for a section, and the groups with that kind. Old kinds count only if
    nothing else matches."""
    homes = [*(["scenario"] if name in Scenario.model_fields else []), *(g for g in GROUPS if name in known_kinds(g))]
    return homes or [group for group in GROUPS if name in _kinds(group)]


def _named(name: str) -> Subject:
    """Return the plug-in or scenario section called `name`.

    Raises:
        ScenarioError: if nothing has the name, or several subjects have it.
    """
    if ":" in name:
        return plugin_subject(import_plugin(name).group, name)
    homes = _homes(name)
    if len(homes) > 1:
        choices = " or ".join(f"`marl describe {home} {name}`" for home in homes)
        raise ScenarioError(f"{name!r} stands in {' and '.join(homes)}: write {choices}")
    if not homes and (group := _group(name)):
        raise ScenarioError(
            f"{name!r} is a group of parts, so name one of it; choices: {', '.join(known_kinds(group))}"
        )
    if not homes:
        suggestion = similar(name, {*Scenario.model_fields, *(kind for group in GROUPS for kind in known_kinds(group))})
        sections = ", ".join(Scenario.model_fields)
        raise ScenarioError(f"nothing is called {name!r}; {suggestion}choices: {sections}, or a kind (see `marl list`)")
    return _find(["scenario", name]) if homes == ["scenario"] else plugin_subject(homes[0], name)


def plugin_subject(group: str, kind: str) -> Subject:
    """Return the subject for a plug-in.

    Raises:
        ValueError: if the plug-in does not exist.
    """
    part = find_plugin(group, kind)
    values = {"kind": kind, **_example_of(part)}
    return Subject(f"{kind}, one of {group}", (part,), read_yaml(SCENARIO_SKELETONS[group], group), values)


def _example_of(settings: type[Config]) -> dict[str, Any]:
    return read_yaml(f"{{{settings.example}}}", f"example of {settings.__name__}")


def _setting(subject: Subject, name: str) -> Subject:
    """Return the subject for one setting of `subject`.

    Raises:
        ScenarioError: if the setting does not exist.
    """
    fields: dict[str, tuple[type[Config], FieldInfo]] = {}
    for settings_class in subject.settings:
        for key, info in settings_class.model_fields.items():
            fields[key] = settings_class, info
    if name not in fields:
        part = plugin_marker(subject.info) if subject.info else None
        choices = [*fields, *(known_kinds(part.group) if part else ())]
        raise ScenarioError(f"{subject.title} has no setting {name!r}; {choices_hint(name, choices)}")
    holder, info = fields[name]
    part = plugin_marker(info)
    settings = (part.base,) if part else tuple(config_classes(info))
    skeleton, values = _place(subject, name, settings, named=get_origin(info.annotation) is dict)
    title = name if holder is Scenario else f"{name}, a setting of {subject.title}"
    return Subject(title, settings, skeleton, values, info, field_descriptions(holder).get(name, ""))


def _place(subject: Subject, name: str, settings: tuple[type[Config], ...], *, named: bool) -> tuple[Any, Any]:
    """Return skeleton and example values of a setting, or those of `subject` if its example lacks the setting.

    `named` is True for a mapping from names to settings.
    """
    value = subject.example_values.get(name) if isinstance(subject.example_values, dict) else None
    if value is None and len(settings) == 1 and (example := _example_of(settings[0])):
        value = {_NAME: example} if named else example
    if value is None:
        return subject.skeleton, subject.example_values
    hole: Any = _HOLE
    fields = {key for each in settings for key in each.model_fields}
    if isinstance(value, dict) and len(value) == 1 and fields and not value.keys() & fields:
        # A mapping from names to settings.
        [(key, value)] = value.items()
        hole = {key: _HOLE}
    other_values = {} if subject.settings == (Scenario,) else subject.example_values
    return _filled(subject.skeleton, {**other_values, name: hole}), value


def _filled(skeleton: Any, value: Any) -> Any:
    """Return the skeleton with `value` in its hole."""
    if isinstance(skeleton, dict):
        return {key: _filled(inner, value) for key, inner in skeleton.items()}
    return value if skeleton == _HOLE else skeleton


# --- text ------------------------------------------------------------------------------------------------------------


def _lines(subject: Subject) -> Iterator[str]:
    heading = _field_lines(subject.title, subject.info, subject.meaning, "") if subject.info else [f"{subject.title}:"]
    yield from heading
    for settings, paths in nested_settings(subject.settings).items():
        yield from ["", f"{', '.join(paths)}:"] if paths else []
        yield indent(inspect.cleandoc(settings.__doc__ or ""), "    ")
        texts = field_descriptions(settings)
        for name, info in settings.model_fields.items():
            if name != "kind" or not issubclass(settings, PluginConfig):
                yield from ["", *_field_lines(name, info, texts.get(name, ""), "  ")]


def nested_settings(settings: tuple[type[Config], ...]) -> dict[type[Config], list[str]]:
    """Return every settings class reachable from `settings`, mapped to the dotted fields that hold it."""
    holders: dict[type[Config], list[str]] = {subject_class: [] for subject_class in settings}
    queue = [(subject_class, "") for subject_class in settings if subject_class is not Scenario]
    for outer, prefix in queue:
        for name, info in outer.model_fields.items():
            for inner in config_classes(info):
                if inner not in holders:
                    queue.append((inner, f"{prefix}{name}."))
                holders.setdefault(inner, []).append(f"{prefix}{name}")
    return holders


def _field_lines(name: str, info: FieldInfo, meaning: str, margin: str) -> Iterator[str]:
    head = f"{name}: {describe_type(info)}; {describe_default(info)}"
    yield fill(head, _WIDTH, initial_indent=margin, subsequent_indent=f"{margin}    ", break_on_hyphens=False)
    if meaning:
        inner = f"{margin}    "
        yield fill(meaning, _WIDTH, initial_indent=inner, subsequent_indent=inner, break_on_hyphens=False)
