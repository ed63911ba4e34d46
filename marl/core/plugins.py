"""Lookup of plug-ins by `kind`.

`kind: grpo` is looked up in the entry point group `marl.trainers` and among the classes added by `register`. `kind:
my_package.my_module:MyLearner` is imported. No other module has a list of plug-ins.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TypeVar

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from marl.core.config import PluginConfig, choices_hint, field_errors, shorten

_Plugin = TypeVar("_Plugin", bound=PluginConfig)
GROUPS = (
    *("games", "tasks", "verifiers", "tools", "roles", "models", "encoders", "engines"),
    *("experience", "credit", "baselines", "trainers", "losses"),
)
RENAMED_KINDS: Mapping[str, Mapping[str, str]] = {
    "baselines": {"leave_one_out": "rloo"},
    "experience": {"file": "recorded"},
    "trainers": {
        "reward_model": "reward_modeling",
        "reinforce_sequence": "rloo",
        "reinforce_pp": "reinforce_plus_plus",
        "reinforce_pp_baseline": "reinforce_plus_plus_baseline",
    },
    "losses": {
        "clip": "ppo_clip",
        "sequence": "rloo",
        "sequence_ratio": "gspo",
        "token_sequence_ratio": "gspo_token",
        "sequence_product": "rloo",
        "clipped_weight": "cispo",
        "sigmoid_gate": "sapo",
        "geometric_mean": "gmpo",
        "policy_gradient": "reinforce",
        "advantage_weighted": "awr",
    },
    "verifiers": {"countdown": "countdown_expression"},
}
"""Group -> kind in an earlier version -> kind today. Earlier kinds are refused with a message that names today's kind.
"""
import_check: ContextVar[Callable[[str], None] | None] = ContextVar("import_gate", default=None)
"""Function that is called with each import path before the import, and raises ValueError to refuse the path."""
_registered: dict[str, dict[str, type[PluginConfig]]] = {group: {} for group in GROUPS}
"""Group -> kind -> settings class, for the plug-ins added by `register`."""


def register(kind: str, plugin: type[PluginConfig]) -> None:
    """Add the settings class `plugin` under the name `kind` in this process. A class registered earlier is replaced.

    Raises:
        ValueError: if `plugin` is not the settings class of a plug-in, or if an installed plug-in has this name.
    """
    if not (isinstance(plugin, type) and issubclass(plugin, PluginConfig) and plugin.group in GROUPS):
        raise ValueError(f"register {kind!r}: {plugin!r} is no subclass of GameConfig, RoleConfig, EngineConfig, ...")
    if kind in _installed_import_paths_by_kind(plugin.group):
        raise ValueError(f"register {kind!r}: {plugin.group} has a part of this name already; choose another")
    _registered[plugin.group][kind] = plugin


@cache
def _installed_import_paths_by_kind(group: str) -> dict[str, list[str]]:
    """Return kind -> its import paths, for the installed plug-ins of `group`. Several packages may claim one kind."""
    paths_by_kind: dict[str, set[str]] = {}
    for point in entry_points(group=f"marl.{group}"):
        # A set drops duplicates: two copies of a package's metadata name the same path, which is no conflict.
        paths_by_kind.setdefault(point.name, set()).add(point.value)
    return {kind: sorted(paths) for kind, paths in paths_by_kind.items()}


def add_import_folder(folder: Path) -> None:
    """Make the modules and plug-ins in `folder` importable. The folder stands last, so that it hides no installed
    package."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
        importlib.invalidate_caches()
        _installed_import_paths_by_kind.cache_clear()


def known_kinds(group: str) -> list[str]:
    """Return the installed and registered kinds of a group, sorted."""
    return sorted({*_installed_import_paths_by_kind(group), *_registered[group]})


def plugins_by_kind(group: str, base: type[_Plugin]) -> dict[str, type[_Plugin]]:
    """Return kind -> settings class, for each plug-in of `group` that is a subclass of `base` and can be imported."""
    plugins: dict[str, type[_Plugin]] = {}
    for kind in known_kinds(group):
        try:
            plugin = find_plugin(group, kind)
        except ValueError:
            continue
        if issubclass(plugin, base):
            plugins[kind] = plugin
    return plugins


def find_plugin(group: str, kind: str, base: type[PluginConfig] = PluginConfig) -> type[PluginConfig]:
    """Return the settings class of plug-in `kind`, which must be a subclass of `base`.

    Raises:
        ValueError: if there is no such plug-in, naming similar kinds, or if the class is unsuitable.
    """
    plugin = _registered[group].get(kind) or _import_plugin_object(group, kind, base)
    if not (isinstance(plugin, type) and issubclass(plugin, PluginConfig) and plugin.group == group):
        raise ValueError(f"kind {kind!r} is no part of {group}: it must be a subclass of its settings, {base.__name__}")
    if not issubclass(plugin, base):
        raise ValueError(f"kind {kind!r} cannot stand here; choices: {', '.join(plugins_by_kind(group, base))}")
    if plugin.__abstractmethods__:
        raise ValueError(f"kind {kind!r} is unfinished: it has no {', '.join(sorted(plugin.__abstractmethods__))}")
    return plugin


def plugin_summary(group: str, kind: str) -> str:
    """Return the first line of a plug-in's docstring, or the reason for which the plug-in is unusable."""
    try:
        return (find_plugin(group, kind).__doc__ or "").strip().split("\n")[0]
    except ValueError as error:
        return f"unusable: {error}"


