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
from functools import lru_cache
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

_UNSUPPORTED_KEYWORDS = ("unevaluatedItems", "unevaluatedProperties")
_BASE_REFERENCES, _REFERENCES_PER_VALUE = 1000, 20
"""Maximum number of followed references: a fixed number, plus a number for every value within the validated value."""


class _ReferenceBudget(local):
    """Budget of followed schema references, separate for each thread."""

    references = 0
    """Number of references that the validation may still follow."""


class _TooManyReferencesError(Exception):
    """Error of a validation that follows more references than its budget allows."""


_reference_budget = _ReferenceBudget()


def fits_schema(value: Any, schema: Mapping[str, Any]) -> bool:
    """Return True if `value` is valid under `schema`. The schema must have passed `check_schema`.

    A value is invalid if its validation follows too many references (about 20 for every number, text or list in it).
    """
    try:
        return _is_valid_under_subschema(value, schema)
    except (RecursionError, _TooManyReferencesError):
        # The value is nested too deeply for Python's stack, or a recursive schema never ends; so it is invalid.
        return False


def check_schema(schema: Mapping[str, Any]) -> None:
    """Check that `schema` is supported.

    Raises:
        ValueError: if `schema` is no JSON schema, has an external or endless reference, or has an unsupported keyword
            or pattern.
    """
    try:
        Draft202012Validator.check_schema(schema)
        for inner in _all_objects_within_schema(schema):
            for keyword in _UNSUPPORTED_KEYWORDS:
                if keyword in inner:
                    advice = "which is not supported; use additionalProperties or items"
                    raise ValueError(f"the schema has {keyword!r}, {advice}")
            pattern, patterns = inner.get("pattern"), inner.get("patternProperties")
            for regular_expression in (pattern, *(patterns if isinstance(patterns, Mapping) else ())):
                if isinstance(regular_expression, str):
                    _compile_pattern(regular_expression)
            for reference in (inner.get("$ref"), inner.get("$dynamicRef")):
                if isinstance(reference, str):
                    _check_reference(reference, schema)
        _is_valid_under_subschema({}, schema)
    except TypeError as error:
        raise ValueError(f"not a JSON schema: {error}") from error
    except SchemaError as error:
        raise ValueError(f"not a JSON schema: {error.message}") from error
    except (RecursionError, _TooManyReferencesError) as error:
        raise ValueError("the schema refers to itself without end") from error


def _check_reference(reference: str, schema: Mapping[str, Any]) -> None:
    """Raise ValueError if `reference` refers to something outside of `schema`."""
    resolver = REGISTRY.with_resource("", DRAFT202012.create_resource(schema)).resolver()
    try:
        resolver.lookup(reference)
    except Unresolvable as error:
        raise ValueError(f"the schema refers to {reference!r}, which is not in it") from error


