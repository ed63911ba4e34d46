"""Verifiers that look at form alone: tags, length, JSON. None of them tells right from wrong."""

from __future__ import annotations

import json
import re
from typing import Any, ClassVar, Literal, NoReturn, Self

from pydantic import Field, PositiveInt, field_validator, model_validator

from games.verifiers.reading import refused
from games.verifiers.text import checked
from marl.protocols import VerifierConfig
from marl.types import Case, Verdict


class Format(VerifierConfig):
    """The share of required parts that a text has exactly once, 0 to 1."""

    kind: str = "format"
    grades: ClassVar[bool] = False
    requires: tuple[str, ...] = Field(min_length=1)
    """Regular expressions; a tag such as `<think>` is one."""

    @field_validator("requires")
    @classmethod
    def _expressions(cls, requires: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(checked(pattern) for pattern in requires)

    def __call__(self, case: Case) -> Verdict:
        found = {pattern: sum(1 for _ in re.finditer(pattern, case.text)) for pattern in self.requires}
        amiss = [f"{pattern}: {many} times" for pattern, many in found.items() if many != 1]
        return Verdict(1 - len(amiss) / len(found), "; ".join(amiss))


class Length(VerifierConfig):
    """Nothing up to `soft`, then a penalty that grows to -1 at `hard`.

    The soft overlong punishment of DAPO (arXiv 2503.14476, equation 13).
    """

    kind: str = "length"
    grades: ClassVar[bool] = False
    unit: Literal["words", "characters"] = "words"
    soft: PositiveInt
    hard: PositiveInt

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.soft >= self.hard:
            raise ValueError(f"soft: {self.soft} must be less than hard, {self.hard}")
        return self

    def __call__(self, case: Case) -> Verdict:
        length = len(case.text.split()) if self.unit == "words" else len(case.text)
        over = min(1.0, max(0.0, (length - self.soft) / (self.hard - self.soft)))
        return Verdict(-over if over else 0.0, f"{length} {self.unit}" if over else "")


class JsonSchema(VerifierConfig):
    """1 for JSON that a schema accepts."""

    kind: str = "json_schema"
    grades: ClassVar[bool] = False
    imports: ClassVar[tuple[str, ...]] = ("jsonschema",)
    read: Literal["answer", "text"] = "answer"
    """What the role read, or all that was said."""
    accepts: dict[str, Any] = Field(min_length=1)
    """The JSON schema. References to other documents are not followed."""

    @field_validator("accepts")
    @classmethod
    def _is_a_schema(cls, accepts: dict[str, Any]) -> dict[str, Any]:
        from jsonschema.exceptions import SchemaError
        from jsonschema.validators import validator_for

        try:
            validator_for(accepts).check_schema(accepts)
        except SchemaError as error:
            raise ValueError(f"no JSON schema: {error.message} (at {error.json_path})") from error
        return accepts

    def __call__(self, case: Case) -> Verdict:
        from jsonschema.validators import validator_for
        from referencing import Registry

        said = case.answer if self.read == "answer" else case.text
        try:
            value = json.loads(said or "", parse_constant=_no_number)
        except ValueError as error:
            return refused(f"no JSON: {error}")
        validator = validator_for(self.accepts)(self.accepts, registry=Registry())
        amiss = next(validator.iter_errors(value), None)
        return Verdict(1.0) if amiss is None else refused(f"{amiss.json_path}: {amiss.message[:200]}")


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
