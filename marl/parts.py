"""Parts are found by name: built in, installed by a plug-in, registered from Python, or given as an import path.

`kind: grpo` is looked up in the entry point group `marl.trainers` (and in what `register` added); `kind:
my_package.my_module:MyLearner` is imported. Nothing else knows which parts exist.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from marl.config import Component, nearest

GROUPS = ("games", "roles", "models", "engines", "credit", "trainers", "experience")
_registered: dict[str, dict[str, type[Component]]] = {group: {} for group in GROUPS}


def register(kind: str, part: type[Component]) -> None:
    """Make a part of yours known under `kind`, for this process.

    Raises:
        ValueError: if `part` is not the settings class of a part.
    """
    group = getattr(part, "group", None)
    if group not in GROUPS:
        raise ValueError(f"register {kind!r}: {part!r} is no subclass of GameConfig, RoleConfig, EngineConfig, ...")
    _registered[group][kind] = part


@cache
def _installed(group: str) -> dict[str, str]:
    return {point.name: point.value for point in entry_points(group=f"marl.{group}")}


def names(group: str) -> list[str]:
    """The kinds that a scenario can name."""
    return sorted({*_installed(group), *_registered[group]})


def find(group: str, kind: str) -> type[Component]:
    """The settings class of a part.

    Raises:
        ValueError: if there is none, with the nearest names.
    """
    if kind in _registered[group]:
        return _registered[group][kind]
    path = kind if ":" in kind else _installed(group).get(kind)
    if path is None:
        raise ValueError(f"unknown kind {kind!r}; {nearest(kind, names(group))}, or an import path 'module:Name'")
    return _imported(group, kind, path)


def _imported(group: str, kind: str, path: str) -> type[Component]:
    module, _, name = path.partition(":")
    try:
        part = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        raise ValueError(f"kind {kind!r}: no module {error.name!r} to import") from error
    except AttributeError as error:
        raise ValueError(f"kind {kind!r}: module {module!r} has no {name!r}") from error
    if not (isinstance(part, type) and issubclass(part, Component) and part.group == group):
        raise ValueError(f"kind {kind!r}: {path} is no part of {group} (a subclass of its Config class)")
    return part


@dataclass(frozen=True)
class Part:
    """Marks a field that holds a part: `game: Annotated[GameConfig, Part("games", GameConfig)]`."""

    group: str
    base: type[Component]
    optional: bool = False

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self._validate,
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda part: part and part.model_dump(mode="json")
            ),
        )

    def _validate(self, value: Any) -> Component | None:
        if isinstance(value, self.base) or (value is None and self.optional):
            return value
        if isinstance(value, str):
            value = {"kind": value}
        if not isinstance(value, Mapping) or not isinstance(value.get("kind"), str):
            raise ValueError(f"expected a mapping with `kind:`; choices: {', '.join(self._choices())}")
        part = find(self.group, value["kind"])
        if not issubclass(part, self.base):
            raise ValueError(f"kind {value['kind']!r} cannot stand here; choices: {', '.join(self._choices())}")
        return part.model_validate(value)

    def _choices(self) -> list[str]:
        return [name for name in names(self.group) if issubclass(find(self.group, name), self.base)]

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        plug_in = {"type": "object", "required": ["kind"], "properties": {"kind": {"type": "string", "pattern": ":"}}}
        none = [{"type": "null"}] if self.optional else []
        return {
            "anyOf": [*(self._schema(kind, handler) for kind in self._choices()), plug_in, {"type": "string"}, *none]
        }

    def _schema(self, kind: str, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        part = handler(find(self.group, kind).__pydantic_core_schema__)
        return {"allOf": [part], "properties": {"kind": {"const": kind}}, "required": ["kind"]}
