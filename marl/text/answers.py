"""Search for the answer in model-written text: in boxes, tags, brackets or code blocks, and not retracted later.

Roles parse moves and verifiers parse answers by these rules, so that both accept the same texts. The functions raise no
errors, and take time linear in the length of the text.
"""

# ruff: noqa: RUF001 (signs of other scripts are what is looked for)

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

_THOUGHT = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_BOX = re.compile(r"\\(?:boxed|fbox|framebox)(?:\s{0,8}+(?=\{)|[ \t]{1,8}+(?=[^\s${}])|(?=\\[A-Za-z]))")
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)
_UNBRACED = re.compile(r"[^\s${}]++(?:\{[^{}$\n]*\}[^\s${}]*+)*")
"""Content of a box without braces: `\\boxed 5` and `\\boxed\\frac{1}{2}`."""
_PART_BEFORE = re.compile(r"(?:[-+/^±×·÷−≠]|[\d)}][ \t]?\*|\\(?:times|cdot|div|pm|mp|neq?|not))[ \t]?$|[\d–]$")
_PART_AFTER = re.compile(
    r"[ \t$]?(?:\{|\^(?!\s?\{?\s?\\circ)|\d|\\(?:times|cdot|div|pm|mp)\b|[-+*/×·÷−][ \t]?[\d\\(]"
    r"|[ \t]?(?:and|,)[ \t$]*-?\d)"
)
"""Text after a box if the box is part of a larger formula or of a list; `_PART_BEFORE`: text before such a box."""
_BRACKETED = re.compile(r"\[([^\[\]\n]+)\]")
_FENCE = re.compile(r" {0,3}(`{3,}+)([^`]*+)")
_SPELLINGS_OF_LANGUAGES = {"python": ("python", "py", "python3")}
"""Language -> labels of fenced blocks that name the language."""
_COVER = "\0"
"""Character that hides the characters of answer spans while the text is searched for retractions."""
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
"""Text before an earlier answer that is no longer valid: "I first thought it was 5, but ...". """
_CLAUSE = r"(?:^|[^\w\s'’])[ \t]{0,8}(?:(?:oh|ah|uh|um|hm++|well|but|and|so|or|ok|okay)\b[ \t,.…]{0,8}){0,2}"
"""Beginning of a clause after punctuation, so that "no" in "there is no other" is no retraction."""
_WRONG = (
    r"(?:wrong|incorrect|mistaken|an?\s(?:mistake|error)"
    r"|not\s(?:it|right|correct|asked|the\s(?:right\s|correct\s)?answer))\b"
)
_RETRACTION = re.compile(
    rf"{_CLAUSE}(?:"
    r"(?:wait\b(?!\s(?:for|until|till|time))|no(?=\s*(?:[,.!;:…–—-]|$)|\s(?:wait|that|it|this|i|sorry)\b)"
    r"|nope|oops|whoops|sorry|apologies|actually|rather(?!\sthan)|hold\son|never\s?mind|correction"
    r"|i\s(?:mean|meant|was\swrong|misread|miscalculated|made\san?\s(?:mistake|error))|my\s(?:mistake|bad|error)"
    r"|let\sme\s(?:correct|fix|re(?:do|calculate|compute|count|consider|think|start)))\b"
    r"|等等|等一下|不对|更正|重新|不(?=\s*[,.，。!！]))"
    r"|\b(?:scratch|strike|ignore|disregard|forget)\s(?:that|this|it|the\s(?:above|previous|last|first))\b"
    r"|\bon\s(?:second|further)\sthoughts?\b|\bi\stake\s(?:that|this|it)\sback\b|错了|说错"
    # These patterns exclude the negation, which also denies the next mark: "Answer: 5. The answer is not [6]".
    r"|\banswer\s(?:is\s|was\s)?(?=(?:not|never)\b)|\banswer\s(?=(?:isn|wasn|can)['’]t\b)|答案(?=不)"
    rf"|\b(?:that|this|it|which|answer|result|box|attempt|try|guess|calculation)(?:['’]s|\s(?:is|was|seems|looks|must\sbe))\s(?:\w{{1,20}}\s){{0,2}}{_WRONG}"
    r"|\b(?:that|this|it)\s(?:is|was)n['’]t\s(?:it|right|correct)\b"
    rf"|{_COVER}[\s$)\]\\*,\"'`]{{0,8}}(?:(?:is|was|would\sbe|seems|looks)\s(?:\w{{1,20}}\s)?(?:{_WRONG}|not\b|false\b)"
    r"|(?:is|was)n['’]t\b)",
    re.I | re.M,
)
"""Retractions of an earlier answer, such as "Wait, ..." or "that is wrong"."""
_QUALIFIED = re.compile(
    r"\b(?:maybe|perhaps|possibly|probably|if|whether|suppose|assume|assuming|unless|doubt|(?:could|might|may)\sbe)"
    r"(?:\s{1,3}[\w$\\({]{1,20}){0,3}[\s$({\\*:,~]*$|\b(?:or|either)[\s$({\\*~]*$|(?:或|也许|可能是?|大约|大概|如果|假如|是否|难道|错误的?|[他她]的)[\s~]*$"
    r"|(?:\b(?:wrong|incorrect|false|previous|earlier|old|initial|first|other|his|her|their)|['’]s)\s{0,3}$",
    re.I,
)
"""Text before an answer that is qualified ("maybe 5"), or is not the author's own ("his 5")."""
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
    """Span of a text that markup, such as a box or a tag, presents as an answer."""

    start: int
    """Offset of the span's first character, markup included."""
    end: int
    """Offset after the span's last character, markup included."""
    content: str
    """Text inside of the markup, or "" if this text is no readable answer."""


