"""A setting that says how something is shared out: a word, a weight for each role, or a part that learns it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from marl.config import Component, nearest, wrong
from marl.parts import Part, names
from marl.protocols import AssignConfig


@dataclass(frozen=True)
class SharedBy(Part):
    """Marks such a field: `Annotated[str | AssignConfig, SharedBy(words=("copy", "equal"))]`."""

    group: str = "credit"
    base: type[Component] = AssignConfig
    words: tuple[str, ...] = ()
    roles: bool = False
    """Whether it may be a weight for each role."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self._validate, serialization=core_schema.plain_serializer_function_ser_schema(_plain)
        )

    def _validate(self, value: Any) -> Any:
        if value in self.words if isinstance(value, str) else isinstance(value, self.base):
            return value
        if isinstance(value, Mapping) and "kind" in value:
            return super()._validate(value)
        if self.roles and isinstance(value, Mapping) and value:
            return _weights(value)
        by_role = ", a weight for each role ({role: weight})" if self.roles else ""
        raise ValueError(f"unknown; {nearest(str(value), self.words)}{by_role}, or a part ({{kind: ...}})")

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        weights = {"type": "object", "additionalProperties": {"type": "number", "exclusiveMinimum": 0}}
        # Kinds only: the settings of all parts would hold this very field again.
        kinds = {"anyOf": [{"enum": names(self.group)}, {"type": "string", "pattern": ":"}]}
        part = {"type": "object", "required": ["kind"], "properties": {"kind": kinds}}
        return {"anyOf": [{"enum": list(self.words)}, *([weights] if self.roles else []), part]}


def shares(weights: Sequence[float]) -> list[float]:
    """In proportion to `weights`, which are not negative; equal if these are all 0, or one of them is infinite."""
    total = sum(weights)
    if total in (0, inf):
        return [1 / len(weights)] * len(weights)
    return [weight / total for weight in weights]


def _weights(value: Mapping[Any, Any]) -> dict[str, float]:
    good = {
        str(role): float(weight)
        for role, weight in value.items()
        if isinstance(weight, int | float) and not isinstance(weight, bool) and 0 < weight < inf
    }
    if bad := {str(role): weight for role, weight in value.items() if str(role) not in good}:
        raise wrong({role: f"must be a number greater than 0 (got {weight!r})" for role, weight in bad.items()})
    return good


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json") if isinstance(value, Component) else value
