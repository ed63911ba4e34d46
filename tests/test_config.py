"""Settings: every field says what it means, and the source is read for that only when somebody asks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from pydantic import TypeAdapter, ValidationError

from marl.core.config import Config, PluginConfig, Sampling, field_descriptions
from marl.core.plugins import GROUPS, plugins_by_kind
from marl.scenario.schema import Scenario
from marl.scenario.yaml_text import read_yaml

PACKAGES = ("marl", "games", "roles", "credit", "trainers")


class Documented(Config):
    speed: int = 1
    """Metres a second.
    None: it stands still."""
    size: int = 1

    def unrelated(self) -> None:
        """A docstring that is no field's."""


class Inheriting(Documented):
    speed: int = 2
    size: int = 2
    """Metres."""


def settings_classes() -> list[type[Config]]:
    """All classes of settings of ours, those of all parts included."""
    for group in GROUPS:
        plugins_by_kind(group, PluginConfig)
    return [each for each in _below(Config) if each.__module__.partition(".")[0] in PACKAGES]


def _below(base: type[Config]) -> Iterator[type[Config]]:
    for each in base.__subclasses__():
        yield from (each, *_below(each))


def test_every_setting_says_what_it_means() -> None:
    classes = settings_classes()
    assert len(classes) > 150
    silent = [
        f"{each.__name__}.{name}"
        for each in classes
        for name in each.model_fields.keys() - field_descriptions(each).keys()
    ]
    assert not silent


def test_no_meaning_goes_on_where_another_one_stopped() -> None:
    texts = [(each.__name__, text) for each in settings_classes() for text in field_descriptions(each).values()]
    assert not [row for row in texts if row[1].startswith("...")]


def test_meanings_are_inherited_and_read_as_yaml_is_written() -> None:
    assert field_descriptions(Documented) == {"speed": "Metres a second. Null: it stands still."}
    assert field_descriptions(Inheriting) == {"speed": "Metres a second. Null: it stands still.", "size": "Metres."}


def test_a_class_inside_a_function_has_meanings_and_one_without_source_has_none() -> None:
    class Inner(Config):
        width: int = 1
        """Metres."""

    made = type("Made", (Config,), {"__annotations__": {"width": int}, "__module__": "nowhere"})
    assert field_descriptions(Inner) == {"width": "Metres."}
    assert field_descriptions(made) == {}


def test_the_schema_has_every_meaning() -> None:
    definitions = Scenario.model_json_schema()["$defs"]
    fields = [(name, key, each) for name, d in definitions.items() for key, each in d.get("properties", {}).items()]
    assert len(fields) > 700
    assert not [(name, key) for name, key, each in fields if not each.get("description")]


def test_no_source_is_read_until_meanings_are_asked_for() -> None:
    code = (
        "from marl.core.config import PluginConfig, _field_descriptions_by_class as described;"
        "from marl.scenario.schema import Scenario;"
        "from marl.core.plugins import *;"
        "[plugins_by_kind(group, PluginConfig) for group in GROUPS]; print(described.cache_info().currsize)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"


def test_examples_are_valid_settings() -> None:
    for settings in settings_classes():
        example = read_yaml(settings.example if settings is Scenario else f"{{{settings.example}}}", "example")
        kind = settings.model_fields.get("kind")
        if kind and kind.is_required() and "kind" not in example:  # a base of parts, which hands its example on
            assert set(example) <= set(settings.model_fields)
        elif example:
            TypeAdapter(settings).validate_python(example)


def test_names_of_other_frameworks_are_recognised() -> None:
    with pytest.raises(ValidationError, match=r"unknown field 'max_new_tokens'; did you mean 'max_tokens'\? "):
        Sampling.model_validate({"max_new_tokens": 5})
