"""Location of the answer in model-written text: in boxes, tags, brackets or code blocks, and not retracted later.

Roles parse moves and verifiers parse answers by these rules, so that both accept the same texts. The functions raise no
errors, and take time linear in the length of the text.
"""

# ruff: noqa: RUF001 (signs of other scripts are what is looked for)

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

_THOUGHT = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_BOX = re.compile(r"\\(?:boxed|fbox|framebox)(?:\s{0,8}+(?=\{)|[ \t]{1,8}+(?=[^\s${}])|(?=\\[A-Za-z]))")
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)
_UNBRACED = re.compile(r"[^\s${}]++(?:\{[^{}$\n]*\}[^\s${}]*+)*")
"""Content of `\\boxed 5` and `\\boxed\\frac{1}{2}`."""
_PART_BEFORE = re.compile(r"(?:[-+/^±×·÷−≠]|[\d)}][ \t]?\*|\\(?:times|cdot|div|pm|mp|neq?|not))[ \t]?$|[\d–]$")
_PART_AFTER = re.compile(
    r"[ \t$]?(?:\{|\^(?!\s?\{?\s?\\circ)|\d|\\(?:times|cdot|div|pm|mp)\b|[-+*/×·÷−][ \t]?[\d\\(]"
    r"|[ \t]?(?:and|,)[ \t$]*-?\d)"
)
"""Context of a box that is part of a larger formula, or of a list."""
_BRACKETED = re.compile(r"\[([^\[\]\n]+)\]")
_FENCE = re.compile(r" {0,3}(`{3,}+)([^`]*+)")
_COVER = "\0"
"""Character by which marks are masked before the search for retractions."""
_NEGATION = r"(?:not|never(?!\smind)|neither|nor|except|cannot|without)\b|\w{1,20}n['’]t\b"
_DENIED = re.compile(
    rf"(?:\b(?:{_NEGATION})|不是?|不选|并非|未必|以为)(?:\s{{1,9}}[\w$\\({{]{{1,20}}){{0,3}}[\s$({{\\*~]*$", re.I
)
_THOUGHT_FIRST = re.compile(
    r"\b(?:(?:I|we)\s(?:had\s)?(?:(?:at\s)?first|initially|originally)|(?:(?:at\s)?first|initially|originally),?\s(?:I|we))"
    r"\s(?:had\s)?(?:thought|got|had|found|guessed|believed|assumed|wrote|said|answered|computed|obtained)\b"
    r"(?:\s{1,9}[\w$\\({=]{1,20}){0,8}[\s$({\\*:~]*$",
    re.I,
)
"""Context before an earlier answer that is no longer valid: "I first thought it was 5, but ...". """
_CLAUSE = r"(?:^|[^\w\s'’])[ \t]{0,8}(?:(?:oh|ah|uh|um|hm++|well|but|and|so|or|ok|okay)\b[ \t,.…]{0,8}){0,2}"
"""Beginning of a clause after punctuation, so that "no" in "there is no other" is no retraction."""
_WRONG = (
    r"(?:wrong|incorrect|mistaken|an?\s(?:mistake|error)|not\s(?:it|right|correct|the\s(?:right\s|correct\s)?answer))\b"
)
_RETRACTION = re.compile(
    rf"{_CLAUSE}(?:"
    r"(?:wait\b(?!\s(?:for|until|till|time))|no(?=\s*(?:[,.!;:…–—-]|$)|\s(?:wait|that|it|this|i|sorry)\b)"
    r"|nope|oops|whoops|sorry|apologies|actually|rather(?!\sthan)|hold\son|never\s?mind|correction"
    r"|i\s(?:mean|meant|was\swrong|misread|miscalculated|made\san?\s(?:mistake|error))|my\s(?:mistake|bad|error)"
    r"|let\sme\s(?:correct|fix|re(?:do|calculate|compute|consider|think|start)))\b"
    r"|等等|等一下|不对|更正|重新|不(?=\s*[,.，。!！]))"
    r"|\b(?:scratch|strike|ignore|disregard|forget)\s(?:that|this|it|the\s(?:above|previous|last|first))\b"
    r"|\bon\s(?:second|further)\sthoughts?\b|\bi\stake\s(?:that|this|it)\sback\b|错了|说错"
    # These end before the negation, which denies what stands behind it, too: "Answer: 5. The answer is not [6]".
    r"|\banswer\s(?:is\s|was\s)?(?=(?:not|never)\b)|\banswer\s(?=(?:isn|wasn|can)['’]t\b)|答案(?=不)"
    rf"|\b(?:that|this|it|which|answer|result)(?:['’]s|\s(?:is|was|seems|looks|must\sbe))\s(?:\w{{1,20}}\s){{0,2}}{_WRONG}"
    r"|\b(?:that|this|it)\s(?:is|was)n['’]t\s(?:it|right|correct)\b"
    rf"|{_COVER}[\s$)\]\\*,\"'`]{{0,8}}(?:(?:is|was|would\sbe|seems|looks)\s(?:\w{{1,20}}\s)?(?:{_WRONG}|not\b|false\b)"
    r"|(?:is|was)n['’]t\b)",
    re.I | re.M,
)
"""Retractions of an earlier answer: at the beginning of a clause, anywhere, and directly after a mark."""
_QUALIFIED = re.compile(
    r"\b(?:maybe|perhaps|possibly|probably|if|whether|suppose|assume|assuming|unless|doubt|(?:could|might|may)\sbe)"
    r"(?:\s{1,3}[\w$\\({]{1,20}){0,3}[\s$({\\*:,~]*$|\b(?:or|either)[\s$({\\*~]*$|(?:或|也许|可能是?|大约|大概|如果|假如|是否|难道|错误的?|[他她]的)[\s~]*$"
    r"|(?:\b(?:wrong|incorrect|false|previous|earlier|old|initial|first|other|his|her|their)|['’]s)\s{0,3}$",
    re.I,
)
"""Context before an answer that is qualified, or is not the author's own."""
_QUALIFIED_AFTER = re.compile(
    r"[\s$)\]\\*.,;!\"'(–—-]{0,8}(?:(?:or|maybe|perhaps|possibly|probably|alternatively|unless)\b|或)|[\s$)\]\\*]{0,4}\?",
    re.I,
)
_QUESTION_BEFORE = re.compile(
    r"(?:^|[.!?:,]\s{1,3})(?:(?:so|but|and|or|then|hmm)\b,?\s)?"
    r"(?:is|are|was|were|can|could|may|might|must|will|would|should|do|does|did)\s(?:[^.!?\n]|\.(?=\d)){0,70}$",
    re.I | re.M,
)
_QUESTION_AFTER = re.compile(r"(?:[^.!?\n]|\.(?=\d)){0,70}\?")
"""End of a question whose beginning matches `_QUESTION_BEFORE`: "Is it true that [5] is right?"."""