def remove_thoughts_and_strip(text: str) -> str:
    """Return `text` stripped, without `<think>` blocks, closed or not, and the text before a lone `</think>`."""
    if "think>" not in text:
        return text.strip()
    # The blank keeps the texts before and after a removed block from joining to a new answer mark such as "Answer:".
    # `rpartition` drops thoughts that the chat template opened in the prompt: they end with a lone `</think>`.
    return _THOUGHT.sub(" ", text).rpartition("</think>")[2].strip()


def remove_thoughts(text: str) -> str:
    """Return `text` as other agents read it, without thoughts. A text that has none keeps its whitespace."""
    return remove_thoughts_and_strip(text) if "think>" in text else text


def drop_retracted_answers(text: str, answer_spans: Iterable[AnswerSpan]) -> list[AnswerSpan]:
    """Return the spans that are neither denied ("not [5]", "[5] is wrong") nor followed by a retraction ("Wait, ...").

    Words inside of a span retract nothing.
    """
    answer_spans = sorted(answer_spans)
    # An answer that is the full text, as of a tiny model, has no words around it.
    if not answer_spans or (len(answer_spans) == 1 and answer_spans[0][:2] == (0, len(text))):
        return answer_spans
    pieces, end = [], 0
    for mark in answer_spans:
        if mark.end > end:
            pieces += [text[end : mark.start], _COVER * (mark.end - max(mark.start, end))]
            end = mark.end
    pieces.append(text[end:])
    retraction_end = 0
    for retraction in _RETRACTION.finditer("".join(pieces), max(0, answer_spans[0].end - 1)):
        retraction_end = retraction.end()
    valid = list[AnswerSpan]()
    for mark in answer_spans:
        before = text[max(retraction_end, mark.start - 80) : mark.start]
        is_denied = _DENIED.search(before) or _THOUGHT_FIRST.search(before)
        if mark.start >= retraction_end and not is_denied:
            valid.append(mark)
    return valid


