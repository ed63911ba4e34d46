"""Validation of answers against JSON schemas. Imported for a schema alone, as jsonschema takes long to import."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.validators import validator_for
from referencing import Registry


def check_schema(schema: Mapping[str, Any]) -> None:
    """Check that `schema` is a JSON schema.

    Raises:
        ValueError: if it is none; the message names the wrong part.
    """
    try:
        validator_for(schema).check_schema(schema)
    except SchemaError as error:
        raise ValueError(f"no JSON schema: {error.message} (at {error.json_path})") from error


def first_violation(value: object, schema: Mapping[str, Any]) -> ValidationError | None:
    """Return the first violation of `schema` by `value`, or None if the value is valid.

    Raises:
        RecursionError: if the schema refers to itself without end, or the value is nested too deeply.
    """
    # An empty registry: references to other documents raise an error and are never fetched.
    validator = validator_for(schema)(schema, registry=Registry())
    return next(validator.iter_errors(value), None)
