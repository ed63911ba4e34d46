"""Verifiers of texts by equality, pattern or choice, and verifiers of form alone: format, length, JSON schema."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, PositiveInt, field_validator, model_validator

from marl.core.config import DistinctValues
from marl.core.types import Problem, Verdict, VerifierCase
from marl.games.verifiers.answer_statements import find_statements
from marl.games.verifiers.answer_verifier import AnswerVerifier, quote, reject, unwrap
from marl.games.verifiers.chemistry import is_letter_case_significant
from marl.games.verifiers.choices import asserted_option, named_options, read_options
from marl.games.verifiers.sentences import concluding_clauses, readings_of_sentence
from marl.games.verifiers.spelling import normalize_spelling
from marl.protocols import VerifierConfig
from marl.text.json_text import last_json_value
from marl.text.word_count import count_words

_BEFORE_OPTIONS = re.compile(r"\s\(?A[).:]\s")
_MAX_MESSAGE = 80
"""Maximum length of a schema library's message in the reason of a verdict, in characters."""


class ExactVerifier(AnswerVerifier):
    """Accepts the right answer, word for word up to case and spaces."""

    kind: str = "exact"
    case: bool = False
    """True if upper and lower case differ, as they always do if the question asks for a chemical or other symbol."""
    punctuation: bool = True
    """True if punctuation counts. If false, punctuation is ignored, except signs and marks next to a digit: -5 is not
    5, and C# is not C."""
    articles: bool = True
    """True if the articles "a", "an" and "the" count. If false, articles are ignored."""

    def grade(self, answer: str, problem: Problem) -> Verdict:
        options = {
            "case": self.case or is_letter_case_significant(unwrap(problem.answer), problem.question),
            "punctuation": self.punctuation,
            "articles": self.articles,
        }
        gold = normalize_spelling(unwrap(problem.answer), **options)
        if not gold:
            return reject("the problem has no answer to compare with")
        return Verdict(1.0) if normalize_spelling(answer, **options) == gold else reject(f"{quote(answer)} is wrong")


class PatternVerifier(AnswerVerifier):
    """Accepts an answer if a regular expression matches all of it."""

    kind: str = "pattern"
    pattern: str | None = None
    """Regular expression that must match the full answer. `{answer}` within it stands for the right answer, letter by
    letter (default: the pattern in each problem's `facts.pattern`)."""

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

    def alternative_answers(self, text: str, answers: Sequence[str], problem: Problem) -> Iterable[str]:
        """Return the option that the last sentence of `text` asserts ("Richtig ist C"), if no other does another."""
        options = read_options(problem)
        if "?" in text or find_statements(text) is not None:
            return
        question = _BEFORE_OPTIONS.split(problem.question)[0]
        *before, last = (asserted_option(sentence, options, question) for sentence in concluding_clauses(text))
        if last and {last, ""}.issuperset(before):
            yield last
        elif options.keys().isdisjoint(re.findall(r"\w+", text)):
            yield from readings_of_sentence(text, question)

    def grade(self, answer: str, problem: Problem) -> Verdict:
        options = read_options(problem)
        named, right = named_options(answer, options), named_options(unwrap(problem.answer), options)
        if not right:
            return reject("the right answer is none of the options")
        if not named:
            return reject(f"{quote(answer)} names no option")
        return Verdict(1.0) if named == right else reject(f"{quote(answer)} is wrong")


# --- verifiers of the form of a text: patterns, length, JSON schema --------------------------------------------------


class FormatVerifier(VerifierConfig):
    """Scores the share (0 to 1) of the required patterns that match the text exactly once."""

    kind: str = "format"
    example = 'requires: ["<think>.*</think>"]'
    checks_correctness: ClassVar[bool] = False
    requires: DistinctValues[Annotated[str, AfterValidator(check_pattern)]] = Field(min_length=1)
    """Regular expressions that must match the text exactly once each, such as `<think>.*</think>`."""

    def __call__(self, case: VerifierCase) -> Verdict:
        faults = list[str]()
        for pattern in dict.fromkeys(self.requires):
            count = len(list(re.finditer(pattern, case.text)))
            if count != 1:
                faults.append(f"{pattern}: {count} times")
        return Verdict(1 - len(faults) / len(set(self.requires)), "; ".join(faults))


class LengthVerifier(VerifierConfig):
    """Scores 0 up to the length `soft`, then a penalty that grows to -1 at `hard`.

    The soft overlong punishment of DAPO (arXiv 2503.14476, equation 13).
    """

    kind: str = "length"
    example = "soft: 200, hard: 300"
    checks_correctness: ClassVar[bool] = False
    unit: Literal["words", "characters"] = "words"
    """Unit of the lengths `soft` and `hard`."""
    soft: PositiveInt
    """Maximum length of a text without a penalty."""
    hard: PositiveInt
    """Minimum length of a text with the full penalty, a score of -1."""

    @model_validator(mode="after")
    def _check_limits(self) -> Self:
        if self.soft >= self.hard:
            raise ValueError(f"soft: {self.soft} must be less than hard, {self.hard}")
        return self

    def __call__(self, case: VerifierCase) -> Verdict:
        length = count_words(case.text) if self.unit == "words" else len(case.text)
        # Equation 13 of DAPO in one line: 0 up to `soft`, then linear, 1 from `hard` on.
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
    """JSON schema that the checked text must satisfy. References to other documents are not followed."""

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
            value = last_json_value((case.answer if self.read == "answer" else case.text) or "")
            violation = first_violation(value, self.accepts)
        except ValueError as error:
            return reject(f"no JSON: {error}")
        except RecursionError:
            return reject("the schema leads deeper than the value")
        if violation is None:
            return Verdict(1.0)
        why = f"{violation.json_path}: {violation.message}"
        # The library's message quotes the model's value, so that it may be too long for a reason.
        return reject(why if len(why) <= _MAX_MESSAGE else f"breaks {violation.validator!r}")
