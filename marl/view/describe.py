"""`marl describe`: the settings of a part or of a section, each with type, default and meaning, and an example."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill, indent
from typing import Any, get_origin

import yaml
from pydantic.fields import FieldInfo

from marl.config import Component, Config, meanings, nearest, similar
from marl.parts import GROUPS, RENAMED, current_kind, find, find_any, names
from marl.scenario.schema import Scenario
from marl.scenario.yaml_text import ScenarioError, read_yaml
from marl.view.type_words import default_words, part_in, settings_in, type_words

PLACES: Mapping[str, str] = {
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
"""Group -> a place of its parts in a scenario, in YAML."""
SINGULARS: Mapping[str, str] = {
    **{group.removesuffix("s"): group for group in GROUPS},
    **{"assign": "credit", "learner": "trainers", "loss": "losses"},
}
"""Word for one part of a group -> the group."""
_WIDTH = 100


_HOLE = "PART"
_NAME = "first"
"""Name in an example of a mapping from names to settings."""


@dataclass(frozen=True)
class Subject:
    """A thing to describe: settings, or a single setting."""

    title: str
    settings: tuple[type[Config], ...]
    """Classes that its values are settings of; () for a number, a text and so on."""
    place: Any
    """A piece of a scenario with a hole for the values."""
    values: Any
    """Example values of the settings."""
    info: FieldInfo | None = None
    """The field, if it is one; None for the scenario and for parts."""
    meaning: str = ""
    """Meaning of the field."""

    @property
    def example(self) -> dict[str, Any]:
        """Return a piece of a scenario that holds it."""
        return _filled(self.place, self.values)


def describe(words: Sequence[str]) -> str:
    """Return the description of what the words name: `grpo`, `role solver`, `schedule`, `grpo.reference`.

    Raises:
        ScenarioError: if they name nothing, or several things, with the choices.
    """
    subject = _find([name for word in words for name in _split(word)])
    example = yaml.safe_dump(
        subject.example, sort_keys=False, allow_unicode=True, width=_WIDTH, default_flow_style=None
    )
    return "\n".join([*_lines(subject), "", "example:", indent(example.rstrip(), "  ")])


# --- names -----------------------------------------------------------------------------------------------------------


def _split(word: str) -> list[str]:
    """Return the names in a dotted word; an import path has dots of its own."""
    return [word] if ":" in word else word.split(".")


def _find(path: Sequence[str]) -> Subject:
    if not path or path[0] == "scenario":
        subject, fields = Subject("scenario", (Scenario,), _HOLE, read_yaml(Scenario.example, "example")), path[1:]
    elif len(path) > 1 and (group := _group(path[0])) and (path[1] in _kinds(group) or not _homes(path[0])):
        subject, fields = part_subject(group, path[1]), path[2:]
    else:
        subject, fields = _named(path[0]), path[1:]
    for name in fields:
        subject = _setting(subject, name)
    return subject


def _group(word: str) -> str:
    """Return the group that a word stands for, in the plural or the singular; "" if it is none."""
    return word if word in GROUPS else SINGULARS.get(word, "")


def _kinds(group: str) -> set[str]:
    return {*names(group), *RENAMED.get(group, {})}


def _homes(name: str) -> list[str]:
    """Return `scenario` if a section has that name, and the groups that have a kind of it, or else an old one."""
    homes = [*(["scenario"] if name in Scenario.model_fields else []), *(g for g in GROUPS if name in names(g))]
    return homes or [group for group in GROUPS if name in _kinds(group)]


def _named(name: str) -> Subject:
    """Return the part or the section of the scenario that has a name.

    Raises:
        ScenarioError: if nothing has it, or more than one thing.
    """
    if ":" in name:
        return part_subject(find_any(name).group, name)
    homes = _homes(name)
    if len(homes) > 1:
        choices = " or ".join(f"`marl describe {home} {name}`" for home in homes)
        raise ScenarioError(f"{name!r} stands in {' and '.join(homes)}: write {choices}")
    if not homes and (group := _group(name)):
        raise ScenarioError(f"{name!r} is a group of parts, so name one of it; choices: {', '.join(names(group))}")
    if not homes:
        near = similar(name, {*Scenario.model_fields, *(kind for group in GROUPS for kind in names(group))})
        sections = ", ".join(Scenario.model_fields)
        raise ScenarioError(f"nothing is called {name!r}; {near}choices: {sections}, or a kind (see `marl list`)")
    return _find(["scenario", name]) if homes == ["scenario"] else part_subject(homes[0], name)


def part_subject(group: str, kind: str) -> Subject:
    """Return a part by its group and kind.

    Raises:
        ValueError: if there is none.
    """
    part, kind = find(group, kind), current_kind(group, kind)
    values = {"kind": kind, **_example_of(part)}
    return Subject(f"{kind}, one of {group}", (part,), read_yaml(PLACES[group], group), values)


def _example_of(settings: type[Config]) -> dict[str, Any]:
    return read_yaml(f"{{{settings.example}}}", f"example of {settings.__name__}")


def _setting(subject: Subject, name: str) -> Subject:
    """Return the setting of that name.

    Raises:
        ScenarioError: if there is none.
    """
    fields = {key: (each, info) for each in subject.settings for key, info in each.model_fields.items()}
    if name not in fields:
        part = part_in(subject.info) if subject.info else None
        choices = [*fields, *(names(part.group) if part else ())]
        raise ScenarioError(f"{subject.title} has no setting {name!r}; {nearest(name, choices)}")
    holder, info = fields[name]
    part = part_in(info)
    settings = (part.base,) if part else tuple(settings_in(info))
    place, values = _place(subject, name, settings, named=get_origin(info.annotation) is dict)
    title = name if holder is Scenario else f"{name}, a setting of {subject.title}"
    return Subject(title, settings, place, values, info, meanings(holder).get(name, ""))


def _place(subject: Subject, name: str, settings: tuple[type[Config], ...], *, named: bool) -> tuple[Any, Any]:
    """Return the place and the example values of a setting; the subject's own where the example does not hold it.

    `named`: the setting is a mapping from names to settings.
    """
    value = subject.values.get(name) if isinstance(subject.values, dict) else None
    if value is None and len(settings) == 1 and (example := _example_of(settings[0])):
        value = {_NAME: example} if named else example
    if value is None:
        return subject.place, subject.values
    hole: Any = _HOLE
    fields = {key for each in settings for key in each.model_fields}
    if isinstance(value, dict) and len(value) == 1 and fields and not value.keys() & fields:
        # A mapping from names to settings.
        [(key, value)] = value.items()
        hole = {key: _HOLE}
    rest = {} if subject.settings == (Scenario,) else subject.values
    return _filled(subject.place, {**rest, name: hole}), value


def _filled(place: Any, value: Any) -> Any:
    """Return a piece of a scenario with `value` in its hole."""
    if isinstance(place, dict):
        return {key: _filled(inner, value) for key, inner in place.items()}
    return value if place == _HOLE else place


# --- text ------------------------------------------------------------------------------------------------------------


def _lines(subject: Subject) -> Iterator[str]:
    heading = _field_lines(subject.title, subject.info, subject.meaning, "") if subject.info else [f"{subject.title}:"]
    yield from heading
    for settings, paths in sections(subject.settings).items():
        yield from ["", f"{', '.join(paths)}:"] if paths else []
        yield indent(inspect.cleandoc(settings.__doc__ or ""), "    ")
        texts = meanings(settings)
        for name, info in settings.model_fields.items():
            if name != "kind" or not issubclass(settings, Component):
                yield from ["", *_field_lines(name, info, texts.get(name, ""), "  ")]


def sections(settings: tuple[type[Config], ...]) -> dict[type[Config], list[str]]:
    """Return the settings and all that stand within them, each class once, with the fields that hold it."""
    holders: dict[type[Config], list[str]] = {each: [] for each in settings}
    waiting = [(each, "") for each in settings if each is not Scenario]
    for outer, prefix in waiting:
        for name, info in outer.model_fields.items():
            for inner in settings_in(info):
                if inner not in holders:
                    waiting.append((inner, f"{prefix}{name}."))
                holders.setdefault(inner, []).append(f"{prefix}{name}")
    return holders


def _field_lines(name: str, info: FieldInfo, meaning: str, margin: str) -> Iterator[str]:
    head = f"{name}: {type_words(info)}; {default_words(info)}"
    yield fill(head, _WIDTH, initial_indent=margin, subsequent_indent=f"{margin}    ", break_on_hyphens=False)
    if meaning:
        inner = f"{margin}    "
        yield fill(meaning, _WIDTH, initial_indent=inner, subsequent_indent=inner, break_on_hyphens=False)
