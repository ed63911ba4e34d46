"""Extraction of the answer that a verifier judges. A text that names several answers, or denies one, has none."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import Literal

from marl.protocols import VerifierConfig
from marl.types import Case, Verdict

MAX_LENGTH = 2000
"""Characters of an answer; longer text is no answer."""
_HEDGES = """
    not no nor neither never isnt cannot or but except unless if maybe perhaps possibly probably likely about around
    roughly wrong incorrect false unsure either between
"""
HEDGES = frozenset(_HEDGES.split())
"""Words that deny or qualify an answer."""

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_DENIED = re.compile(
    r"(?:\b(?:not|never|neither|nor|except|cannot|without)|n['\u2019]t)(?:\s+[\w$\\({]+){0,3}[\s$({\\]*$", re.I
)
_TAKEN_BACK = re.compile(
    r"^[\s$)\\]*(?:(?:is|was|would be|seems|looks)\s+(?:\w+\s+)?(?:not|wrong|incorrect|false)\b|(?:is|was)n['\u2019]t)",
    re.I,
)
_LEAD = re.compile(
    r"^(?:\#+\s*)?(?:\*\*)?(?:(?:so|thus|hence|therefore)\b[,\s]*)?(?:(?:the|my|our)\s+)?(?:(?:correct|right|final)\s+)*"
    r"(?:(?:answer|result|solution)\s*(?:is\b|[:=])|it\s+is\b)\s*[:=]?\s*(?:\*\*)?\s*|^\#+\s*",
    re.I,
)
_WRAPPERS = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("**", "**"), ("`", "`"), ('"', '"'))
_COMMANDS = ("\\boxed{", "\\fbox{", "\\text{", "\\textbf{", "\\mathrm{", "\\mathbf{", "\\mbox{")


class AnswerVerifier(VerifierConfig):
    """Base of verifiers that compare an answer with the right one."""

    read: Literal["answer", "boxed", "last_line"] = "answer"
    """`answer`: as the role parsed it; `boxed`: the one \\boxed{...} of the text; `last_line`: of the text."""

    def answer(self, case: Case) -> str:
        """Return the answer in its plainest form; "" if there is none, or more than one."""
        if self.read == "answer":
            answer = case.answer or ""
        else:
            answer = _boxed(case.text) if self.read == "boxed" else _last_line(case.text)
        return unwrap(answer) if len(answer) <= MAX_LENGTH else ""

    def phrase(self, answer: str) -> str:
        return f"\\boxed{{{answer}}}" if self.read == "boxed" else answer


def unwrap(text: str) -> str:
    """Return `text` without its wrapping: dollar signs, bold face, "The answer is ...", a full stop."""
    text = unicodedata.normalize("NFC", text).strip()
    while True:
        inner = _LEAD.sub("", _unwrap_once(text), count=1).strip()
        if inner.endswith(".") and not inner.endswith(".."):
            inner = inner[:-1].rstrip()
        if inner == text:
            return text
        text = inner


def strip_spaces(text: str) -> str:
    """Return `text` without spaces and dollar signs, to compare formulas letter by letter."""
    return re.sub(r"[\s$]|\\[,;! ]", "", text)


def is_copied(answer: str, question: str, gold: str) -> bool:
    """Return True if an unevaluated answer was copied from the question, such as 2+3 for 'What is 2+3?'."""
    formula = strip_spaces(answer)
    unevaluated = re.search(r".[-+*/^\u00d7÷·]|\\(?:d?frac|cdot|times|sqrt)", formula)
    return bool(unevaluated) and formula != strip_spaces(gold) and formula in strip_spaces(question)


def reject(why: str) -> Verdict:
    """Return the verdict on a wrong answer."""
    return Verdict(0.0, why)


def closing_brace(text: str, start: int) -> int:
    """Return the end of the brace that was opened just before `start`; past the end of the text if it is not closed."""
    depth = 1
    for brace in re.compile(r"\\.|[{}]", re.S).finditer(text, start):
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)
        if depth == 0:
            return brace.end()
    return len(text) + 1


def _boxed(text: str) -> str:
    """Return the content of all boxes, if it is the same and nothing around them denies it; else ""."""
    contents = set()
    for start, end, content in _boxes(text):
        if _DENIED.search(text[max(0, start - 80) : start]) or _TAKEN_BACK.search(text[end : end + 40]):
            return ""
        contents.add(content.strip())
    return contents.pop() if len(contents) == 1 else ""


def _boxes(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield (start, end, content) of the outermost boxes; one that is never closed counts as empty."""
    end = 0
    while box := _BOX.search(text, end):
        end = closing_brace(text, box.end())
        yield box.start(), end, text[box.end() : end - 1] if end <= len(text) else ""


def _last_line(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "")


def _unwrap_once(text: str) -> str:
    for opening, ending in _WRAPPERS:
        inner = text[len(opening) : -len(ending)]
        if len(text) > len(opening) + len(ending) and text == opening + inner + ending and opening not in inner:
            return inner.strip()
    for command in _COMMANDS:
        if text.startswith(command) and closing_brace(text, len(command)) == len(text):
            return text[len(command) : -1].strip()
    return text
