"""`marl describe`: types, defaults and meanings of the settings of a plug-in or section, with an example."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from textwrap import fill, indent
from typing import Any, get_origin

import yaml
from pydantic.fields import FieldInfo

from marl.core.config import Config, PluginConfig, choices_hint, did_you_mean, field_descriptions
from marl.core.plugins import GROUPS, RENAMED_KINDS, find_plugin, import_plugin, known_kinds
from marl.scenario.schema import Scenario
from marl.scenario.yaml_text import ScenarioError, read_yaml
from marl.view.type_descriptions import (
    describe_default,
    describe_type,
    plugin_marker_of_field,
    settings_classes_of_field,
)

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
"""Word that a user may write for a group of plug-ins -> the group's name."""
_WIDTH = 100
"""Maximum width of the text [characters]."""
_PLACEHOLDER = "PART"
"""Placeholder of a skeleton that example values replace."""
_NAME = "first"
"""Key used in examples of mappings from names to settings, such as `policies`."""


@dataclass(frozen=True)
class PluginOrSetting:
    """Subject of `marl describe`: a plug-in, the scenario, or a single setting."""

    title: str
    """First line of the description, such as `grpo, one of trainers`."""
    settings: tuple[type[Config], ...]
    """Pydantic classes whose fields are described, or () for a plain setting such as a number."""
    skeleton: Any
    """Parsed YAML of an example scenario, with the placeholder `PART` where `example_values` belong."""
    example_values: Any
    """Parsed YAML that replaces the placeholder `PART` of `skeleton` in the example scenario."""
    info: FieldInfo | None = None
    """Pydantic field of a setting, or None for the scenario and for plug-ins."""
    meaning: str = ""
    """Text below the setting's field, or "" for the scenario and for plug-ins."""

    @property
    def example_scenario(self) -> dict[str, Any]:
        """Example scenario that contains the described plug-in, section or setting."""
        return _replace_placeholder_with_values(self.skeleton, self.example_values)


def describe_plugin_or_setting(name_words: Sequence[str]) -> str:
    """Return the description of a plug-in (`grpo`, `role solver`), section (`schedule`) or setting (`grpo.reference`).

    Raises:
        ScenarioError: if the words match no plug-in, section or setting, or several; the message lists the choices.
    """
    path: list[str] = []
    for word in " ".join(name_words).split():
        # Dots separate settings (`grpo.reference`), but not in an import path (MODULE:CLASS).
        path += [word] if ":" in word else word.split(".")
    subject = _find_plugin_or_setting(path)
    example = yaml.safe_dump(
        subject.example_scenario, sort_keys=False, allow_unicode=True, width=_WIDTH, default_flow_style=None
    )
    lines = [f"{subject.title}:"]
    if subject.info:
        lines = list(_field_description_lines(subject.title, subject.info, subject.meaning, ""))
    for settings, paths in field_paths_by_settings_class(subject.settings).items():
        lines += ["", f"{', '.join(paths)}:"] if paths else []
        lines.append(indent(inspect.cleandoc(settings.__doc__ or ""), "    "))
        texts = field_descriptions(settings)
        for name, info in settings.model_fields.items():
            if name != "kind" or not issubclass(settings, PluginConfig):
                lines += ["", *_field_description_lines(name, info, texts.get(name, ""), "  ")]
    return "\n".join([*lines, "", "example:", indent(example.rstrip(), "  ")])


# --- finding a setting, plug-in or section by name --------------------------------------------------------------------


def _find_plugin_or_setting(name_path: Sequence[str]) -> PluginOrSetting:
    """Return the plug-in, section or setting at the end of a path of names, such as `grpo`, `reference`, `kind`."""
    if not name_path or name_path[0] == "scenario":
        subject, fields = (
            PluginOrSetting("scenario", (Scenario,), _PLACEHOLDER, read_yaml(Scenario.example, "example")),
            name_path[1:],
        )
    elif (
        len(name_path) > 1
        and (group := _plugin_group_named_by(name_path[0]))
        and (name_path[1] in _current_and_former_kinds(group) or not _groups_containing_name(name_path[0]))
    ):
        subject, fields = plugin_of_kind(group, name_path[1]), name_path[2:]
    else:
        subject, fields = _find_plugin_or_section(name_path[0]), name_path[1:]
    for name in fields:
        subject = _find_setting_within(subject, name)
    return subject


def _plugin_group_named_by(word: str) -> str:
    """Return the plug-in group that `word` names, in plural or singular, or "" if no group has this name."""
    return word if word in GROUPS else GROUP_ALIASES.get(word, "")


def _current_and_former_kinds(group: str) -> set[str]:
    """Return the kinds of a plug-in group, including the names of kinds in earlier versions."""
    return {*known_kinds(group), *RENAMED_KINDS.get(group, {})}


def _groups_containing_name(name: str) -> list[str]:
    """Return the groups with a plug-in of kind `name`, after `scenario` if `name` is a section of a scenario.

    Kinds of earlier versions count only if nothing else matches.
    """
    owners = ["scenario"] if name in Scenario.model_fields else []
    owners += [group for group in GROUPS if name in known_kinds(group)]
    return owners or [group for group in GROUPS if name in _current_and_former_kinds(group)]


