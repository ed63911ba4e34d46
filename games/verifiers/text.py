"""Verifiers that compare texts: equality up to spelling, patterns, multiple choice."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from string import ascii_uppercase
from typing import Any

from pydantic import field_validator

from games.verifiers.reading import Read, answer_of, phrased, plain, refused
from marl.protocols import VerifierConfig
from marl.types import Case, Problem, Verdict

_ARTICLES = re.compile(r"\b(?:a|an|the)\b", re.I)


class Exact(VerifierConfig):
    """Accepts the right answer, word for word up to case and spaces."""

    kind: str = "exact"
    read: Read = "answer"
    case: bool = False
    """Whether upper and lower case differ."""
    punctuation: bool = True
    """Whether punctuation counts. Without it, signs next to a digit still do: -5 is not 5."""
    articles: bool = True
    """Whether a, an and the count."""

    def __call__(self, case: Case) -> Verdict:
        said, gold = self.normal(answer_of(case, self.read)), self.normal(case.problem.answer)
        if not said or not gold:
            return refused("no answer" if gold else "the problem has no answer to compare with")
        return Verdict(1.0) if said == gold else refused(f"{said!r} is not {gold!r}")

    def phrase(self, answer: str) -> str:
        return phrased(answer, self.read)

    def normal(self, text: str) -> str:
        """The text in the spelling that is compared."""
        text = unicodedata.normalize("NFC", plain(text))
        text = text if self.case else text.casefold()
        text = text if self.punctuation else _without_punctuation(text)
        text = text if self.articles else _ARTICLES.sub(" ", text) if _ARTICLES.sub("", text).strip() else text
        return " ".join(text.split())


def _without_punctuation(text: str) -> str:
    def kept(at: int) -> bool:
        return not unicodedata.category(text[at]).startswith("P") or any(
            map(str.isdigit, text[max(0, at - 1) : at + 2])
        )

    text = text.rstrip(".!?,;:")
    return "".join(sign if kept(at) else " " for at, sign in enumerate(text))


class Pattern(VerifierConfig):
    """Accepts an answer that a regular expression matches as a whole."""

    kind: str = "pattern"
    read: Read = "answer"
    pattern: str | None = None
    """`{answer}` in it stands for the right answer, literally. None: each problem brings its own, `facts.pattern`."""

    @field_validator("pattern")
    @classmethod
    def _usable(cls, pattern: str | None) -> str | None:
        if pattern is not None and "{answer}" not in pattern:
            raise ValueError(f"{pattern!r} has no {{answer}}, so it cannot tell right from wrong; `format` checks form")
        if pattern is not None:
            checked(pattern.replace("{answer}", "x"))
        return pattern

    def __call__(self, case: Case) -> Verdict:
        said = answer_of(case, self.read)
        if not said:
            return refused("no answer")
        pattern = self.pattern or str(case.problem.facts["pattern"])
        pattern = pattern.replace("{answer}", re.escape(case.problem.answer))
        return Verdict(1.0) if re.fullmatch(pattern, said) else refused(f"{said[:80]!r} does not match")

    def phrase(self, answer: str) -> str:
        return phrased(answer, self.read)


def checked(pattern: str) -> str:
    """Raises:
    ValueError: if `pattern` is no regular expression.
    """
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
    return pattern


class Choice(VerifierConfig):
    """Accepts the right option of `facts.choices`, by letter, by text or by both; naming two is wrong."""

    kind: str = "choice"
    read: Read = "answer"

    def __call__(self, case: Case) -> Verdict:
        options = _options(case.problem)
        said, gold = _chosen(answer_of(case, self.read), options), _chosen(case.problem.answer, options)
        if gold is None:
            return refused(f"the right answer {case.problem.answer!r} is none of {sorted(options)}")
        if said is None:
            return refused(f"names no single option of {sorted(options)}")
        return Verdict(1.0) if said == gold else refused(f"{said}, not {gold}")

    def phrase(self, answer: str) -> str:
        return phrased(answer, self.read)


def _options(problem: Problem) -> Mapping[str, str]:
    """Letter -> option in comparable spelling."""
    choices: Any = problem.facts["choices"]
    lettered = choices if isinstance(choices, Mapping) else dict(zip(ascii_uppercase, choices, strict=False))
    return {str(letter).upper(): _SPELLING.normal(str(text)) for letter, text in lettered.items()}


_SPELLING = Exact(punctuation=False, articles=False)
_LETTERED = re.compile(r"(?:option|choice)?\s*\(?([a-z])\)?(?:[.):,\s]+(.*))?", re.I | re.S)


def _chosen(said: str, options: Mapping[str, str]) -> str | None:
    """The letter of the option that is named. A letter goes before a text that is a letter too."""
    lettered = _LETTERED.fullmatch(said)
    letter = lettered.group(1).upper() if lettered else ""
    if lettered and letter in options and _SPELLING.normal(lettered.group(2) or "") in ("", options[letter]):
        return letter
    named = [letter for letter, text in options.items() if text == _SPELLING.normal(said)]
    return named[0] if len(named) == 1 else None
