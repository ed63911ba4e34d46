"""JSON schemas (draft 2020-12) as a scenario gives them. Loads jsonschema only where there is a schema."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any


def fits(value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether `value` is as `schema` says."""
    try:
        return _validator(json.dumps(schema)).is_valid(value)
    except RecursionError:
        # A schema that refers to itself follows the value down; what it cannot follow does not fit.
        return False


def check_schema(schema: Mapping[str, Any]) -> None:
    """Raises:
    ValueError: if `schema` is no JSON schema, or refers to something outside itself or to itself without end.
    """
    from jsonschema.exceptions import SchemaError
    from jsonschema_specifications import REGISTRY
    from referencing.jsonschema import DRAFT202012

    try:
        validator = _validator(json.dumps(schema))
        validator.check_schema(schema)
        inside = REGISTRY.with_resource("", DRAFT202012.create_resource(schema)).resolver()
        for reference in _references(schema):
            _look_up(inside, reference)
        validator.is_valid({})
    except TypeError as error:
        raise ValueError(f"not a JSON schema: {error}") from error
    except SchemaError as error:
        raise ValueError(f"not a JSON schema: {error.message}") from error
    except RecursionError as error:
        raise ValueError("the schema refers to itself without end") from error


@lru_cache(maxsize=64)
def _validator(schema: str) -> Any:
    from jsonschema import Draft202012Validator
    from jsonschema_specifications import REGISTRY

    # With a registry of its own it never fetches what a schema refers to.
    return Draft202012Validator(json.loads(schema), registry=REGISTRY)


def _look_up(inside: Any, reference: str) -> None:
    from referencing.exceptions import Unresolvable

    try:
        inside.lookup(reference)
    except Unresolvable as error:
        raise ValueError(f"the schema refers to {reference!r}, which is not in it") from error


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, Mapping):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"]
        schema = schema.values()
    elif not isinstance(schema, list | tuple):
        return
    for part in schema:
        yield from _references(part)
