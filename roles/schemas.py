"""JSON schemas (draft 2020-12) of a scenario. Loads jsonschema only where there is a schema."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any


def fits_schema(value: Any, schema: Mapping[str, Any]) -> bool:
    """Return whether `value` is valid under `schema`, which `check_schema` has passed."""
    try:
        return _validator(json.dumps(schema)).is_valid(value)
    except RecursionError:
        # A schema that refers to itself follows the value down; a value that is too deep for it does not fit.
        return False


def check_schema(schema: Mapping[str, Any]) -> None:
    """Check that `schema` can be used.

    Raises:
        ValueError: if it is no JSON schema, or refers to something outside itself or to itself without end.
    """
    from jsonschema.exceptions import SchemaError
    from jsonschema_specifications import REGISTRY
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    try:
        validator = _validator(json.dumps(schema))
        validator.check_schema(schema)
        resolver = REGISTRY.with_resource("", DRAFT202012.create_resource(schema)).resolver()
        for reference in _references(schema):
            try:
                resolver.lookup(reference)
            except Unresolvable as error:
                raise ValueError(f"the schema refers to {reference!r}, which is not in it") from error
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

    # With a registry of its own it never downloads the schemas that a schema refers to.
    return Draft202012Validator(json.loads(schema), registry=REGISTRY)


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, Mapping):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"]
        schema = schema.values()
    elif not isinstance(schema, list | tuple):
        return
    for part in schema:
        yield from _references(part)
