"""Types and defaults of settings, in words for people: `number ≥ 0`, `one of a, b`, `text or null`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic.fields import FieldInfo

from marl.config import Config, cut
from marl.parts import Part, choices

_NAMES: Mapping[Any, str] = {
    **{bool: "true or false", int: "whole number", float: "number", str: "text", Path: "path", NoneType: "null"},
    **{Any: "anything", list: "list", dict: "mapping"},
}
_LONGEST_DEFAULT = 160


def type_words(info: FieldInfo) -> str:
    """Return the values that a field takes; values of lists and mappings are in `[]` and `{}`, as in YAML."""
    return _words(info.annotation, info.metadata)


def default_words(info: FieldInfo) -> str:
    """Return the default of a field as YAML, or that it must be given."""
    if info.is_required():
        return "must be given"
    value = info.get_default(call_default_factory=True, validated_data={})
    if isinstance(value, Config):
        value = value.model_dump(mode="json", exclude_unset=True)
    if isinstance(value, str) and re.fullmatch(r"\w+", value):
        return f"default {value}"
    return f"default {cut(json.dumps(value, default=str, ensure_ascii=False), _LONGEST_DEFAULT)}"


def settings_in(info: FieldInfo) -> list[type[Config]]:
    """Return the classes of settings that a field's value is written as, those of parts left out."""
    return list(dict.fromkeys(_settings(info.annotation, info.metadata)))


def part_in(info: FieldInfo) -> Part | None:
    """Return the marker of a field that holds a part or several of a group; None for other fields."""
    return next(_parts(info.annotation, info.metadata), None)


def _words(annotation: Any, metadata: Iterable[Any]) -> str:
    metadata = list(_flat(metadata))
    for part in metadata:
        if isinstance(part, Part):
            return _part_words(part)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _words(arguments[0], [*arguments[1:], *metadata])
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(_words(each, metadata) for each in arguments))
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
    items = [_words(each, ()) for each in arguments if each is not Ellipsis]
    fixed = origin is tuple and Ellipsis not in arguments
    return f"[{', '.join(items)}]" if fixed else f"[{items[0]}, ...]"


def _part_words(part: Part) -> str:
    kinds = ", ".join(choices(part.group, part.base))
    words = f", or one of the words {', '.join(part.words)}" if part.words else ""
    path = f", or the path of `kind: {part.path}`" if part.path else ""
    return f"part of {part.group} ({kinds}){words}{path}{' or null' if part.optional else ''}"


def _bounds(annotation: Any, metadata: Iterable[Any]) -> str:
    """Return the limits of a number, or that a text or collection must not be empty."""
    limits = []
    for each in metadata if annotation is not NoneType else ():
        match each:
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
    """Yield metadata, those inside a `Field(...)` as well."""
    for each in metadata:
        if isinstance(each, FieldInfo):
            yield from each.metadata
        else:
            yield each


def _settings(annotation: Any, metadata: Iterable[Any]) -> Iterator[type[Config]]:
    if any(isinstance(each, Part) for each in metadata):
        return
    if isinstance(annotation, type) and get_origin(annotation) is None and issubclass(annotation, Config):
        yield annotation
    arguments = get_args(annotation)
    for each in arguments[:1] if get_origin(annotation) is Annotated else arguments:
        yield from _settings(each, arguments[1:] if get_origin(annotation) is Annotated else ())


def _parts(annotation: Any, metadata: Iterable[Any]) -> Iterator[Part]:
    for each in (*metadata, *get_args(annotation)):
        if isinstance(each, Part):
            yield each
        elif get_args(each):
            yield from _parts(each, ())
