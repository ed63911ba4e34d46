"""Extraction of the answer for a verifier. A text with several different answers, or a denied one, has no answer."""

# ruff: noqa: RUF001 (the patterns search for signs of other scripts)

from __future__ import annotations

import re
import unicodedata
from abc import abstractmethod
from typing import Literal

from marl.core.types import Problem, Verdict, VerifierCase
from marl.games.verifiers.answer_statements import MAX_LENGTH, find_statements
from marl.protocols import VerifierConfig
from marl.text.answers import closing_brace, without_thoughts

_HEDGES = """
    not no nor neither never isnt cannot or but except unless if maybe perhaps possibly probably likely about around
    roughly wrong incorrect false unsure either between
"""
HEDGES = frozenset(_HEDGES.split())
"""Words that deny or qualify an answer."""
_MAX_STATEMENTS = 4
"""Maximum number of different spellings in which a text may state its answer."""
_MAX_QUOTED = 80
"""Maximum length of a quotation in the reason of a verdict, in characters."""
_FULL_WIDTH = {code: unicodedata.normalize("NFKC", chr(code)) for code in (*range(0xFF01, 0xFF5F), 0x3000)}
"""Full-width code point -> its plain character, for `str.translate`."""
_LEAD = re.compile(
    r"^(?:\*\*)?(?:(?:so|thus|hence|therefore)\b[,\s]*)?(?:(?:the|my|our)\s+)?(?:(?:correct|right|final)\s+)*"
    r"(?:(?:answer|result|solution)\s*(?:is\b|[:=])|it\s+is\b)\s*[:=]?\s*(?:\*\*)?\s*|^\#{2,6}\s+|^答案(?:是|为|:)\s*",
    re.I,
)
_WRAPPERS = (
    *(("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("**", "**"), ("__", "__"), ("`", "`")),
    *(('"', '"'), ("'", "'"), ("“", "”"), ("‘", "’")),
)
_COMMAND = re.compile(r"\\(?:boxed|fbox|framebox|text(?:bf|it|rm|sf|normal)?|math(?:rm|bf|sf|it)|[mh]box|emph)\s*\{")
_BARE_COMMAND = re.compile(r"^\\(?:(?:boxed|fbox)\s+(?=[^\s{])|displaystyle\b\s*)")


class AnswerVerifier(VerifierConfig):
    """Base of verifiers that compare an answer with the right one."""

    read: Literal["answer", "boxed", "last_line"] = "answer"
    """Source of the answer. `answer`: the answer parsed by the role; `boxed`: the boxes of the text; `last_line`: the
    last line of the text. An explicit statement within (a box, `<answer>`, "The answer is 5.", "#### 5") comes
    first."""

    def __call__(self, case: VerifierCase) -> Verdict:
        """Return the worst verdict on the answers stated in the text: all of them must be right."""
        verdicts = [self.grade(answer, case.problem) for answer in self.answers(case)]
        return min(verdicts, key=lambda verdict: verdict.score) if verdicts else reject("no answer")

    @abstractmethod
    def grade(self, answer: str, problem: Problem) -> Verdict:
        """Return the verdict on `answer`, a text without wrapping."""

    def answers(self, case: VerifierCase) -> tuple[str, ...]:
        """Return the distinct stated answers without wrapping, or () if the text states no valid answer."""
        if self.read == "answer" and case.answer and case.answer.strip() == case.problem.answer.strip():
            # Letter by letter the right answer: no prose to search, even where it looks like a denied statement.
            return (unwrap(case.answer),)
        text = without_thoughts(_fold(case.answer or "" if self.read == "answer" else case.text))
        if self.read == "last_line":
            text = next((line for line in reversed(text.splitlines()) if line.strip()), "")
        contents = find_statements(text, in_boxes=self.read == "boxed")
        answers = dict.fromkeys(map(_plain_answer, [text] if contents is None else contents))
        return tuple(answers) if "" not in answers and len(answers) <= _MAX_STATEMENTS else ()

    def phrase(self, answer: str) -> str:
        return f"\\boxed{{{answer}}}" if self.read == "boxed" else answer


def unwrap(text: str) -> str:
    """Return `text` without wrapping: dollar signs, bold face, "The answer is ...", a full stop."""
    text = _fold(text).strip()
    while True:
        inner = _BARE_COMMAND.sub("", _LEAD.sub("", _unwrap_once(text), count=1)).strip()
        if inner.endswith((".", "。")) and not inner.endswith(".."):
            inner = inner[:-1].rstrip()
        if inner == text:
            return text
        text = inner


def reject(why: str) -> Verdict:
    """Return the verdict on a wrong answer, with `why` as its reason."""
    return Verdict(0.0, why)


def quote(text: str) -> str:
    """Return the beginning of a model's text in quotes and without control characters, for the reason of a verdict."""
    return repr(text[:_MAX_QUOTED]) + "..." * (len(text) > _MAX_QUOTED)


def _fold(text: str) -> str:
    """Return `text` in composed characters (NFC), with full-width characters as ASCII."""
    return text if text.isascii() else unicodedata.normalize("NFC", text.translate(_FULL_WIDTH))


def _plain_answer(content: str) -> str:
    """Return the answer in a statement without wrapping, or "" if the statement is unreadable."""
    if len(content) > MAX_LENGTH:
        return ""
    inner = find_statements(content)  # "The answer is \boxed{5}" states its answer within
    if inner is None:
        return unwrap(content)
    return unwrap(inner[0]) if len(inner) == 1 else ""


def _unwrap_once(text: str) -> str:
    for opening, ending in _WRAPPERS:
        inner = text[len(opening) : -len(ending)]
        if len(text) > len(opening) + len(ending) and text == opening + inner + ending and opening not in inner:
            return inner.strip()
    command = _COMMAND.match(text)
    if command and closing_brace(text, command.end()) == len(text):
        return text[command.end() : -1].strip()
    return text