class AnswerSpan(NamedTuple):
    """Span of a text that is marked as an answer, such as a box or a tag, with the content inside of the mark."""

    start: int
    end: int
    content: str


def without_thoughts(text: str) -> str:
    """Return the text without `<think>` blocks, closed or not, and without everything before a lone `</think>`."""
    if "think>" not in text:
        return text.strip()
    # The blank keeps the texts before and after a block from forming a new mark. A lone `</think>` comes from chat
    # templates that open the block in the prompt.
    return _THOUGHT.sub(" ", text).rpartition("</think>")[2].strip()


def public_text(text: str) -> str:
    """Return the text for other agents if thoughts are hidden. A text without thoughts keeps its whitespace."""
    return without_thoughts(text) if "think>" in text else text


def drop_retracted(text: str, marks: Iterable[AnswerSpan]) -> list[AnswerSpan]:
    """Return the marks neither denied ("not [5]", "[5] is wrong") nor followed by a retraction ("Wait, ...").

    Words inside of a mark retract nothing.
    """
    marks = sorted(marks)
    retraction_end = _end_of_retraction(text, marks) if marks else 0
    return [mark for mark in marks if mark.start >= retraction_end and not _is_denied(text, mark.start, retraction_end)]


def drop_uncertain(text: str, marks: Iterable[AnswerSpan]) -> list[AnswerSpan]:
    """Return the marks without qualified ones ("maybe 5"). The content of doubted marks ("5?") is replaced by ""."""
    unqualified = [mark for mark in marks if not _QUALIFIED.search(text[max(0, mark.start - 80) : mark.start])]
    return [mark._replace(content="") if _is_doubted(text, mark) else mark for mark in unqualified]


