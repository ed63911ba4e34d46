"""Extraction of the answer for a verifier. A text with several different answers, or a denied one, has no answer."""

# ruff: noqa: RUF001 (the patterns search for signs of other scripts)

from __future__ import annotations

import re
import unicodedata
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Literal

from marl.core.types import Problem, Verdict, VerifierCase
from marl.games.verifiers.answer_statements import MAX_LENGTH, OTHER_LANGUAGES, find_statements
from marl.protocols import VerifierConfig
from marl.text.answers import offset_after_closing_brace, remove_thoughts_and_strip

_HEDGES = """
    not no nor neither never isnt cannot or but except unless if maybe perhaps possibly probably likely about around
    roughly wrong incorrect false unsure either between
"""
HEDGES = frozenset(_HEDGES.split())
"""Words that deny or qualify an answer, such as "not" and "maybe"."""
_MAX_STATEMENTS = 4
"""Maximum number of different spellings in which a text may state its answer; a text with more has no answer."""
_MAX_QUOTED = 80
"""Maximum length of a quotation in the reason of a verdict, in characters."""
_FULL_WIDTH = {code: unicodedata.normalize("NFKC", chr(code)) for code in (*range(0xFF01, 0xFF5F), 0x3000)}
"""Plain character of each full-width code point, for `str.translate`."""
_OTHER_DIGIT = re.compile(r"(?![0-9])\d")
_STRUCK_OUT = re.compile(r"~~[^~\n]{1,200}~~")
"""Text that Markdown shows as struck out, which its author has retracted."""
_WORDS_BEFORE_ANSWER = re.compile(
    r"^(?:\*\*)?(?:(?:so|thus|hence|therefore)\b[,\s]*)?(?:(?:the|my|our)\s+)?(?:(?:correct|right|final)\s+)*"
    r"(?:(?:answer|result|solution)\s*(?:is\b|[:=])|it\s+is\b)\s*[:=]?\s*(?:\*\*)?\s*|^\#{2,6}\s+|^答案(?:是|为|:)\s*"
    rf"|^(?:\*\*)?(?:{OTHER_LANGUAGES})\s*:?\s*(?:\*\*)?\s*",
    re.I,
)
_ENDINGS = re.compile(
    r"\s*(?:[∎■□▪✓✔✅]|\\(?:blacksquare|square|qed)\b|\$\s*\\(?:blacksquare|square|qed)\s*\$|(?:です|[とに]なります|である|입니다|이다|\sहै)(?=[。.।]?$))\s*$"
)
"""Signs of the end of a proof, and the Japanese copula after an answer."""
_REMARK = re.compile(r"(.{1,200}?),?\s(?:which|what)\s(?:is|equals|makes|means|gives)\s([^,;\n]{1,200})$", re.I)
"""Answer with a remark on it: "42, which is 2 more than 40"."""
_PLAIN_REMARK = re.compile(
    r"(.{1,120}?)(?:,?\s\(?(?:q\.?\s?e\.?\s?d\b\.?|w\.z\.b\.w\.)\)?"
    r"|,\s(?:because|since|as\s(?:required|desired|claimed|expected)|by\sthe|by\sdefinition|of\scourse|I\sam\ssure)\b[^;\n]{0,200}"
    r"|\s\((?:because|since|as|each|every|by|from|i\.e\.)\s[^()\n]{1,80}\)|\s[—–]\s(?!(?:or|and)\b)[^\W\d_]{3}[^;\n]{1,200})",
    re.I,
)
"""Answer with a reason, "QED", or a remark after a dash."""
_SIGN_OF_REMARK = re.compile("[,(\u2013\u2014]|q.?e.?d", re.I)
_WRAPPERS = (
    ("```", "```"),
    *(("$$", "$$"), ("$", "$"), ("*", "*"), ("\\(", "\\)"), ("\\[", "\\]"), ("**", "**"), ("__", "__"), ("`", "`")),
    *(('"', '"'), ("'", "'"), ("“", "”"), ("‘", "’")),
)
_PLAIN_NUMBER = re.compile(r"-?[0-9](?:[0-9.,/]*[0-9])?")
"""Number without any decoration that `unwrap` could remove."""
_TAGS = re.compile(r"</?(?:b|i|u|em|strong|code|p|span|mark)>", re.I)
_LANGUAGE = re.compile(r"^[a-z0-9]{1,12}\n")
"""Label of a fenced block."""
_LEADING_MARKS = re.compile(
    r"^(?:=\s+(?=[^=\s])|[*•]\s+(?=[^*\s])|(?:[⇒→∴]|->|\\(?:therefore|Rightarrow|implies|because)\b)\s*)"
)
"""Signs before an answer: "= 5", a bullet, an arrow."""
_COMMAND = re.compile(r"\\(?:boxed|fbox|framebox|text(?:bf|it|rm|sf|normal)?|math(?:rm|bf|sf|it)|[mh]box|emph)\s*\{")
_BARE_COMMAND = re.compile(r"^\\(?:(?:boxed|fbox)\s+(?=[^\s{])|displaystyle\b\s*)")


