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
"""Length limit of a displayed default [characters]."""


def describe_type(field_info: FieldInfo) -> str:
    """Return the field's type as text. Lists and mappings are in `[]` and `{}`, as in YAML."""
    return _describe_annotation(field_info.annotation, field_info.metadata)


def describe_default(field_info: FieldInfo) -> str:
    """Return the field's default as YAML, or "must be given"."""
    if field_info.is_required():
        return "must be given"
    value = field_info.get_default(call_default_factory=True, validated_data={})
    if isinstance(value, Config):
        kind = {"kind": value.kind} if isinstance(value, PluginConfig) else {}
        value = kind | value.model_dump(mode="json", exclude_unset=True)
    if isinstance(value, str) and re.fullmatch(r"\w+", value):
        return f"default {value}"
    return f"default {shorten(json.dumps(value, default=str, ensure_ascii=False), _LONGEST_DEFAULT)}"


def settings_classes_of_field(field_info: FieldInfo) -> list[type[Config]]:
    """Return the settings classes of a field's values, without plug-ins."""
    return list(dict.fromkeys(_settings_classes(field_info.annotation, field_info.metadata)))


def plugin_marker_of_field(field_info: FieldInfo) -> PluginField | None:
    """Return the marker of a field that holds plug-ins, or None for another field."""
    return next(_plugin_markers(field_info.annotation, field_info.metadata), None)


def _describe_annotation(annotation: Any, metadata: Iterable[Any]) -> str:
    """Return a type annotation as text. `metadata` are its constraints and markers, as in `Annotated`."""
    constraints: list[Any] = []
    for entry in metadata:
        # A `Field(...)` contains further metadata, which is included.
        constraints += entry.metadata if isinstance(entry, FieldInfo) else [entry]
    for marker in constraints:
        # The annotation of a plug-in field is its settings class, but its group tells more.
        if isinstance(marker, PluginField):
            kinds = ", ".join(plugins_by_kind(marker.group, marker.base))
            path = f", or the path of `kind: {marker.path}`" if marker.path else ""
            return f"part of {marker.group} ({kinds}){path}{' or null' if marker.optional else ''}"
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _describe_annotation(arguments[0], [*arguments[1:], *constraints])
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(_describe_annotation(argument, constraints) for argument in arguments))
    if origin is Literal:
        values = [json.dumps(value) if not isinstance(value, str) else value for value in arguments]
        return values[0] if len(values) == 1 else f"one of {', '.join(values)}"
    if isinstance(annotation, type) and issubclass(annotation, Config):
        return "settings"
    if origin is None:
        return f"{_NAMES.get(annotation) or annotation.__name__}{_describe_constraints(annotation, constraints)}"
    if issubclass(origin, Mapping):
        return f"{{name: {_describe_annotation(arguments[1], ())}}}{_describe_constraints(origin, constraints)}"
    items = [_describe_annotation(argument, ()) for argument in arguments if argument is not Ellipsis]
    has_fixed_length = origin is tuple and Ellipsis not in arguments
    collection = f"[{', '.join(items)}]" if has_fixed_length else f"[{items[0]}, ...]"
    return f"{collection}{_describe_constraints(origin, constraints)}"


def _describe_constraints(annotation: Any, constraints: Iterable[Any]) -> str:
    """Return the bounds of a number, or the requirement that a text or collection is not empty."""
    limits: list[str] = []
    for constraint in constraints if annotation is not NoneType else ():
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


def _settings_classes(annotation: Any, metadata: Iterable[Any]) -> Iterator[type[Config]]:
    """Yield the settings classes in an annotation, without those of plug-ins."""
    if any(isinstance(argument, PluginField) for argument in metadata):
        return
    if isinstance(annotation, type) and get_origin(annotation) is None and issubclass(annotation, Config):
        yield annotation
    arguments = get_args(annotation)
    for argument in arguments[:1] if get_origin(annotation) is Annotated else arguments:
        yield from _settings_classes(argument, arguments[1:] if get_origin(annotation) is Annotated else ())


def _plugin_markers(annotation: Any, metadata: Iterable[Any]) -> Iterator[PluginField]:
    """Yield the markers of plug-ins in an annotation and its metadata."""
    for entry in (*metadata, *get_args(annotation)):
        if isinstance(entry, PluginField):
            yield entry
        elif get_args(entry):
            yield from _plugin_markers(entry, ())
