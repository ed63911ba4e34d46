"""Separation of a judge's own verdict from verdicts that it merely quotes.

A solver can write its judge's format, and a judge often quotes the solver. A mark is a tagged, boxed or bracketed text,
or a JSON object. It is quoted if it stands in a fenced block or in a quoted line (`> ...`), or if the judge has read
the same mark in its prompt. A judge may state a verdict in the same words that it has read, so one such mark counts:
the mark that ends the answer and begins a sentence, unless the words before it are those of the prompt, too.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence

from marl.text.answers import AnswerSpan, find_latex_boxes, find_square_brackets, remove_thoughts_and_strip
from marl.text.json_text import find_json_spans

AnswerMarkFinder = Callable[[str], list[AnswerSpan]]
"""Function that returns the marks of one answer format in a text."""
_FENCE = re.compile(r"`{3,}+|^[ \t]*+~{3,}+", re.MULTILINE)
_QUOTED_LINE = re.compile(r"^[ \t]*+(?:(?:[-*+]|\d{1,3}[.)])[ \t]++)?>.*+$", re.MULTILINE)
_FENCED_ANSWER = re.compile(r"\s*+`{3,}+(?:json)?+[ \t]*+\n([^`]*+)`{3,}+\s*+", re.IGNORECASE)
_OWN_INTRODUCTION = re.compile(
    r"(?:^|[.!?。]|(?<![:\ufffc])\n)[\s*_]{0,8}(?:(?:so|thus|hence|therefore|overall|finally|conclusion)[,:]?[\s*_]{1,4})?"
    r"(?:(?:my|final|overall)\s){0,3}(?:verdict|score|rating|judge?ment|decision)?(?:\sis)?[\s*_:]{0,6}$",
    re.IGNORECASE,
)
"""Text before a verdict that is stated and not attributed to somebody else, as in "Wrong. My verdict: "."""
_END_OF_ANSWER = re.compile(r"[\s.*_$]*+$")
_BLANK_LINES = re.compile(r"\s*\n\s*")
_OUTER_FENCE = re.compile(r"(`{3,}+)\n(.*)\n\1", re.DOTALL)
_STRUCTURE = re.compile(r"`{3}|\{|\\\w*box|^[ \t]*+(?:~{3}|>)|</?(?:think|tool_call)>", re.MULTILINE)
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060-\u2064\ufeff]")
_LOOKALIKES = str.maketrans("\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0455\u0456\u0501", "aeopcyxsid")
"""Cyrillic letter -> Latin letter of the same shape."""
_REMOVED_BLOCK = "\ufffc"
"""Character in place of a quoted passage, and of a fenced block if fences may be quoted."""
_CONTEXT_WORDS = 2
"""Number of words before a mark by which a quoted passage is recognised."""


def without_invisible_characters(text: str) -> str:
    """Return `text` without characters that have no width, by which a copied mark would differ from its original."""
    return text if text.isascii() else _INVISIBLE.sub("", text)


def with_plain_letters(text: str) -> str:
    """Return `text` in lower case, in plain characters for full-width and Cyrillic ones that look like them."""
    plain = unicodedata.normalize("NFKC", without_invisible_characters(text))
    return plain.translate(_LOOKALIKES).lower()


def answer_mark_finder(answer_format: str, tag: str) -> AnswerMarkFinder | None:
    """Return the function that finds the marks of an answer format, or None for a format without marks."""
    finders: dict[str, AnswerMarkFinder] = {
        "boxed": find_latex_boxes,
        "bracket": find_square_brackets,
        "json": find_json_spans,
        "tag": lambda text: _find_innermost_tagged_spans(text, tag),
    }
    return finders.get(answer_format)


def remove_thoughts_and_quotations(
    text: str,
    find_answer_marks: AnswerMarkFinder | None,
    prompt_passages: Sequence[str] = (),
    is_verdict: Callable[[str], bool] = bool,
) -> str:
    """Return a judge's answer without thoughts, fenced blocks, quoted lines and quoted marks.

    Args:
        text: the full answer.
        find_answer_marks: function that finds the verdicts of the judge's format, or None for a format without marks.
        prompt_passages: texts of other agents in the judge's prompt.
        is_verdict: function that returns True if the content of a mark is a verdict. If the prompt has marks, all other
            marks count as quoted, such as a tag without its counterpart.
    """
    # The outer fences belong to the prompt and not to the passage, so they are removed.
    prompt_passages = [_OUTER_FENCE.sub(r"\2", p) if _OUTER_FENCE.fullmatch(p) else p for p in prompt_passages]
    text = _without_whole_passages(text, prompt_passages, find_answer_marks)
    text = _without_fenced_blocks(_without_thoughts_of_judge(text, prompt_passages), prompt_passages)
    text = _QUOTED_LINE.sub("", text)
    if find_answer_marks is not None:
        text = _without_quoted_marks(text, find_answer_marks, prompt_passages, is_verdict)
    return text.replace(_REMOVED_BLOCK, " ")


def _without_thoughts_of_judge(text: str, prompt_passages: Sequence[str]) -> str:
    """Return `text` without the judge's thoughts. If the prompt has marks of thoughts, those in `text` are quotes,
    except for thoughts at the beginning."""
    if not any("think>" in passage for passage in prompt_passages):
        return remove_thoughts_and_strip(text)
    text = text.strip()
    if text.startswith("<think>"):
        text = text.partition("</think>")[2]
    return re.sub("</?think>", " ", text)


def _without_quoted_marks(
    text: str, find_answer_marks: AnswerMarkFinder, prompt_passages: Sequence[str], is_verdict: Callable[[str], bool]
) -> str:
    """Return `text` without the marks that are also in `prompt_passages`, except for the judge's own statement."""
    contexts: dict[str, set[tuple[str, ...]]] = {}
    for passage in prompt_passages:
        for mark in find_answer_marks(passage):
            contexts.setdefault(_normalized_mark(passage, mark), set()).add(_words_before_mark(passage, mark))
    if not contexts:
        return text
    marks = find_answer_marks(text)
    quoted = [mark for mark in marks if _normalized_mark(text, mark) in contexts or not is_verdict(mark.content)]
    if quoted and len(quoted) == len(marks) and _is_final_verdict_of_judge(text, quoted[-1], contexts):
        quoted.pop()  # a mark that repeats the prompt may still be the judge's own verdict
    pieces, end = list[str](), 0
    for mark in quoted:
        pieces.append(text[end : mark.start])
        end = mark.end
    # Pieces are joined by a blank, so that the texts around a removed mark form no new mark.
    return " ".join([*pieces, text[end:]])