def drop_uncertain_answers(text: str, answer_spans: Iterable[AnswerSpan]) -> list[AnswerSpan]:
    """Return `answer_spans` without qualified answers ("maybe 5"). The content of doubted answers ("5?") becomes ""."""
    certain = list[AnswerSpan]()
    for mark in answer_spans:
        before = text[max(0, mark.start - 80) : mark.start]
        if _QUALIFIED.search(before):
            continue
        is_question = _QUESTION_AFTER.match(text, mark.end) and _QUESTION_BEFORE.search(before)
        is_doubted = is_question or _QUALIFIED_AFTER.match(text, mark.end)
        certain.append(mark._replace(content="") if is_doubted else mark)
    return certain


def offset_after_closing_brace(text: str, start_offset: int) -> int:
    """Return the offset after the `}` that closes the `{` before `start_offset`, or `len(text) + 1` if none does."""
    depth = 1
    for brace in _BRACES.finditer(text, start_offset):
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)
        if depth == 0:
            return brace.end()
    return len(text) + 1


def find_latex_boxes(text: str) -> list[AnswerSpan]:
    r"""Return the outermost boxes in LaTeX: `\boxed{5}`, `\fbox{5}` or `\boxed 5`.

    A box that is not closed, or is part of a larger formula (`-\boxed{5}`, `\boxed{5}^2`), has the content "".
    """
    marks: list[AnswerSpan] = []
    end = 0
    while box := _BOX.search(text, end):
        braced = text.startswith("{", box.end())
        content = _UNBRACED.match(text, box.end())
        end = offset_after_closing_brace(text, box.end() + 1) if braced else content.end() if content else box.end()
        inner = text[box.end() + braced : end - braced] if end <= len(text) else ""
        inner = inner.strip() if braced else inner.rstrip(".,;:")
        # The patterns see a bounded context, because many boxes would otherwise take quadratic time.
        in_formula = _PART_BEFORE.search(text[max(0, box.start() - 12) : box.start()]) or _PART_AFTER.match(text, end)
        marks.append(AnswerSpan(box.start(), min(end, len(text)), "" if in_formula else inner))
    return marks


def find_tagged_spans(text: str, tag_name: str) -> list[AnswerSpan] | None:
    """Return the spans `<name>...</name>`, or None if opening and closing tags do not alternate."""
    ends = list(re.finditer(rf"<(/?){re.escape(tag_name)}>", text))
    if [tag[1] for tag in ends] != ["", "/"] * (len(ends) // 2):
        return None
    marks = list[AnswerSpan]()
    for opening, closing in zip(ends[::2], ends[1::2], strict=True):
        marks.append(AnswerSpan(opening.start(), closing.end(), text[opening.end() : closing.start()]))
    return marks


def find_square_brackets(text: str) -> list[AnswerSpan]:
    """Return the spans of non-empty square brackets that hold no other brackets and end on the same line."""
    marks = list[AnswerSpan]()
    for match in _BRACKETED.finditer(text):
        if content := match[1].strip():
            marks.append(AnswerSpan(match.start(), match.end(), content))
    return marks


def last_code_block(text: str, language: str = "") -> str | None:
    """Return the code of the last fenced block that is not retracted, or None if there is none.

    The label of the block must be empty or `language` (for `python` also `py`, `python3`); if `language` is "", a block
    with any label counts.
    """
    blocks, candidates = list[AnswerSpan](), set[AnswerSpan]()
    fence, label, start, offset, lines = "", "", 0, 0, list[str]()
    for line in text.split("\n"):
        mark = _FENCE.fullmatch(line.rstrip())
        if mark and not fence:
            fence, label, start, lines = mark[1], mark[2].strip().lower(), offset, []
        elif mark and len(mark[1]) >= len(fence) and not mark[2]:
            # Blocks in other languages are collected, too, so that words in them do not retract an earlier answer.
            blocks.append(AnswerSpan(start, offset + len(line), "\n".join(lines)))
            if not language or label in ("", *_SPELLINGS_OF_LANGUAGES.get(language.lower(), (language.lower(),))):
                candidates.add(blocks[-1])
            fence = ""
        elif fence:
            lines.append(line)
        offset += len(line) + 1
    for block in reversed(drop_retracted_answers(text, blocks)):
        if block in candidates:
            return block.content.strip("\n").rstrip() or None
    return None
