"""Descriptions of setting types and defaults: `number ≥ 0`, `one of a, b`, `text or null`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic.fields import FieldInfo

from marl.core.config import Config, PluginConfig, shorten
from marl.core.plugins import PluginField, plugins_by_kind

_NAMES: Mapping[Any, str] = {
    **{bool: "true or false", int: "whole number", float: "number", str: "text", Path: "path", NoneType: "null"},
    **{Any: "anything", list: "list", dict: "mapping"},
}
_LONGEST_DEFAULT = 160


def describe_type(info: FieldInfo) -> str:
    """Return the field's type as text. Lists and mappings are in `[]` and `{}`, as in YAML."""
    return _words(info.annotation, info.metadata)


def describe_default(info: FieldInfo) -> str:
    """Return the field's default as YAML, or "must be given"."""
    if info.is_required():
        return "must be given"
    value = info.get_default(call_default_factory=True, validated_data={})
    if isinstance(value, Config):
        kind = {"kind": value.kind} if isinstance(value, PluginConfig) else {}
        value = kind | value.model_dump(mode="json", exclude_unset=True)
    if isinstance(value, str) and re.fullmatch(r"\w+", value):
        return f"default {value}"
    return f"default {shorten(json.dumps(value, default=str, ensure_ascii=False), _LONGEST_DEFAULT)}"


def config_classes(info: FieldInfo) -> list[type[Config]]:
    """Return the settings classes of a field's values, without plug-ins."""
    return list(dict.fromkeys(_settings(info.annotation, info.metadata)))


def plugin_marker(info: FieldInfo) -> PluginField | None:
    """Return the marker of a field that holds plug-ins, or None for another field."""
    return next(_parts(info.annotation, info.metadata), None)


def _words(annotation: Any, metadata: Iterable[Any]) -> str:
    # A plug-in field is described by its group, although its annotation is the settings class.
    metadata = list(_flat(metadata))
    for part in metadata:
        if isinstance(part, PluginField):
            return _part_words(part)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _words(arguments[0], [*arguments[1:], *metadata])
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(_words(argument, metadata) for argument in arguments))
    if origin is Literal:
        values = [json.dumps(value) if not isinstance(value, str) else value for value in arguments]
        return values[0] if len(values) == 1 else f"one of {', '.join(values)}"
    if isinstance(annotation, type) and issubclass(annotation, Config):
        return "settings"
    if origin is None:
        return f"{_NAMES.get(annotation) or annotation.__name__}{_bounds(annotation, metadata)}"
    return f"{_collection(origin, arguments)}{_bounds(origin, metadata)}"


def _collection(origin: Any, arguments: tuple[Any, ...]) -> str:
    if issubclass(origin, Mapping):
        return f"{{name: {_words(arguments[1], ())}}}"
    items = [_words(argument, ()) for argument in arguments if argument is not Ellipsis]
    fixed = origin is tuple and Ellipsis not in arguments
    return f"[{', '.join(items)}]" if fixed else f"[{items[0]}, ...]"


def _part_words(part: PluginField) -> str:
    kinds = ", ".join(plugins_by_kind(part.group, part.base))
    path = f", or the path of `kind: {part.path}`" if part.path else ""
    return f"part of {part.group} ({kinds}){path}{' or null' if part.optional else ''}"


def _bounds(annotation: Any, metadata: Iterable[Any]) -> str:
    """Return the bounds of a number, or the requirement that a text or collection is not empty."""
    limits = []
    for constraint in metadata if annotation is not NoneType else ():
        match constraint:
            case Ge(ge=limit):
                limits.append(f"≥ {limit}")
            case Gt(gt=limit):
                limits.append(f"> {limit}")
            case Le(le=limit):
                limits.append(f"≤ {limit}")
            case Lt(lt=limit):
                limits.append(f"< {limit}")
            case MinLen(min_length=length) if length:
                limits.append("(not empty)")
    return f" {' and '.join(limits)}" if limits else ""


def _flat(metadata: Iterable[Any]) -> Iterator[Any]:
    """Yield metadata, including the metadata inside a `Field(...)`."""
    for entry in metadata:
        if isinstance(entry, FieldInfo):
            yield from entry.metadata
        else:
            yield entry


def _settings(annotation: Any, metadata: Iterable[Any]) -> Iterator[type[Config]]:
    if any(isinstance(argument, PluginField) for argument in metadata):
        return
    if isinstance(annotation, type) and get_origin(annotation) is None and issubclass(annotation, Config):
        yield annotation
    arguments = get_args(annotation)
    for argument in arguments[:1] if get_origin(annotation) is Annotated else arguments:
        yield from _settings(argument, arguments[1:] if get_origin(annotation) is Annotated else ())


def _parts(annotation: Any, metadata: Iterable[Any]) -> Iterator[PluginField]:
    for entry in (*metadata, *get_args(annotation)):
        if isinstance(entry, PluginField):
            yield entry
        elif get_args(entry):
            yield from _parts(entry, ())
