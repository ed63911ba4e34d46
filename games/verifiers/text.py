"""Verifiers of texts: equality, patterns and multiple choice; and of form alone: format, length, JSON schema."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping
from string import ascii_uppercase
from typing import Annotated, Any, ClassVar, Literal, NoReturn, Self

from pydantic import AfterValidator, Field, PositiveInt, field_validator, model_validator

from games.verifiers.reading import AnswerVerifier, reject, unwrap
from marl.protocols import VerifierConfig
from marl.types import Case, Problem, Verdict

_ARTICLES = re.compile(r"\b(?:a|an|the)\b", re.I)


class ExactVerifier(AnswerVerifier):
    """Accepts the right answer, word for word up to case and spaces."""

    kind: str = "exact"
    case: bool = False
    """True: upper and lower case differ."""
    punctuation: bool = True
    """False: punctuation is ignored, but signs next to a digit still count: -5 is not 5."""
    articles: bool = True
    """False: a, an and the are ignored."""

    def __call__(self, case: Case) -> Verdict:
        answer, gold = self.normalize(self.answer(case)), self.normalize(case.problem.answer)
        if not answer or not gold:
            return reject("no answer" if gold else "the problem has no answer to compare with")
        return Verdict(1.0) if answer == gold else reject(f"{answer!r} is not {gold!r}")

    def normalize(self, text: str) -> str:
        """Return the text in the spelling that is compared."""
        text = unicodedata.normalize("NFC", unwrap(text))
        text = text if self.case else text.casefold()
        text = text if self.punctuation else _remove_punctuation(text)
        text = text if self.articles else _ARTICLES.sub(" ", text) if _ARTICLES.sub("", text).strip() else text
        return " ".join(text.split())


def _remove_punctuation(text: str) -> str:
    def counts(i: int) -> bool:
        return not unicodedata.category(text[i]).startswith("P") or any(map(str.isdigit, text[max(0, i - 1) : i + 2]))

    text = text.rstrip(".!?,;:")
    return "".join(sign if counts(i) else " " for i, sign in enumerate(text))


class PatternVerifier(AnswerVerifier):
    """Accepts an answer that a regular expression matches as a whole."""

    kind: str = "pattern"
    pattern: str | None = None
    """`{answer}` in it stands for the right answer, literally. None: each problem brings its own, `facts.pattern`."""

    @field_validator("pattern")
    @classmethod
    def _check_pattern(cls, pattern: str | None) -> str | None:
        if pattern is not None and "{answer}" not in pattern:
            raise ValueError(f"{pattern!r} has no {{answer}}, so it cannot tell right from wrong; `format` checks form")
        if pattern is not None:
            check_pattern(pattern.replace("{answer}", "x"))
        return pattern

    def __call__(self, case: Case) -> Verdict:
        answer = self.answer(case)
        if not answer:
            return reject("no answer")
        pattern = self.pattern or str(case.problem.facts["pattern"])
        pattern = pattern.replace("{answer}", re.escape(case.problem.answer))
        return Verdict(1.0) if re.fullmatch(pattern, answer) else reject(f"{answer[:80]!r} does not match")


def check_pattern(pattern: str) -> str:
    """Return the pattern; raise ValueError if it is no regular expression."""
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
    return pattern


class ChoiceVerifier(AnswerVerifier):
    """Accepts the right option of `facts.choices`, by letter, by text or by both; naming two is wrong."""

    kind: str = "choice"

    def __call__(self, case: Case) -> Verdict:
        options = _options(case.problem)
        answer, gold = _chosen_letter(self.answer(case), options), _chosen_letter(case.problem.answer, options)
        if gold is None:
            return reject(f"the right answer {case.problem.answer!r} is none of {sorted(options)}")
        if answer is None:
            return reject(f"names no single option of {sorted(options)}")
        return Verdict(1.0) if answer == gold else reject(f"{answer}, not {gold}")


_SPELLING = ExactVerifier(punctuation=False, articles=False)
_LETTERED = re.compile(r"(?:option|choice)?\s*\(?([a-z])\)?(?:[.):,\s]+(.*))?", re.I | re.S)


def _options(problem: Problem) -> Mapping[str, str]:
    """Return letter -> option in comparable spelling."""
    choices: Any = problem.facts["choices"]
    lettered = choices if isinstance(choices, Mapping) else dict(zip(ascii_uppercase, choices, strict=False))
    return {str(letter).upper(): _SPELLING.normalize(str(text)) for letter, text in lettered.items()}


def _chosen_letter(answer: str, options: Mapping[str, str]) -> str | None:
    """Return the letter of the option that is named. A letter has precedence over an option whose text is a letter."""
    lettered = _LETTERED.fullmatch(answer)
    letter = lettered.group(1).upper() if lettered else ""
    if lettered and letter in options and _SPELLING.normalize(lettered.group(2) or "") in ("", options[letter]):
        return letter
    letters = [letter for letter, text in options.items() if text == _SPELLING.normalize(answer)]
    return letters[0] if len(letters) == 1 else None


# --- form alone ------------------------------------------------------------------------------------------------------


class FormatVerifier(VerifierConfig):
    """Scores the share of required parts that a text has exactly once, 0 to 1."""

    kind: str = "format"
    grades: ClassVar[bool] = False
    requires: tuple[Annotated[str, AfterValidator(check_pattern)], ...] = Field(min_length=1)
    """Regular expressions; a tag such as `<think>` is one."""

    def __call__(self, case: Case) -> Verdict:
        counts = {pattern: sum(1 for _ in re.finditer(pattern, case.text)) for pattern in self.requires}
        faults = [f"{pattern}: {count} times" for pattern, count in counts.items() if count != 1]
        return Verdict(1 - len(faults) / len(counts), "; ".join(faults))


class LengthVerifier(VerifierConfig):
    """Scores 0 up to the length `soft`, then a penalty that grows to -1 at `hard`.

    The soft overlong punishment of DAPO (arXiv 2503.14476, equation 13).
    """

    kind: str = "length"
    grades: ClassVar[bool] = False
    unit: Literal["words", "characters"] = "words"
    soft: PositiveInt
    hard: PositiveInt

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
    grades: ClassVar[bool] = False
    imports: ClassVar[tuple[str, ...]] = ("jsonschema",)
    read: Literal["answer", "text"] = "answer"
    """The answer that the role parsed, or the whole text."""
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

        text = case.answer if self.read == "answer" else case.text
        try:
            value = json.loads(text or "", parse_constant=_reject_constant)
        except ValueError as error:
            return reject(f"no JSON: {error}")
        validator = validator_for(self.accepts)(self.accepts, registry=Registry())
        fault = next(validator.iter_errors(value), None)
        return Verdict(1.0) if fault is None else reject(f"{fault.json_path}: {fault.message[:200]}")


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