class AnswerVerifier(VerifierConfig):
    """Base of verifiers that compare an answer with the right one."""

    read: Literal["answer", "boxed", "last_line"] = "answer"
    """Source of the answer. `answer`: the answer parsed by the role; `boxed`: the boxes of the text; `last_line`: the
    last line of the text. If the source contains an explicit statement (a box, `<answer>`, "The answer is 5.",
    "#### 5"), only the statement counts."""

    def __call__(self, case: VerifierCase) -> Verdict:
        """Return the worst verdict on the answers stated in the text: all of them must be right."""
        answers = self.answers(case)
        verdicts = [self.grade(answer, case.problem) for answer in answers]
        verdict = min(verdicts, key=lambda verdict: verdict.score) if verdicts else reject("no answer")
        if verdict.score == 1 or self.read != "answer":
            return verdict
        # A sentence may be read in other ways, too, and such a reading counts only if it is right.
        for reading in self.alternative_answers(self._graded_text(case), answers, case.problem):
            if self.grade(unwrap(reading), case.problem).score == 1:
                return Verdict(1.0)
        return verdict

    def alternative_answers(self, text: str, answers: Sequence[str], problem: Problem) -> Iterable[str]:
        """Return further answers that `text` may state if none of `answers`, read by the usual rules, is right."""
        return ()

    @abstractmethod
    def grade(self, answer: str, problem: Problem) -> Verdict:
        """Return the verdict on `answer`, from which `unwrap` has removed dollar signs, bold face and the like."""

    def answers(self, case: VerifierCase) -> tuple[str, ...]:
        """Return the distinct stated answers, after `unwrap`, or () if the text states no valid answer."""
        if self.read == "answer" and case.answer and case.answer.strip() == case.problem.answer.strip():
            # A text equal to the right answer counts as the answer, even if it looks like a denied statement.
            return (unwrap(case.answer),)
        text = self._graded_text(case)
        if self.read == "last_line":
            text = next((line for line in reversed(text.splitlines()) if line.strip()), "")
        contents = find_statements(text, in_boxes=self.read == "boxed")
        answers = dict[str, None]()
        for content in [text] if contents is None else contents:
            # A statement may contain another: "The answer is \boxed{5}". An unreadable statement gives the answer "".
            inner = find_statements(content) if len(content) <= MAX_LENGTH else []
            answer = content if inner is None else inner[0] if len(inner) == 1 else ""
            answers[unwrap(answer)] = None
        return tuple(answers) if "" not in answers and len(answers) <= _MAX_STATEMENTS else ()

    def _graded_text(self, case: VerifierCase) -> str:
        """Return the text from which the answer is read, without thoughts and struck-out words."""
        text = remove_thoughts_and_strip(
            _with_plain_characters((case.answer if self.read == "answer" else case.text) or "")
        )
        return _STRUCK_OUT.sub(" ", text).strip() if "~~" in text else text

    def phrase(self, answer: str) -> str:
        return f"\\boxed{{{answer}}}" if self.read == "boxed" else answer


@lru_cache(2048)
def unwrap(text: str) -> str:
    r"""Return `text` without decoration: dollar signs, \boxed{}, bold face, "The answer is ...", a full stop."""
    text = _with_plain_characters(text).strip()
    if _PLAIN_NUMBER.fullmatch(text):
        return text
    while True:
        inner = text
        for opening, ending in _WRAPPERS:
            if not text.startswith(opening):
                continue
            wrapped = text[len(opening) : -len(ending)]
            if len(text) > len(opening) + len(ending) and text.endswith(ending) and opening not in wrapped:
                inner = _LANGUAGE.sub("", wrapped).strip() if opening == "```" else wrapped.strip()
                break
        else:
            command = _COMMAND.match(text)
            if command and offset_after_closing_brace(text, command.end()) == len(text):
                inner = text[command.end() : -1].strip()
        inner = _BARE_COMMAND.sub("", _WORDS_BEFORE_ANSWER.sub("", inner, count=1)).strip()
        inner = _LEADING_MARKS.sub("", _TAGS.sub("", inner))
        # Every ending has a sign of another script or a backslash.
        inner = _without_remark(inner if inner.isascii() and "\\" not in inner else _ENDINGS.sub("", inner))
        if inner.endswith((".", "。", "।")) and not inner.endswith(".."):
            inner = inner[:-1].rstrip()
        if inner == text:
            return text
        text = inner


def _without_remark(text: str) -> str:
    """Return `text` without a remark that denies nothing, such as the second half of "42, which is 2 more than 40"."""
    if " " not in text:
        return text
    remark = _REMARK.fullmatch(text) or (_SIGN_OF_REMARK.search(text) and _PLAIN_REMARK.fullmatch(text))
    if not remark or not HEDGES.isdisjoint(re.findall(r"[a-z]+", text.lower())):
        return text
    return remark[1].rstrip()


def reject(reason: str) -> Verdict:
    """Return the verdict on a wrong answer, a score of 0."""
    return Verdict(0.0, reason)


def quote(text: str) -> str:
    """Return the beginning of a model's text in quotes and without control characters, for the reason of a verdict."""
    return repr(text[:_MAX_QUOTED]) + "..." * (len(text) > _MAX_QUOTED)


def _with_plain_characters(text: str) -> str:
    """Return `text` in composed characters (NFC), with digits of all scripts and full-width characters as ASCII."""
    if text.isascii():
        return text
    text = _OTHER_DIGIT.sub(lambda digit: str(unicodedata.digit(digit[0])), text.translate(_FULL_WIDTH))
    return unicodedata.normalize("NFC", text)