def import_plugin(import_path: str) -> type[PluginConfig]:
    """Return the settings class at the import path `import_path`, of any group.

    Raises:
        ValueError: if the path leads to no settings class.
    """
    plugin = _import_plugin_object("", import_path, PluginConfig)
    if not (isinstance(plugin, type) and issubclass(plugin, PluginConfig) and plugin.group in GROUPS):
        raise ValueError(
            f"{import_path!r} is no part: it must be a subclass of GameConfig, RoleConfig, EngineConfig, ..."
        )
    return plugin


def _import_plugin_object(group: str, kind: str, base: type[PluginConfig]) -> Any:
    """Return the object that `kind` names, without checks of its type. `base` limits the kinds in error messages."""
    paths = [kind] if ":" in kind else _installed_import_paths_by_kind(group).get(kind, [])
    if not paths and (today := RENAMED_KINDS.get(group, {}).get(kind)):
        raise ValueError(f"kind {kind!r} of {group} is now called {today!r}")
    if not paths:
        hint = choices_hint(kind, plugins_by_kind(group, base))
        other_groups = [other for other in GROUPS if kind in known_kinds(other)]
        note = f" (it is one of {', '.join(other_groups)})" if other_groups else ""
        raise ValueError(f"unknown kind {shorten(repr(kind))}{note}; {hint}, or an import path 'package.module:Name'")
    if len(paths) > 1:
        raise ValueError(f"kind {kind!r}: two installed packages claim this name; choices: {', '.join(paths)}")
    [path] = paths
    module, _, name = path.partition(":")
    if not all(word.isidentifier() for word in (*module.split("."), name)):
        raise ValueError(f"kind {shorten(repr(kind))}: an import path is written 'package.module:Name'")
    # Importing some standard modules has side effects, and none of them holds a plug-in.
    if module.partition(".")[0] in sys.stdlib_module_names:
        raise ValueError(f"kind {kind!r}: {module} is in Python's standard library, which holds no parts")
    if "__main__" in module.split("."):
        raise ValueError(f"kind {kind!r}: importing a module __main__ runs a program, and none of them holds a plug-in")
    if check := import_check.get():
        check(path)
    try:
        loaded = importlib.import_module(module)
    except ModuleNotFoundError as error:
        location = _package_location_note(error.name or "")
        raise ValueError(f"kind {kind!r}: no module {error.name!r} to import{location}") from error
    except ImportError as error:
        raise ValueError(f"kind {kind!r}: {error}") from error
    except SyntaxError as error:
        raise ValueError(f"kind {kind!r}: {error.filename}, line {error.lineno}: {error.msg}") from error
    try:
        return getattr(loaded, name)
    except AttributeError as error:
        raise ValueError(f"kind {kind!r}: module {module!r} has no {name!r}{_package_location_note(module)}") from error


def _package_location_note(module_name: str) -> str:
    """Return the location of a module's package, and of other packages that it hides, as the end of an error message.

    A user's folder with the name of an installed package is the usual cause of a missing module.
    """
    package = module_name.partition(".")[0]
    spec = sys.modules[package].__spec__ if package in sys.modules else None
    if spec is None:
        return ""
    location = next(iter(spec.submodule_search_locations or ()), spec.origin)
    hidden: list[str] = []
    folders = dict.fromkeys(Path(folder).absolute() for folder in sys.path)
    for folder in folders:
        for candidate in (folder / package, folder / f"{package}.py"):
            if candidate.exists() and str(candidate) != location:
                hidden.append(str(candidate))
    note = f", which hides {', '.join(hidden)}: rename one of them" if hidden else ""
    return f"; {package!r} is {location}{note}"


@dataclass(frozen=True)
class PluginField:
    """Annotation of a field with plug-in settings: `game: Annotated[GameConfig, PluginField("games", GameConfig)]`."""

    group: str
    """Group of plug-ins that the field accepts."""
    base: type[PluginConfig]
    """Base class of the settings that the field accepts."""
    optional: bool = False
    """True if the field accepts None."""
    path: str = ""
    """Kind of the plug-in that a bare text stands for, with the text as its setting `path`. "": the text is a kind."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self._validate_plugin_settings,
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda plugin: plugin.model_dump(mode="json") if isinstance(plugin, PluginConfig) else plugin
            ),
        )

    def _validate_plugin_settings(self, value: Any) -> PluginConfig | None:
        if isinstance(value, self.base) or (value is None and self.optional):
            return value
        if isinstance(value, str):
            value = {"kind": self.path, "path": value} if self.path else {"kind": value}
        if not isinstance(value, Mapping):
            raise ValueError(f"must be a mapping with `kind:`; choices: {self._comma_separated_kinds()}")
        kind = value.get("kind")
        if not isinstance(kind, str):
            problem = f"must be a name, got {shorten(repr(kind))}" if "kind" in value else "missing"
            raise field_errors({"kind": f"{problem}; choices: {self._comma_separated_kinds()}"})
        try:
            plugin = find_plugin(self.group, kind, self.base)
        except ValueError as error:
            raise field_errors({"kind": str(error)}) from error
        return plugin.model_validate(value)

    def _comma_separated_kinds(self) -> str:
        return ", ".join(plugins_by_kind(self.group, self.base))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        plugins = plugins_by_kind(self.group, self.base)
        schemas: list[dict[str, Any]] = []
        for kind, plugin in plugins.items():
            fields = handler(plugin.__pydantic_core_schema__)
            schemas.append({"allOf": [fields], "properties": {"kind": {"const": kind}}, "required": ["kind"]})
        import_path = {"type": "string", "pattern": ":"}
        schemas.append({"type": "object", "required": ["kind"], "properties": {"kind": import_path}})
        texts = [{"enum": [*plugins]}, import_path]
        schemas.append({"type": "string"} if self.path else {"anyOf": texts})
        return {"anyOf": [*schemas, {"type": "null"}] if self.optional else schemas}
