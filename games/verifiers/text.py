"""Verifiers of texts: equality, patterns and multiple choice; and of form alone: format, length, JSON schema."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, PositiveInt, field_validator, model_validator

from games.verifiers.choices import named_options, read_options
from games.verifiers.reading import AnswerVerifier, quote, reject, unwrap
from games.verifiers.spelling import spell
from marl.json_text import last_json
from marl.protocols import VerifierConfig
from marl.types import Case, Problem, Verdict

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError

_MAX_MESSAGE = 80


class ExactVerifier(AnswerVerifier):
    """Accepts the right answer, word for word up to case and spaces."""

    kind: str = "exact"
    case: bool = False
    """Tell upper and lower case apart."""
    punctuation: bool = True
    """Compare punctuation, too. With false it is ignored, but not signs and what stands next to a digit: -5 is not 5,
    and C# is not C."""
    articles: bool = True
    """Compare a, an and the, too."""

    def grade(self, answer: str, problem: Problem) -> Verdict:
        gold = self._spell(unwrap(problem.answer))
        if not gold:
            return reject("the problem has no answer to compare with")
        return Verdict(1.0) if self._spell(answer) == gold else reject(f"{quote(answer)} is wrong")

    def _spell(self, text: str) -> str:
        return spell(text, case=self.case, punctuation=self.punctuation, articles=self.articles)


class PatternVerifier(AnswerVerifier):
    """Accepts an answer that a regular expression matches as a whole."""

    kind: str = "pattern"
    pattern: str | None = None
    """Regular expression that the answer must match; `{answer}` in it stands for the right answer, literally. None:
    each problem brings its own, `facts.pattern`."""

    @field_validator("pattern")
    @classmethod
    def _check_pattern(cls, pattern: str | None) -> str | None:
        if pattern is not None and "{answer}" not in pattern:
            raise ValueError(f"{pattern!r} has no {{answer}}, so it cannot tell right from wrong; `format` checks form")
        if pattern is not None:
            check_pattern(pattern.replace("{answer}", "x"))
        return pattern

    def grade(self, answer: str, problem: Problem) -> Verdict:
        pattern = self.pattern or str(problem.facts["pattern"])
        if "{answer}" in pattern and not problem.answer:
            return reject("the problem has no answer to compare with")
        pattern = pattern.replace("{answer}", re.escape(problem.answer))
        return Verdict(1.0) if re.fullmatch(pattern, answer) else reject(f"{quote(answer)} does not match")


def check_pattern(pattern: str) -> str:
    """Return the pattern; raise ValueError if it is no regular expression."""
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
    return pattern


class ChoiceVerifier(AnswerVerifier):
    """Accepts the right option of `facts.choices`, by label, by text or by both; of several, all and no other."""

    kind: str = "choice"

    def grade(self, answer: str, problem: Problem) -> Verdict:
        options = read_options(problem)
        named, right = named_options(answer, options), named_options(unwrap(problem.answer), options)
        if not right:
            return reject("the right answer is none of the options")
        if not named:
            return reject(f"{quote(answer)} names no option")
        return Verdict(1.0) if named == right else reject(f"{quote(answer)} is wrong")


# --- form alone ------------------------------------------------------------------------------------------------------


class FormatVerifier(VerifierConfig):
    """Scores the share of required parts that a text has exactly once, 0 to 1."""

    kind: str = "format"
    example = 'requires: ["<think>.*</think>"]'
    grades: ClassVar[bool] = False
    requires: tuple[Annotated[str, AfterValidator(check_pattern)], ...] = Field(min_length=1)
    """Regular expressions that the text must match; a tag such as `<think>` is one."""

    def __call__(self, case: Case) -> Verdict:
        counts = {pattern: sum(1 for _ in re.finditer(pattern, case.text)) for pattern in self.requires}
        faults = [f"{pattern}: {count} times" for pattern, count in counts.items() if count != 1]
        return Verdict(1 - len(faults) / len(counts), "; ".join(faults))


class LengthVerifier(VerifierConfig):
    """Scores 0 up to the length `soft`, then a penalty that grows to -1 at `hard`.

    The soft overlong punishment of DAPO (arXiv 2503.14476, equation 13).
    """

    kind: str = "length"
    example = "soft: 200, hard: 300"
    grades: ClassVar[bool] = False
    unit: Literal["words", "characters"] = "words"
    """Unit of `soft` and `hard`."""
    soft: PositiveInt
    """Greatest length without a penalty."""
    hard: PositiveInt
    """Length from which the penalty is 1."""

    @model_validator(mode="after")
    def _check_limits(self) -> Self:
        if self.soft >= self.hard:
            raise ValueError(f"soft: {self.soft} must be less than hard, {self.hard}")
        return self

    def __call__(self, case: Case) -> Verdict:
        length = len(case.text.split()) if self.unit == "words" else len(case.text)
        over = min(1.0, max(0.0, (length - self.soft) / (self.hard - self.soft)))
        return Verdict(-over if over else 0.0, f"{length} {self.unit}" if over else "")


class JsonSchemaVerifier(VerifierConfig):
    """Scores 1 for JSON that a schema accepts."""

    kind: str = "json_schema"
    example = "accepts: {type: object, required: [answer]}"
    grades: ClassVar[bool] = False
    imports: ClassVar[tuple[str, ...]] = ("jsonschema",)
    read: Literal["answer", "text"] = "answer"
    """Text that is checked: the answer that the role parsed, or the whole text."""
    accepts: dict[str, Any] = Field(min_length=1)
    """The JSON schema. References to other documents are not followed."""

    @field_validator("accepts")
    @classmethod
    def _check_schema(cls, accepts: dict[str, Any]) -> dict[str, Any]:
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

        try:
            value = last_json((case.answer if self.read == "answer" else case.text) or "")
            validator = validator_for(self.accepts)(self.accepts, registry=Registry())
            fault = next(validator.iter_errors(value), None)
        except ValueError as error:
            return reject(f"no JSON: {error}")
        except RecursionError:
            return reject("the schema leads deeper than the value")
        return Verdict(1.0) if fault is None else reject(_describe(fault))


def _describe(fault: ValidationError) -> str:
    """Return what a value breaks and where, if that is short."""
    why = f"{fault.json_path}: {fault.message}"
    return why if len(why) <= _MAX_MESSAGE else f"breaks {fault.validator!r}"
