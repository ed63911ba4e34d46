"""Extraction of the answer that a verifier judges. A text that names several answers, or denies one, has none."""

# ruff: noqa: RUF001 (signs of other scripts are what is looked for)

from __future__ import annotations

import re
import unicodedata
from abc import abstractmethod
from typing import Literal

from games.verifiers.statements import MAX_LENGTH, stated
from marl.answer_text import closing_brace, without_thoughts
from marl.protocols import VerifierConfig
from marl.types import Case, Problem, Verdict

_HEDGES = """
    not no nor neither never isnt cannot or but except unless if maybe perhaps possibly probably likely about around
    roughly wrong incorrect false unsure either between
"""
HEDGES = frozenset(_HEDGES.split())
"""Words that deny or qualify an answer."""
_MAX_STATEMENTS = 4
"""Spellings in which a text may state its answer."""
_MAX_QUOTED = 80
_FULL_WIDTH = {code: unicodedata.normalize("NFKC", chr(code)) for code in (*range(0xFF01, 0xFF5F), 0x3000)}
"""Letters, digits and signs as wide as a Chinese character."""
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
    """Place of the answer. `answer`: in what the role parsed; `boxed`: in boxes of the text; `last_line`: in the last
    line of the text. Where prose states its answer explicitly (a box, `<answer>`, "The answer is 5.", "#### 5"), that
    is the answer."""

    def __call__(self, case: Case) -> Verdict:
        """Accept if everything that the text states as its answer is right."""
        verdicts = [self.grade(answer, case.problem) for answer in self.answers(case)]
        return min(verdicts, key=lambda verdict: verdict.score) if verdicts else reject("no answer")

    @abstractmethod
    def grade(self, answer: str, problem: Problem) -> Verdict:
        """Return the verdict on an answer in its plainest form."""

    def answers(self, case: Case) -> tuple[str, ...]:
        """Return the different statements of the answer in their plainest form; () if there is none that stands."""
        if self.read == "answer" and case.answer and case.answer.strip() == case.problem.answer.strip():
            return (unwrap(case.answer),)
        text = without_thoughts(_fold(case.answer or "" if self.read == "answer" else case.text))
        if self.read == "last_line":
            text = next((line for line in reversed(text.splitlines()) if line.strip()), "")
        contents = stated(text, in_boxes=self.read == "boxed")
        answers = dict.fromkeys(map(_read, [text] if contents is None else contents))
        return tuple(answers) if "" not in answers and len(answers) <= _MAX_STATEMENTS else ()

    def phrase(self, answer: str) -> str:
        return f"\\boxed{{{answer}}}" if self.read == "boxed" else answer


def unwrap(text: str) -> str:
    """Return `text` without its wrapping: dollar signs, bold face, "The answer is ...", a full stop."""
    text = _fold(text).strip()
    while True:
        inner = _BARE_COMMAND.sub("", _LEAD.sub("", _unwrap_once(text), count=1)).strip()
        if inner.endswith((".", "。")) and not inner.endswith(".."):
            inner = inner[:-1].rstrip()
        if inner == text:
            return text
        text = inner


def reject(why: str) -> Verdict:
    """Return the verdict on a wrong answer."""
    return Verdict(0.0, why)


def quote(text: str) -> str:
    """Return the beginning of a model's text in quotes, for a reason: short, and with nothing that a terminal obeys."""
    return repr(text[:_MAX_QUOTED]) + "..." * (len(text) > _MAX_QUOTED)


def _fold(text: str) -> str:
    """Return the text in composed characters, with full-width ones as ASCII."""
    return text if text.isascii() else unicodedata.normalize("NFC", text.translate(_FULL_WIDTH))


def _read(content: str) -> str:
    """Return the plain answer in what a text states: the statement in it, if it makes one itself; "" if unreadable."""
    if len(content) > MAX_LENGTH:
        return ""
    inner = stated(content)
    return unwrap(content) if inner is None else unwrap(inner[0]) if len(inner) == 1 else ""


def _unwrap_once(text: str) -> str:
    for opening, ending in _WRAPPERS:
        inner = text[len(opening) : -len(ending)]
        if len(text) > len(opening) + len(ending) and text == opening + inner + ending and opening not in inner:
            return inner.strip()
    command = _COMMAND.match(text)
    if command and closing_brace(text, command.end()) == len(text):
        return text[command.end() : -1].strip()
    return text
