"""Validation of model-written values against a scenario's JSON schemas (draft 2020-12).

This module is imported only if a scenario has a schema, as jsonschema takes long to import. Validation runs between
two moves, so its time is bounded for every value: patterns are matched by Rust's `regex` crate (part of pydantic) in
linear time, followed references are counted, and keywords with quadratic time are implemented here or refused. `format`
is not checked.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import cache, lru_cache
from threading import local
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.validators import extend
from jsonschema_specifications import REGISTRY
from pydantic_core import SchemaError as PatternError
from pydantic_core import SchemaValidator, core_schema
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

_REFUSED = ("unevaluatedItems", "unevaluatedProperties")
_BASE_REFERENCES, _REFERENCES_PER_VALUE = 1000, 20
"""Maximum number of followed references: a fixed number, plus some for every number, text, list or object."""


class _Budget(local):
    references = 0
    """Number of references that this thread may still follow."""


class _TooLongError(Exception):
    """More references than the budget allows were followed."""


_budget = _Budget()


def fits_schema(value: Any, schema: Mapping[str, Any]) -> bool:
    """Return True if `value` is valid under `schema`. The schema must have passed `check_schema`.

    A value is invalid if its validation follows too many references (about 20 for every number, text or list in it).
    """
    try:
        return _is_valid(value, schema)
    except (RecursionError, _TooLongError):
        # A recursive schema descends into the value; a value nested too deeply for Python's stack is invalid.
        return False


def check_schema(schema: Mapping[str, Any]) -> None:
    """Check that `schema` is supported.

    Raises:
        ValueError: if `schema` is no JSON schema, has an external or endless reference, or has an unsupported keyword
            or pattern.
    """
    try:
        Draft202012Validator.check_schema(schema)
        for part in _parts(schema):
            _check_part(part, schema)
        _is_valid({}, schema)
    except TypeError as error:
        raise ValueError(f"not a JSON schema: {error}") from error
    except SchemaError as error:
        raise ValueError(f"not a JSON schema: {error.message}") from error
    except (RecursionError, _TooLongError) as error:
        raise ValueError("the schema refers to itself without end") from error


def _check_part(part: Mapping[str, Any], schema: Mapping[str, Any]) -> None:
    for keyword in _REFUSED:
        if keyword in part:
            raise ValueError(f"the schema has {keyword!r}, which is not supported; use additionalProperties or items")
    pattern, patterns = part.get("pattern"), part.get("patternProperties")
    for text in (pattern, *(patterns if isinstance(patterns, Mapping) else ())):
        if isinstance(text, str):
            _pattern(text)
    for reference in (part.get("$ref"), part.get("$dynamicRef")):
        if isinstance(reference, str):
            _check_reference(reference, schema)


def _check_reference(reference: str, schema: Mapping[str, Any]) -> None:
    resolver = REGISTRY.with_resource("", DRAFT202012.create_resource(schema)).resolver()
    try:
        resolver.lookup(reference)
    except Unresolvable as error:
        raise ValueError(f"the schema refers to {reference!r}, which is not in it") from error


def _parts(schema: Any) -> Iterator[Mapping[str, Any]]:
    """Yield all objects of a schema, including the schema itself."""
    if isinstance(schema, Mapping):
        yield schema
        schema = schema.values()
    elif not isinstance(schema, list | tuple):
        return
    for part in schema:
        yield from _parts(part)


def _is_valid(value: Any, schema: Mapping[str, Any]) -> bool:
    _budget.references = _BASE_REFERENCES + _REFERENCES_PER_VALUE * _count(value)
    return _validator(json.dumps(schema)).is_valid(value)


@lru_cache(maxsize=64)
def _validator(schema: str) -> Any:
    # An explicit registry keeps jsonschema from downloading the schemas that a reference names.
    return _validator_class()(json.loads(schema), registry=REGISTRY)


@cache
def _validator_class() -> Any:
    keywords = {
        "pattern": _check_text,
        "patternProperties": _check_matching,
        "additionalProperties": _check_additional,
        "multipleOf": _check_multiple,
        "uniqueItems": _check_unique,
    }
    followed = {name: _counted(Draft202012Validator.VALIDATORS[name]) for name in ("$ref", "$dynamicRef")}
    return extend(Draft202012Validator, {**keywords, **followed})


# --- keywords: functions of jsonschema's validator, the keyword's value, the instance and the schema; they yield errors


def _counted(follow: Any) -> Any:
    def counted(validator: Any, reference: str, instance: Any, schema: Any) -> Iterator[Any]:
        _budget.references -= 1
        if _budget.references < 0:
            raise _TooLongError
        yield from follow(validator, reference, instance, schema)

    return counted


def _check_text(validator: Any, pattern: str, instance: Any, _schema: Any) -> Iterator[Any]:
    if validator.is_type(instance, "string") and not _matches(pattern, instance):
        yield _error("pattern")


def _check_matching(validator: Any, patterns: Mapping[str, Any], instance: Any, _schema: Any) -> Iterator[Any]:
    if validator.is_type(instance, "object"):
        for pattern, subschema in patterns.items():
            for name, value in instance.items():
                if _matches(pattern, name):
                    yield from validator.descend(value, subschema)


def _check_additional(validator: Any, subschema: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if validator.is_type(instance, "object"):
        properties, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        for name, value in instance.items():
            if name not in properties and not any(_matches(pattern, name) for pattern in patterns):
                yield from validator.descend(value, subschema)


def _check_multiple(validator: Any, unit: float, instance: Any, _schema: Any) -> Iterator[Any]:
    # Exact fractions of the written decimals: 0.3 is a multiple of 0.1, and no size overflows.
    if validator.is_type(instance, "number") and _exact(instance) % _exact(unit):
        yield _error("multipleOf")


def _check_unique(validator: Any, unique: bool, instance: Any, _schema: Any) -> Iterator[Any]:
    # Sorted JSON texts instead of jsonschema's pairwise comparison, whose time is quadratic.
    if unique and validator.is_type(instance, "array"):
        texts = [json.dumps(_comparable(item), sort_keys=True) for item in instance]
        if len(set(texts)) < len(texts):
            yield _error("uniqueItems")


def _exact(number: float) -> Fraction:
    return Fraction(number if isinstance(number, int) else str(number))


def _error(keyword: str) -> Exception:
    return ValidationError(keyword)


def _comparable(value: Any) -> Any:
    """Return `value` with integral floats as ints, so that equal numbers (1 and 1.0) have equal JSON."""
    if isinstance(value, Mapping):
        return {name: _comparable(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_comparable(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _count(value: Any) -> int:
    """Return the number of values nested in `value`, including `value` itself."""
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return 1 + sum(map(_count, inner))


def _matches(pattern: str, text: str) -> bool:
    return _pattern(pattern).isinstance_python(text)


@lru_cache(maxsize=256)
def _pattern(pattern: str) -> SchemaValidator:
    """Return the compiled pattern.

    Raises:
        ValueError: if the pattern is invalid or needs more than linear time (lookaround, references to groups).
    """
    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    except PatternError as error:
        raise ValueError(
            f"the schema's pattern {pattern!r} is not supported: it must match in linear time, so no lookaround, "
            "no references to groups, no huge repeats"
        ) from error
