"""Verifiers of texts by equality, pattern or choice, and verifiers of form alone: format, length, JSON schema."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, PositiveInt, field_validator, model_validator

from marl.core.types import Problem, Verdict, VerifierCase
from marl.games.verifiers.answer_verifier import AnswerVerifier, quote, reject, unwrap
from marl.games.verifiers.choices import named_options, read_options
from marl.games.verifiers.spelling import normalize_spelling
from marl.protocols import VerifierConfig
from marl.text.json_text import last_json

_MAX_MESSAGE = 80
"""Maximum length of a schema library's message in the reason of a verdict, in characters."""


class ExactVerifier(AnswerVerifier):
    """Accepts the right answer, word for word up to case and spaces."""

    kind: str = "exact"
    case: bool = False
    """True if upper and lower case differ."""
    punctuation: bool = True
    """True if punctuation counts. With false it is ignored, except signs and marks next to a digit: -5 is not 5, and C#
    is not C."""
    articles: bool = True
    """True if a, an and the count."""

    def grade(self, answer: str, problem: Problem) -> Verdict:
        gold = self._spell(unwrap(problem.answer))
        if not gold:
            return reject("the problem has no answer to compare with")
        return Verdict(1.0) if self._spell(answer) == gold else reject(f"{quote(answer)} is wrong")

    def _spell(self, text: str) -> str:
        return normalize_spelling(text, case=self.case, punctuation=self.punctuation, articles=self.articles)


class PatternVerifier(AnswerVerifier):
    """Accepts an answer if a regular expression matches all of it."""

    kind: str = "pattern"
    pattern: str | None = None
    """Regular expression for the answer; `{answer}` in it is replaced by the right answer, literally (None: the pattern
    of each problem, `facts.pattern`)."""

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
    """Return `pattern` unchanged, or raise ValueError if it is no regular expression."""
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
    return pattern


class ChoiceVerifier(AnswerVerifier):
    """Accepts the right option of `facts.choices` by label, text or both; of several right options, exactly these."""

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
    """Scores the share of the required patterns with exactly one match in the text, 0 to 1."""

    kind: str = "format"
    example = 'requires: ["<think>.*</think>"]'
    checks_correctness: ClassVar[bool] = False
    requires: tuple[Annotated[str, AfterValidator(check_pattern)], ...] = Field(min_length=1)
    """Regular expressions to be matched once by the text; a tag such as `<think>` is one."""

    def __call__(self, case: VerifierCase) -> Verdict:
        counts = {pattern: sum(1 for _ in re.finditer(pattern, case.text)) for pattern in self.requires}
        faults = [f"{pattern}: {count} times" for pattern, count in counts.items() if count != 1]
        return Verdict(1 - len(faults) / len(counts), "; ".join(faults))


class LengthVerifier(VerifierConfig):
    """Scores 0 up to the length `soft`, then a penalty that grows to -1 at `hard`.

    The soft overlong punishment of DAPO (arXiv 2503.14476, equation 13).
    """

    kind: str = "length"
    example = "soft: 200, hard: 300"
    checks_correctness: ClassVar[bool] = False
    unit: Literal["words", "characters"] = "words"
    """Unit of `soft` and `hard`."""
    soft: PositiveInt
    """Maximum length without a penalty."""
    hard: PositiveInt
    """Minimum length with the full penalty, a score of -1."""

    @model_validator(mode="after")
    def _check_limits(self) -> Self:
        if self.soft >= self.hard:
            raise ValueError(f"soft: {self.soft} must be less than hard, {self.hard}")
        return self

    def __call__(self, case: VerifierCase) -> Verdict:
        length = len(case.text.split()) if self.unit == "words" else len(case.text)
        # Equation 13 in one line: 0 up to `soft`, then linear, 1 from `hard` on.
        over = min(1.0, max(0.0, (length - self.soft) / (self.hard - self.soft)))
        return Verdict(-over if over else 0.0, f"{length} {self.unit}" if over else "")


class JsonSchemaVerifier(VerifierConfig):
    """Scores 1 for JSON accepted by a schema, else 0."""

    kind: str = "json_schema"
    example = "accepts: {type: object, required: [answer]}"
    checks_correctness: ClassVar[bool] = False
    imports: ClassVar[tuple[str, ...]] = ("jsonschema",)
    read: Literal["answer", "text"] = "answer"
    """Checked text: the answer parsed by the role, or the full text."""
    accepts: dict[str, Any] = Field(min_length=1)
    """The JSON schema. References to other documents are not followed."""

    @field_validator("accepts")
    @classmethod
    def _check_schema(cls, accepts: dict[str, Any]) -> dict[str, Any]:
        # Imported here, so that scenarios without a schema do not load the library.
        from marl.games.verifiers.schema_validation import check_schema

        check_schema(accepts)
        return accepts

    def __call__(self, case: VerifierCase) -> Verdict:
        from marl.games.verifiers.schema_validation import first_violation

        try:
            value = last_json((case.answer if self.read == "answer" else case.text) or "")
            violation = first_violation(value, self.accepts)
        except ValueError as error:
            return reject(f"no JSON: {error}")
        except RecursionError:
            return reject("the schema leads deeper than the value")
        if violation is None:
            return Verdict(1.0)
        why = f"{violation.json_path}: {violation.message}"
        # The library's message quotes the value, which may be long.
        return reject(why if len(why) <= _MAX_MESSAGE else f"breaks {violation.validator!r}")