def _find_plugin_or_section(name: str) -> PluginOrSetting:
    """Return the plug-in or scenario section called `name`.

    Raises:
        ScenarioError: if no plug-in or section has the name, or several have it.
    """
    if ":" in name:
        return plugin_of_kind(import_plugin(name).group, name)
    owners = _groups_containing_name(name)
    if len(owners) > 1:
        choices = " or ".join(f"`marl describe {owner} {name}`" for owner in owners)
        raise ScenarioError(f"{name!r} stands in {' and '.join(owners)}: write {choices}")
    if not owners and (group := _plugin_group_named_by(name)):
        raise ScenarioError(
            f"{name!r} is a group of parts, so name one of it; choices: {', '.join(known_kinds(group))}"
        )
    if not owners:
        suggestion = did_you_mean(name, {*Scenario.model_fields, *chain.from_iterable(map(known_kinds, GROUPS))})
        sections = ", ".join(Scenario.model_fields)
        raise ScenarioError(f"nothing is called {name!r}; {suggestion}choices: {sections}, or a kind (see `marl list`)")
    return _find_plugin_or_setting(["scenario", name]) if owners == ["scenario"] else plugin_of_kind(owners[0], name)


def plugin_of_kind(group: str, kind: str) -> PluginOrSetting:
    """Return the plug-in that `marl describe GROUP KIND` describes.

    Raises:
        ValueError: if the plug-in does not exist.
    """
    part = find_plugin(group, kind)
    values = {"kind": kind, **_example_values(part)}
    return PluginOrSetting(f"{kind}, one of {group}", (part,), read_yaml(SCENARIO_SKELETONS[group], group), values)


def _example_values(settings_class: type[Config]) -> dict[str, Any]:
    """Return the example values of a settings class, parsed from the YAML of its attribute `example`."""
    return read_yaml(f"{{{settings_class.example}}}", f"example of {settings_class.__name__}")


def _find_setting_within(parent: PluginOrSetting, setting_name: str) -> PluginOrSetting:
    """Return the setting `setting_name` of `parent`.

    Raises:
        ScenarioError: if the setting does not exist.
    """
    fields: dict[str, tuple[type[Config], FieldInfo]] = {}
    for settings_class in parent.settings:
        for key, info in settings_class.model_fields.items():
            fields[key] = settings_class, info
    if setting_name not in fields:
        part = plugin_marker_of_field(parent.info) if parent.info else None
        choices = [*fields, *(known_kinds(part.group) if part else ())]
        raise ScenarioError(f"{parent.title} has no setting {setting_name!r}; {choices_hint(setting_name, choices)}")
    holder, info = fields[setting_name]
    part = plugin_marker_of_field(info)
    settings = (part.base,) if part else tuple(settings_classes_of_field(info))
    # A setting is shown in the example of its plug-in or section, or else in the example of its own class.
    skeleton, values = parent.skeleton, parent.example_values
    example = values.get(setting_name) if isinstance(values, dict) else None
    if example is None and len(settings) == 1 and (own_values := _example_values(settings[0])):
        example = {_NAME: own_values} if get_origin(info.annotation) is dict else own_values
    if example is not None:
        hole: Any = _PLACEHOLDER
        setting_names = set(chain.from_iterable(each.model_fields for each in settings))
        if isinstance(example, dict) and len(example) == 1 and setting_names and not example.keys() & setting_names:
            # The field maps names to settings, and the example has one such name.
            [(key, example)] = example.items()
            hole = {key: _PLACEHOLDER}
        other_values = {} if parent.settings == (Scenario,) else values
        skeleton, values = _replace_placeholder_with_values(skeleton, {**other_values, setting_name: hole}), example
    title = setting_name if holder is Scenario else f"{setting_name}, a setting of {parent.title}"
    return PluginOrSetting(title, settings, skeleton, values, info, field_descriptions(holder).get(setting_name, ""))


def _replace_placeholder_with_values(skeleton: Any, values: Any) -> Any:
    """Return `skeleton` with `values` in place of its placeholder `PART`."""
    if isinstance(skeleton, dict):
        return {key: _replace_placeholder_with_values(inner, values) for key, inner in skeleton.items()}
    return values if skeleton == _PLACEHOLDER else skeleton


# --- lines that describe fields ---------------------------------------------------------------------------------------


def field_paths_by_settings_class(settings_classes: tuple[type[Config], ...]) -> dict[type[Config], list[str]]:
    """Return settings class -> dotted paths of the fields that hold the class, for all classes within
    `settings_classes`."""
    holders: dict[type[Config], list[str]] = {subject_class: [] for subject_class in settings_classes}
    queue = [(subject_class, "") for subject_class in settings_classes if subject_class is not Scenario]
    for outer, prefix in queue:
        for name, info in outer.model_fields.items():
            for inner in settings_classes_of_field(info):
                if inner not in holders:
                    queue.append((inner, f"{prefix}{name}."))
                holders.setdefault(inner, []).append(f"{prefix}{name}")
    return holders


def _field_description_lines(name: str, field_info: FieldInfo, meaning: str, indentation: str) -> Iterator[str]:
    """Yield the name, type and default of a field, and the text below it, indented by `indentation`."""
    head = f"{name}: {describe_type(field_info)}; {describe_default(field_info)}"
    yield fill(head, _WIDTH, initial_indent=indentation, subsequent_indent=f"{indentation}    ", break_on_hyphens=False)
    if meaning:
        inner = f"{indentation}    "
        yield fill(meaning, _WIDTH, initial_indent=inner, subsequent_indent=inner, break_on_hyphens=False)