def unwrap_fenced_answer(text: str) -> str | None:
    """Return the content of an answer that is one fenced block (with the label `json` or none) and nothing else."""
    block = _FENCED_ANSWER.fullmatch(remove_thoughts_and_strip(text))
    return block[1] if block else None


def _without_whole_passages(
    text: str, prompt_passages: Sequence[str], find_answer_marks: AnswerMarkFinder | None
) -> str:
    """Return `text` without verbatim copies of passages that have marks, fences, braces or quoted lines beside words.

    A passage that is nothing but a mark stays, because a judge may state the same verdict.
    """
    for passage in sorted({passage.strip() for passage in prompt_passages}, key=len, reverse=True):
        marks = find_answer_marks(passage) if find_answer_marks else []
        ends, starts = [0, *(mark.end for mark in marks)], [*(mark.start for mark in marks), len(passage)]
        words = "".join(passage[end:start] for end, start in zip(ends, starts, strict=True))
        # If the answer's format has no brackets, box or tags, a passage of several lines counts as structured.
        has_structure = _STRUCTURE.search(passage) or (find_answer_marks is None and "\n" in passage)
        if re.search(r"\w", words) and (marks or has_structure):
            text = text.replace(passage, _REMOVED_BLOCK)
    return text


def _without_fenced_blocks(text: str, prompt_passages: Iterable[str]) -> str:
    """Return `text` without fenced blocks, whose fences are at least three backticks or tildes.

    A block that is not closed ends with the text. If the prompt has fences, the fence may be quoted itself, and then it
    is ignored, because otherwise a solver could hide its judge's verdict by a single fence.
    """
    kept, end = list[str](), 0
    fences_are_quoted = any(map(_FENCE.search, prompt_passages))
    while opening := _FENCE.search(text, end):
        fence = opening[0].strip()
        kept.append(text[end : opening.start()])
        end = opening.end()
        closing = next((run for run in _FENCE.finditer(text, end) if run[0].strip().startswith(fence)), None)
        if closing or not fences_are_quoted:
            end = closing.end() if closing else len(text)
            kept.append(_REMOVED_BLOCK * fences_are_quoted)
    return "".join([*kept, text[end:]])


def _find_innermost_tagged_spans(text: str, tag: str) -> list[AnswerSpan]:
    """Return the innermost texts between an opening and a closing tag, and all other tags without their counterpart."""
    tags = list(re.finditer(rf"<(/?){re.escape(tag)}>", text))
    marks = list[AnswerSpan]()
    for index, found in enumerate(tags):
        following = tags[index + 1] if index + 1 < len(tags) else None
        if found[1]:
            if not (index and not tags[index - 1][1]):
                marks.append(AnswerSpan(found.start(), found.end(), ""))
        elif following and following[1]:
            marks.append(AnswerSpan(found.start(), following.end(), text[found.end() : following.start()]))
        else:
            marks.append(AnswerSpan(found.start(), found.end(), ""))
    return marks


def _normalized_mark(text: str, mark: AnswerSpan) -> str:
    """Return the text of a mark without blanks and in lower case, so that a quote with other blanks is the same."""
    return "".join(text[mark.start : mark.end].split()).casefold()


def _words_before_mark(text: str, mark: AnswerSpan) -> tuple[str, ...]:
    return tuple(text[max(0, mark.start - 80) : mark.start].casefold().split()[-_CONTEXT_WORDS:])


def _is_final_verdict_of_judge(
    text: str, mark: AnswerSpan, words_before_by_mark: dict[str, set[tuple[str, ...]]]
) -> bool:
    """Return True if `mark`, a copy of one in the prompt, ends the answer as the judge's own verdict and no quote."""
    before = _BLANK_LINES.sub("\n", text[max(0, mark.start - 120) : mark.start])
    if not (_END_OF_ANSWER.match(text, mark.end) and _OWN_INTRODUCTION.search(before)):
        return False
    words = _words_before_mark(text, mark)
    passages = words_before_by_mark.get(_normalized_mark(text, mark), ())
    return not any(context and words[-len(context) :] == context for context in passages)
