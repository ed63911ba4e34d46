"""Lookup of parts by name: built in, installed by a plug-in, registered from Python, or given as an import path.

`kind: grpo` is looked up in the entry point group `marl.trainers` (and in what `register` added); `kind:
my_package.my_module:MyLearner` is imported. Nothing else knows which parts exist.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from marl.config import Component, cut, nearest, wrong

GROUPS = (
    *("games", "tasks", "verifiers", "tools", "roles", "models", "encoders", "engines"),
    *("experience", "credit", "baselines", "trainers", "losses"),
)
RENAMED: Mapping[str, Mapping[str, str]] = {
    "baselines": {"leave_one_out": "rloo"},
    "experience": {"file": "recorded"},
    "trainers": {"reward_model": "reward_modeling", "rloo": "reinforce_sequence"},
    "verifiers": {"countdown": "countdown_expression"},
}
"""Group -> old kind -> the kind it is now. Old words are accepted, with a `RenamedKind` warning."""


class RenamedKind(FutureWarning):
    """A scenario uses the old name of a part."""


import_gate: ContextVar[Callable[[str], None] | None] = ContextVar("import_gate", default=None)
"""Called with each import path before it is imported; raises ValueError to prevent that."""
_registered: dict[str, dict[str, type[Component]]] = {group: {} for group in GROUPS}


def register(kind: str, part: type[Component]) -> None:
    """Make a part known under `kind`, for this process. It replaces a part registered under that name before.

    Raises:
        ValueError: if `part` is not the settings class of a part, or if an installed part has this name.
    """
    if not (isinstance(part, type) and issubclass(part, Component) and part.group in GROUPS):
        raise ValueError(f"register {kind!r}: {part!r} is no subclass of GameConfig, RoleConfig, EngineConfig, ...")
    if kind in _installed(part.group):
        raise ValueError(f"register {kind!r}: {part.group} has a part of this name already; choose another")
    _registered[part.group][kind] = part


@cache
def _installed(group: str) -> dict[str, list[str]]:
    """Return kind -> import paths; more than one if several packages claim the name."""
    places: dict[str, set[str]] = {}
    for point in entry_points(group=f"marl.{group}"):
        places.setdefault(point.name, set()).add(point.value)
    return {kind: sorted(values) for kind, values in places.items()}


def names(group: str) -> list[str]:
    """Return the kinds that a scenario can name."""
    return sorted({*_installed(group), *_registered[group]})


def choices(group: str, base: type[Component]) -> dict[str, type[Component]]:
    """Return kind -> part, for the parts of a group that are a `base`. Parts that cannot be imported are left out."""
    parts: dict[str, type[Component]] = {}
    for kind in names(group):
        try:
            part = find(group, kind)
        except ValueError:
            continue
        if issubclass(part, base):
            parts[kind] = part
    return parts


def current_kind(group: str, kind: str) -> str:
    """Return the kind that `kind` is called today: itself, unless it is in `RENAMED` and nothing else has its name."""
    return kind if kind in names(group) else RENAMED.get(group, {}).get(kind, kind)


def find(group: str, kind: str, base: type[Component] = Component) -> type[Component]:
    """Return the settings class of a part, which must be a `base`.

    Raises:
        ValueError: if there is none, with the nearest names.
    """
    kind = current_kind(group, kind)
    part = _registered[group].get(kind) or _imported(group, kind, base)
    if not (isinstance(part, type) and issubclass(part, Component) and part.group == group):
        raise ValueError(f"kind {kind!r} is no part of {group}: it must be a subclass of its settings, {base.__name__}")
    if not issubclass(part, base):
        raise ValueError(f"kind {kind!r} cannot stand here; choices: {', '.join(choices(group, base))}")
    if part.__abstractmethods__:
        raise ValueError(f"kind {kind!r} is unfinished: it has no {', '.join(sorted(part.__abstractmethods__))}")
    return part


def find_any(place: str) -> type[Component]:
    """Return the settings class at an import path, whatever its group.

    Raises:
        ValueError: if there is none.
    """
    part = _imported("", place, Component)
    if not (isinstance(part, type) and issubclass(part, Component) and part.group in GROUPS):
        raise ValueError(f"{place!r} is no part: it must be a subclass of GameConfig, RoleConfig, EngineConfig, ...")
    return part


def _imported(group: str, kind: str, base: type[Component]) -> Any:
    place = _place(group, kind, base)
    module, name = place.split(":")
    if module.partition(".")[0] in sys.stdlib_module_names:
        raise ValueError(f"kind {kind!r}: {module} is in Python's standard library, which holds no parts")
    if check := import_gate.get():
        check(place)
    try:
        loaded = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ValueError(f"kind {kind!r}: no module {error.name!r} to import{_origin(error.name or '')}") from error
    except ImportError as error:
        raise ValueError(f"kind {kind!r}: {error}") from error
    except SyntaxError as error:
        raise ValueError(f"kind {kind!r}: {error.filename}, line {error.lineno}: {error.msg}") from error
    try:
        return getattr(loaded, name)
    except AttributeError as error:
        raise ValueError(f"kind {kind!r}: module {module!r} has no {name!r}{_origin(module)}") from error


def _origin(module: str) -> str:
    """Return where the package of a module was found, and what it hides; "" if it was not found."""
    package = module.partition(".")[0]
    spec = sys.modules[package].__spec__ if package in sys.modules else None
    if spec is None:
        return ""
    place = next(iter(spec.submodule_search_locations or ()), spec.origin)
    folders = dict.fromkeys(Path(folder).absolute() for folder in (*sys.path, Path(__file__).parents[1]))
    candidates = [folder / name for folder in folders for name in (package, f"{package}.py")]
    hidden = [str(path) for path in candidates if path.exists() and str(path) != place]
    return f"; {package!r} is {place}" + (f", which hides {', '.join(hidden)}: rename one of them" if hidden else "")


def _place(group: str, kind: str, base: type[Component]) -> str:
    """Return the import path of a kind: `package.module:Name`."""
    places = [kind] if ":" in kind else _installed(group).get(kind, [])
    if not places:
        near, elsewhere = nearest(kind, choices(group, base)), [g for g in GROUPS if kind in names(g)]
        of = f" (it is one of {', '.join(elsewhere)})" if elsewhere else ""
        raise ValueError(f"unknown kind {cut(repr(kind))}{of}; {near}, or an import path 'package.module:Name'")
    if len(places) > 1:
        raise ValueError(f"kind {kind!r}: two installed packages claim this name; choices: {', '.join(places)}")
    module, _, name = places[0].partition(":")
    if not all(word.isidentifier() for word in (*module.split("."), name)):
        raise ValueError(f"kind {cut(repr(kind))}: an import path is written 'package.module:Name'")
    return places[0]


@dataclass(frozen=True)
class Part:
    """Marker of a field that holds a part: `game: Annotated[GameConfig, Part("games", GameConfig)]`."""

    group: str
    base: type[Component]
    optional: bool = False
    path: str = ""
    """Kind whose `path` a bare text is; "": a bare text is a kind."""
    words: tuple[str, ...] = ()
    """Bare texts that are accepted and kept as they are, without being kinds."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self._validate,
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda part: part.model_dump(mode="json") if isinstance(part, Component) else part
            ),
        )

    def _validate(self, value: Any) -> Component | str | None:
        if isinstance(value, self.base) or (value is None and self.optional) or value in self.words:
            return value
        if self.words and isinstance(value, str) and ":" not in value and value not in names(self.group):
            raise ValueError(f"unknown; {nearest(value, {*choices(self.group, self.base), *self.words})}")
        if isinstance(value, str):
            value = {"kind": self.path, "path": value} if self.path else {"kind": value}
        if not isinstance(value, Mapping):
            raise ValueError(f"must be a mapping with `kind:`; choices: {self._choices()}")
        kind = value.get("kind")
        if not isinstance(kind, str):
            problem = f"must be a name, got {cut(repr(kind))}" if "kind" in value else "missing"
            raise wrong({"kind": f"{problem}; choices: {self._choices()}"})
        try:
            part = find(self.group, kind, self.base)
        except ValueError as error:
            raise wrong({"kind": str(error)}) from error
        if (current := current_kind(self.group, kind)) != kind:
            warnings.warn(f"kind {kind!r} of {self.group} is now called {current!r}", RenamedKind, stacklevel=2)
        return part.model_validate({**value, "kind": current})

    def _choices(self) -> str:
        return ", ".join(choices(self.group, self.base))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        known = choices(self.group, self.base)
        plug_in = {"type": "object", "required": ["kind"], "properties": {"kind": {"type": "string", "pattern": ":"}}}
        texts = [{"enum": [*known, *self.words]}, plug_in["properties"]["kind"]]
        bare = {"type": "string"} if self.path else {"anyOf": texts}
        none = [{"type": "null"}] if self.optional else []
        return {"anyOf": [*(_schema(kind, part, handler) for kind, part in known.items()), plug_in, bare, *none]}


def _schema(kind: str, part: type[Component], handler: GetJsonSchemaHandler) -> dict[str, Any]:
    fields = handler(part.__pydantic_core_schema__)
    return {"allOf": [fields], "properties": {"kind": {"const": kind}}, "required": ["kind"]}
