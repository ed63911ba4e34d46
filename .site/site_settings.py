"""Pages of the settings: for each section and part, every field with type, default and meaning, and an example."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import get_origin

import yaml

from marl.core.config import Config, PluginConfig, field_descriptions
from marl.core.plugins import GROUPS, find_plugin, known_kinds
from marl.scenario.schema import Scenario
from marl.scenario.yaml_text import read_yaml
from marl.view.settings_reference import SCENARIO_SKELETONS, field_paths_by_settings_class, plugin_of_kind
from marl.view.type_descriptions import describe_default, describe_type, settings_classes_of_field

TITLES = {"credit": "credit: assign", "baselines": "credit: baseline", "trainers": "learners", "engines": "engines"}
"""Group -> its heading, where that is not its name."""


@cache
def settings_pages() -> dict[str, tuple[str, str]]:
    """Return page -> (title, text): the sections of a scenario, then a page for each group of parts."""
    pages = {"settings/scenario.md": ("sections", "".join(_scenario()))}
    for group in GROUPS:
        pages[f"settings/{group}.md"] = (TITLES.get(group, group), "".join(_group(group)))
    return pages


def _scenario() -> Iterator[str]:
    yield "# Sections of a scenario\n\n"
    yield "Types, defaults and field_descriptions as `marl describe` prints them and the schema holds them. "
    yield "Values that are parts have pages of their own.\n\n## The file\n\n"
    yield from _described(Scenario)
    example = yaml.safe_dump(read_yaml(Scenario.example, "example"), sort_keys=False, default_flow_style=None)
    yield f"```yaml\n{example.rstrip()}\n```\n\n"
    for settings, paths in _sections().items():
        yield f"## {paths[0]}\n\n"
        if len(paths) > 1:
            yield f"Also: {', '.join(map(_code, paths[1:]))}.\n\n"
        yield from _described(settings)


def _sections() -> dict[type[Config], list[str]]:
    """Return settings -> where they stand in a scenario, for all that are no parts; NAME is a name of the author's."""
    places: dict[type[Config], list[str]] = {}
    for name, info in Scenario.model_fields.items():
        place = f"{name}.NAME" if get_origin(info.annotation) is dict else name
        for section in settings_classes_of_field(info):
            for settings, paths in field_paths_by_settings_class((section,)).items():
                places.setdefault(settings, []).extend(f"{place}.{path}" for path in paths)
            places[section].append(place)
    return {settings: sorted(paths, key=lambda path: path.count(".")) for settings, paths in places.items()}


def _group(group: str) -> Iterator[str]:
    yield f"# {TITLES.get(group, group).capitalize()}\n\n"
    yield f"Parts that stand in a scenario as `{SCENARIO_SKELETONS[group]}`, where `PART` is one of these, "
    yield "or an import path of a class of your own.\n\n"
    within: dict[type[Config], list[str]] = {}
    for kind in known_kinds(group):
        yield f"## {kind}\n\n"
        part = find_plugin(group, kind)
        yield from _described(part)
        for settings, paths in field_paths_by_settings_class((part,)).items():
            within.setdefault(settings, []).extend(f"{kind}.{path}" for path in paths)
        example = yaml.safe_dump(plugin_of_kind(group, kind).example_scenario, sort_keys=False, allow_unicode=True)
        yield f"```yaml\n{example.rstrip()}\n```\n\n"
    for settings, paths in within.items():
        if paths:
            yield f"## Within: {', '.join(dict.fromkeys(path.partition('.')[2] for path in paths))}\n\n"
            yield f"Settings of {', '.join(map(_code, paths))}.\n\n"
            yield from _described(settings)


def _described(settings: type[Config]) -> Iterator[str]:
    """Yield the text of a class of settings and a table of its fields."""
    yield f"{escaped(inspect.cleandoc(settings.__doc__ or ''))}\n\n"
    texts = field_descriptions(settings)
    fields = {
        name: info
        for name, info in settings.model_fields.items()
        if name != "kind" or not issubclass(settings, PluginConfig)
    }
    rows = [
        (f"`{name}`", escaped(describe_type(info)), _default(describe_default(info)), escaped(texts.get(name, "")))
        for name, info in fields.items()
    ]
    yield from table(("setting", "type", "default", "meaning"), rows)
    yield "\n"


def _default(words: str) -> str:
    value = words.removeprefix("default ")
    return f"**{words}**" if value == words else _code(value)


def _code(text: str) -> str:
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def escaped(text: str) -> str:
    """Return text in which nothing but code in backticks has a meaning in Markdown."""
    parts = re.split(r"(`[^`]+`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([\\*_<\[\]#|])", r"\\\1", part) for part in parts)


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """Yield the lines of a table; nothing if it has no rows."""
    rows = [" | ".join(row) for row in rows]
    if rows:
        heads = list(heads)
        yield f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}\n"
        yield from (f"| {row} |\n" for row in rows)
