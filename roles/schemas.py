"""JSON schemas (draft 2020-12) of a scenario, for values that a model wrote. Loads jsonschema only where there is one.

A check runs between two moves, so no value may make it long: patterns are matched by the `regex` crate of Rust, which
comes with pydantic and takes linear time; references that are followed are counted; keywords whose time grows with the
square of a value are done here or refused. `format` is not checked.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import cache, lru_cache
from threading import local
from typing import Any

from pydantic_core import SchemaError as PatternError
from pydantic_core import SchemaValidator, core_schema

_REFUSED = ("unevaluatedItems", "unevaluatedProperties")
_FEWEST_REFERENCES, _REFERENCES_EACH = 1000, 20
"""References that may be followed at all, and beyond them for each number, text, list, ... in a value."""


class _Budget(local):
    references = 0
    """Number of references that may still be followed, in this thread."""


class _TooLongError(Exception):
    """More references than the budget allows were followed."""


_budget = _Budget()


def fits_schema(value: Any, schema: Mapping[str, Any]) -> bool:
    """Return whether `value` is valid under `schema`, which `check_schema` has passed.

    A value for which too many references are followed does not fit: about 20 for each number, text, list in it.
    """
    try:
        return _is_valid(value, schema)
    except (RecursionError, _TooLongError):
        # A schema that refers to itself follows the value down; a value that is too deep for it does not fit.
        return False


def check_schema(schema: Mapping[str, Any]) -> None:
    """Check that `schema` can be used.

    Raises:
        ValueError: if it is no JSON schema, refers to something outside itself or to itself without end, or has a
            keyword or pattern that is not supported.
    """
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

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
    from jsonschema_specifications import REGISTRY
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    resolver = REGISTRY.with_resource("", DRAFT202012.create_resource(schema)).resolver()
    try:
        resolver.lookup(reference)
    except Unresolvable as error:
        raise ValueError(f"the schema refers to {reference!r}, which is not in it") from error


def _parts(schema: Any) -> Iterator[Mapping[str, Any]]:
    """Yield all objects within a schema, itself included."""
    if isinstance(schema, Mapping):
        yield schema
        schema = schema.values()
    elif not isinstance(schema, list | tuple):
        return
    for part in schema:
        yield from _parts(part)


def _is_valid(value: Any, schema: Mapping[str, Any]) -> bool:
    _budget.references = _FEWEST_REFERENCES + _REFERENCES_EACH * _count(value)
    return _validator(json.dumps(schema)).is_valid(value)


@lru_cache(maxsize=64)
def _validator(schema: str) -> Any:
    from jsonschema_specifications import REGISTRY

    # With a registry of its own it never downloads the schemas that a schema refers to.
    return _validator_class()(json.loads(schema), registry=REGISTRY)


@cache
def _validator_class() -> Any:
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend

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
        for pattern, wanted in patterns.items():
            for name, value in instance.items():
                if _matches(pattern, name):
                    yield from validator.descend(value, wanted)


def _check_additional(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if validator.is_type(instance, "object"):
        known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        for name, value in instance.items():
            if name not in known and not any(_matches(pattern, name) for pattern in patterns):
                yield from validator.descend(value, wanted)


def _check_multiple(validator: Any, unit: float, instance: Any, _schema: Any) -> Iterator[Any]:
    # As decimals, as they are written: 0.3 is a multiple of 0.1. No size overflows.
    if validator.is_type(instance, "number") and _exact(instance) % _exact(unit):
        yield _error("multipleOf")


def _check_unique(validator: Any, wanted: bool, instance: Any, _schema: Any) -> Iterator[Any]:
    if wanted and validator.is_type(instance, "array"):
        texts = [json.dumps(_comparable(item), sort_keys=True) for item in instance]
        if len(set(texts)) < len(texts):
            yield _error("uniqueItems")


def _exact(number: float) -> Fraction:
    return Fraction(number if isinstance(number, int) else str(number))


def _error(keyword: str) -> Exception:
    from jsonschema.exceptions import ValidationError

    return ValidationError(keyword)


def _comparable(value: Any) -> Any:
    """Return a value in which equal numbers are spelled alike: 1 and 1.0."""
    if isinstance(value, Mapping):
        return {name: _comparable(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_comparable(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _count(value: Any) -> int:
    """Return the number of numbers, texts, lists, ... in a value."""
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return 1 + sum(map(_count, inner))


def _matches(pattern: str, text: str) -> bool:
    return _pattern(pattern).isinstance_python(text)


@lru_cache(maxsize=256)
def _pattern(pattern: str) -> SchemaValidator:
    """Return the pattern, compiled.

    Raises:
        ValueError: if it needs more than linear time (lookaround, references to groups), or is none.
    """
    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    except PatternError as error:
        raise ValueError(
            f"the schema's pattern {pattern!r} is not supported: it must match in linear time, so no lookaround, "
            "no references to groups, no huge repeats"
        ) from error