def _is_doubted(text: str, mark: AnswerSpan) -> bool:
    before = text[max(0, mark.start - 80) : mark.start]
    question = _QUESTION_AFTER.match(text, mark.end) and _QUESTION_BEFORE.search(before)
    return bool(question or _QUALIFIED_AFTER.match(text, mark.end))


def _end_of_retraction(text: str, marks: Sequence[AnswerSpan]) -> int:
    """Return the end of the last retraction after the first mark, outside of all marks; 0 if there is none."""
    pieces, end = [], 0
    for mark in marks:
        if mark.end > end:
            pieces += [text[end : mark.start], _COVER * (mark.end - max(mark.start, end))]
            end = mark.end
    pieces.append(text[end:])
    retractions = _RETRACTION.finditer("".join(pieces), max(0, marks[0].end - 1))
    return max((retraction.end() for retraction in retractions), default=0)


def _is_denied(text: str, start: int, after: int = 0) -> bool:
    """Return True if the words between `after` and `start` deny the answer at `start`."""
    before = text[max(after, start - 80) : start]
    return bool(_DENIED.search(before) or _THOUGHT_FIRST.search(before))


def closing_brace(text: str, start: int) -> int:
    """Return the offset after the brace that closes the one before `start`, or `len(text) + 1` if none does."""
    depth = 1
    for brace in _BRACES.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)
        if depth == 0:
            return brace.end()
    return len(text) + 1


def find_boxes(text: str) -> list[AnswerSpan]:
    r"""Return the outermost boxes (`\boxed{5}`, `\fbox{5}`, `\boxed 5`).

    A box that is not closed, or is part of a larger formula (`-\boxed{5}`, `\boxed{5}^2`), has the content "".
    """
    marks: list[AnswerSpan] = []
    end = 0
    while box := _BOX.search(text, end):
        braced = text.startswith("{", box.end())
        content = _UNBRACED.match(text, box.end())
        end = closing_brace(text, box.end() + 1) if braced else content.end() if content else box.end()
        inner = text[box.end() + braced : end - braced] if end <= len(text) else ""
        inner = inner.strip() if braced else inner.rstrip(".,;:")
        # The patterns look back over a bounded context, so that many boxes do not take quadratic time.
        in_formula = _PART_BEFORE.search(text[max(0, box.start() - 12) : box.start()]) or _PART_AFTER.match(text, end)
        marks.append(AnswerSpan(box.start(), min(end, len(text)), "" if in_formula else inner))
    return marks


def tags(text: str, name: str) -> list[AnswerSpan] | None:
    """Return the spans `<name>...</name>`, or None if opening and closing tags do not alternate."""
    ends = list(re.finditer(rf"<(/?){re.escape(name)}>", text))
    if [tag[1] for tag in ends] != ["", "/"] * (len(ends) // 2):
        return None
    pairs = zip(ends[::2], ends[1::2], strict=True)
    return [AnswerSpan(first.start(), last.end(), text[first.end() : last.start()]) for first, last in pairs]


def brackets(text: str) -> list[AnswerSpan]:
    """Return the innermost, non-empty square brackets that end on the line of their beginning."""
    marks = (AnswerSpan(match.start(), match.end(), match[1].strip()) for match in _BRACKETED.finditer(text))
    return [mark for mark in marks if mark.content]


def code_blocks(text: str) -> Iterator[tuple[str, AnswerSpan]]:
    """Yield (label, block) for each code block between lines of backticks; the label names the language."""
    fence, label, start, offset, lines = "", "", 0, 0, list[str]()
    for line in text.split("\n"):
        mark = _FENCE.fullmatch(line.rstrip())
        if mark and not fence:
            fence, label, start, lines = mark[1], mark[2].strip().lower(), offset, []
        elif mark and len(mark[1]) >= len(fence) and not mark[2]:
            yield label, AnswerSpan(start, offset + len(line), "\n".join(lines))
            fence = ""
        elif fence:
            lines.append(line)
        offset += len(line) + 1


def last_code_block(text: str, language: str = "") -> str | None:
    """Return the last code block that is not retracted and has the label `language` or none; with "", any label."""
    blocks = list(code_blocks(text))
    candidates = {mark for label, mark in blocks if not language or label in ("", language.lower())}
    # Blocks in other languages count as marks, too, so that words inside of them retract nothing.
    valid = [mark for mark in drop_retracted(text, (mark for _, mark in blocks)) if mark in candidates]
    return (valid[-1].content.strip("\n").rstrip() or None) if valid else None