def _all_objects_within_schema(schema: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the objects of a schema: the schema itself, its subschemas and the objects in lists."""
    if isinstance(schema, Mapping):
        yield schema
        schema = schema.values()
    elif not isinstance(schema, list | tuple):
        return
    for inner in schema:
        yield from _all_objects_within_schema(inner)


def _is_valid_under_subschema(value: Any, schema: Mapping[str, Any]) -> bool:
    _reference_budget.references = _BASE_REFERENCES + _REFERENCES_PER_VALUE * _count_nested_values(value)
    return _cached_json_schema_validator(json.dumps(schema)).is_valid(value)


@lru_cache(maxsize=64)
def _cached_json_schema_validator(schema_json: str) -> Any:
    """Return jsonschema's validator for a schema, with the keywords of this module."""
    keywords = {
        "pattern": _pattern_errors,
        "patternProperties": _pattern_properties_errors,
        "additionalProperties": _additional_properties_errors,
        "multipleOf": _multiple_of_errors,
        "uniqueItems": _unique_items_errors,
        "$ref": _limit_followed_references(Draft202012Validator.VALIDATORS["$ref"]),
        "$dynamicRef": _limit_followed_references(Draft202012Validator.VALIDATORS["$dynamicRef"]),
    }
    # With a registry of its own, jsonschema does not download schemas to which references lead.
    return extend(Draft202012Validator, keywords)(json.loads(schema_json), registry=REGISTRY)


# --- functions that jsonschema calls for keywords: (validator, keyword's value, instance, schema) -> errors -----------


def _limit_followed_references(ref_validator: Any) -> Any:
    """Return jsonschema's function `ref_validator` for references, limited to the number of references in
    `_reference_budget`."""

    def follow_reference_within_budget(validator: Any, reference: str, instance: Any, schema: Any) -> Iterator[Any]:
        _reference_budget.references -= 1
        if _reference_budget.references < 0:
            raise _TooManyReferencesError
        yield from ref_validator(validator, reference, instance, schema)

    return follow_reference_within_budget


def _pattern_errors(validator: Any, pattern: str, instance: Any, _schema: Any) -> Iterator[Any]:
    if validator.is_type(instance, "string") and not _pattern_matches(pattern, instance):
        yield ValidationError("pattern")


def _pattern_properties_errors(
    validator: Any, patterns: Mapping[str, Any], instance: Any, _schema: Any
) -> Iterator[Any]:
    if validator.is_type(instance, "object"):
        for pattern, subschema in patterns.items():
            for name, value in instance.items():
                if _pattern_matches(pattern, name):
                    yield from validator.descend(value, subschema)


def _additional_properties_errors(validator: Any, subschema: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if validator.is_type(instance, "object"):
        properties, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        for name, value in instance.items():
            if name not in properties and not any(_pattern_matches(pattern, name) for pattern in patterns):
                yield from validator.descend(value, subschema)


def _multiple_of_errors(validator: Any, unit: float, instance: Any, _schema: Any) -> Iterator[Any]:
    # Numbers are compared as fractions of their decimals: 0.3 is a multiple of 0.1, and no size overflows.
    if validator.is_type(instance, "number") and _exact_decimal_fraction(instance) % _exact_decimal_fraction(unit):
        yield ValidationError("multipleOf")


def _unique_items_errors(validator: Any, unique: bool, instance: Any, _schema: Any) -> Iterator[Any]:
    # JSON texts are compared, because jsonschema compares the items pairwise, in quadratic time.
    if unique and validator.is_type(instance, "array"):
        texts = {json.dumps(_with_integral_floats_as_ints(item), sort_keys=True) for item in instance}
        if len(texts) < len(instance):
            yield ValidationError("uniqueItems")


def _exact_decimal_fraction(number: float) -> Fraction:
    """Return `number` as the fraction of its decimal digits: 1/10 for 0.1, which has no exact float."""
    return Fraction(number if isinstance(number, int) else str(number))


def _with_integral_floats_as_ints(value: Any) -> Any:
    """Return `value` with integral floats as ints, so that equal numbers (1 and 1.0) have equal JSON texts."""
    if isinstance(value, Mapping):
        return {name: _with_integral_floats_as_ints(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return list(map(_with_integral_floats_as_ints, value))
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _count_nested_values(value: Any) -> int:
    """Return the number of values nested in `value`, including `value` itself."""
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return 1 + sum(map(_count_nested_values, inner))


def _pattern_matches(pattern: str, text: str) -> bool:
    return _compile_pattern(pattern).isinstance_python(text)


@lru_cache(maxsize=256)
def _compile_pattern(pattern: str) -> SchemaValidator:
    """Return a regular expression that is matched in linear time.

    Raises:
        ValueError: if `pattern` is invalid or needs more than linear time (lookaround, references to groups).
    """
    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    except PatternError as error:
        raise ValueError(
            f"the schema's pattern {pattern!r} is not supported: it must match in linear time, so no lookaround, "
            "no references to groups, no huge repeats"
        ) from error
