"""What a verifier takes for the answer. Strict: a text that names several answers, or denies one, has none."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import Literal

from marl.types import Case, Verdict

Read = Literal["answer", "boxed", "last_line"]
"""`answer`: what the role read; `boxed`: the one \\boxed{...} of the text; `last_line`: of the text."""

LONGEST = 2000
"""Characters; what is longer is no answer."""
_HEDGES = """
    not no nor neither never isnt cannot or but except unless if maybe perhaps possibly probably likely about around
    roughly wrong incorrect false unsure either between
"""
HEDGES = frozenset(_HEDGES.split())
"""Words that turn an answer into something else."""

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


def answer_of(case: Case, read: Read) -> str:
    """The answer in its plainest form; "" if there is none, or more than one."""
    found = {
        "answer": lambda: case.answer or "",
        "boxed": lambda: _boxed(case.text),
        "last_line": lambda: _last(case.text),
    }
    said = found[read]()
    return plain(said) if len(said) <= LONGEST else ""


def phrased(answer: str, read: Read) -> str:
    """A text that says `answer` where it is looked for."""
    return f"\\boxed{{{answer}}}" if read == "boxed" else answer


def plain(text: str) -> str:
    """`text` without the wrapping: dollar signs, bold face, "The answer is ...", a full stop."""
    text = unicodedata.normalize("NFC", text).strip()
    while True:
        inner = _LEAD.sub("", _unwrapped(text), count=1).strip()
        if inner.endswith(".") and not inner.endswith(".."):
            inner = inner[:-1].rstrip()
        if inner == text:
            return text
        text = inner


def squashed(text: str) -> str:
    """`text` without spaces and dollar signs, to see whether two are the same formula letter by letter."""
    return re.sub(r"[\s$]|\\[,;! ]", "", text)


def copied(answer: str, question: str, gold: str) -> bool:
    """Whether an answer that is still to be worked out was taken from the question, such as 2+3 for 'What is 2+3?'."""
    said = squashed(answer)
    work = re.search(r".[-+*/^\u00d7÷·]|\\(?:d?frac|cdot|times|sqrt)", said)
    return bool(work) and said != squashed(gold) and said in squashed(question)


def refused(why: str) -> Verdict:
    """The answer is not right, and why."""
    return Verdict(0.0, why)


def _boxed(text: str) -> str:
    """What all boxes hold, if it is the same and nothing around them denies it."""
    held = set()
    for start, end, content in _boxes(text):
        if _DENIED.search(text[max(0, start - 80) : start]) or _TAKEN_BACK.search(text[end : end + 40]):
            return ""
        held.add(content.strip())
    return held.pop() if len(held) == 1 else ""


def _boxes(text: str) -> Iterator[tuple[int, int, str]]:
    """(start, end, content) of the outermost boxes; one that is never closed counts as empty."""
    at = 0
    while box := _BOX.search(text, at):
        at = closing(text, box.end())
        yield box.start(), at, text[box.end() : at - 1] if at <= len(text) else ""


def closing(text: str, start: int) -> int:
    """Where the brace that was opened just before `start` has been closed; past the end if it never is."""
    depth = 1
    for brace in re.compile(r"\\.|[{}]", re.S).finditer(text, start):
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)
        if depth == 0:
            return brace.end()
    return len(text) + 1


def _last(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "")


def _unwrapped(text: str) -> str:
    for opening, ending in _WRAPPERS:
        inner = text[len(opening) : -len(ending)]
        if len(text) > len(opening) + len(ending) and text == opening + inner + ending and opening not in inner:
            return inner.strip()
    for command in _COMMANDS:
        if text.startswith(command) and closing(text, len(command)) == len(text):
            return text[len(command) : -1].strip()
    return text
