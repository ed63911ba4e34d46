"""Parsers of model output: pure functions of a text.

A parser returns None for an unreadable text, with no answer or with several different ones. Answers in thoughts, denied
answers and retracted answers do not count (`marl/text/answers.py`). No text makes a parser raise, and the time is
linear in the length of the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from marl.text import answers, tool_calls
from marl.text.answers import AnswerSpan, drop_retracted_answers, remove_thoughts_and_strip
from marl.text.json_text import find_json_spans, last_json_object_or_array, parse_strict_json

_CACHED_LENGTH = 64
"""Maximum length of texts whose move is parsed once, in characters."""
_FENCE = re.compile(r" {0,3}(`{3,}+)([^`]*+)")
_UNSAFE = re.compile(r"<(?=/?(?:think|tool_call)>)|[\ud800-\udfff]")
_EDGES = " \t\r\n.,;:!?\"'`*_()[]{}<>$"
"""Characters that are ignored at both ends of a choice."""
_NUMBER = r"[-+]?(?:\d{1,15}+(?:\.\d{1,15}+)?+|\.\d{1,15}+)"
_RATING = rf"({_NUMBER})(?:\s{{0,2}}(?:/|out of)\s{{0,2}}({_NUMBER})|\s?(%))?+"
_ALONE = re.compile(rf"[\s*_]{{0,4}}{_RATING}[\s*_.]{{0,4}}", re.ASCII)
_LABELLED = re.compile(
    rf"\b(?:score|rating|grade)[\s*_]{{0,4}}(?::|=|is|of)[\s*_]{{0,4}}{_RATING}"
    r"(?!\w|[.,]\d|\s{0,2}[-\u2013/]\s{0,2}\d|\s{1,2}(?:or|to)\s{1,2}\d)",
    re.ASCII | re.IGNORECASE,
)


def full_text_without_thoughts(text: str) -> str | None:
    """Return the full text without thoughts as the answer, or None if nothing remains."""
    return remove_thoughts_and_strip(text) or None


def last_line(text: str) -> str | None:
    """Return the last line that is not blank, or None if all lines are blank."""
    lines = remove_thoughts_and_strip(text).splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), None)


def text_in_tag(text: str, tag_name: str) -> str | None:
    """Return the content of the tag `tag_name`; repeated tags must have equal contents, without open or nested tags."""
    text = remove_thoughts_and_strip(text)
    return _content_if_all_equal(drop_retracted_answers(text, answers.find_tagged_spans(text, tag_name) or ()))


def text_in_brackets(text: str) -> str | None:
    """Return the content of square brackets on one line; repeated brackets must have equal contents."""
    return move_in_brackets(text, None)


def move_in_brackets(text: str, legal: tuple[str, ...] | None) -> str | None:
    """Return the only move of `legal` in square brackets, in any case; None without one or with several.

    If `legal` is None, any content of brackets is a move.
    """
    # Short answers are nothing but a move, so the same ones come again and again.
    return (_move_in_brackets_cached if len(text) <= _CACHED_LENGTH else _move_in_brackets)(text, legal)


def _move_in_brackets(text: str, legal: tuple[str, ...] | None) -> str | None:
    moves = set(texts_in_all_brackets(text))
    if legal is not None and not moves.issubset(legal):
        # The game compares the exact spelling of moves, but a model may write a move in other case.
        spellings = {move.lower(): move for move in legal}
        moves = {spellings[move.lower()] for move in moves if move.lower() in spellings}
    return moves.pop() if len(moves) == 1 else None


_move_in_brackets_cached = lru_cache(maxsize=4096)(_move_in_brackets)


def texts_in_all_brackets(text: str) -> list[str]:
    """Return the contents of all innermost square brackets that are neither empty nor retracted."""
    text = remove_thoughts_and_strip(text)
    return [mark.content for mark in drop_retracted_answers(text, answers.find_square_brackets(text))]


def text_in_box(text: str) -> str | None:
    r"""Return the content of LaTeX's `\boxed{...}`; repeated boxes must have equal contents."""
    text = remove_thoughts_and_strip(text)
    answer = _content_if_all_equal(
        answers.drop_uncertain_answers(text, drop_retracted_answers(text, answers.find_latex_boxes(text)))
    )
    # An answer that ends with a backslash is refused: it would escape the closing brace of `\boxed{…}`.
    return None if answer is None or answer.endswith("\\") else answer


def last_code_block(text: str, language: str = "") -> str | None:
    """Return the code of the last fenced block with the label `language` or no label; for "", any label is accepted."""
    return answers.last_code_block(remove_thoughts_and_strip(text), language)


def format_code_block(code: str, language: str = "") -> str:
    """Return `code` as a fenced block, with a fence longer than any fence within `code`."""
    fences = ["``", *(match[1] for match in map(_FENCE.match, code.split("\n")) if match)]
    fence = "`" + max(fences, key=len)
    return f"{fence}{language}\n{code}\n{fence}"


def match_option(text: str, options: Sequence[str]) -> str | None:
    """Return the option that equals the full text up to case and punctuation at both ends, or None if none does."""
    text = remove_thoughts_and_strip(text)
    for spelling in (text, text.strip(_EDGES)):
        if spelling in options:
            return spelling
        matches = [option for option in options if option.casefold() == spelling.casefold()]
        if matches:
            return matches[0] if len(matches) == 1 else None
    return None


def parse_labelled_or_bare_score(text: str, low: float, high: float) -> float | None:
    """Return a score from `low` to `high`: in `<score>`, after a label ("Score: 7/10"), or as the full text.

    All scores in the text must be equal. Fractions ("7/10", "7 out of 10", "70 %") are multiplied by `high`. A number
    out of range makes the text unreadable: the result is None.
    """
    text = remove_thoughts_and_strip(text)
    marks, ratings = answers.find_tagged_spans(text, "score"), list[re.Match[str] | None]()
    if marks is None:
        return None  # without an end tag, it is unclear where the score ends
    if marks:
        for mark in drop_retracted_answers(text, marks):
            ratings.append(_ALONE.fullmatch(mark.content))
    elif labels := [AnswerSpan(*label.span(), label[0]) for label in _LABELLED.finditer(text)]:
        for mark in drop_retracted_answers(text, labels):
            ratings.append(_LABELLED.match(text, mark.start))
    else:
        ratings.append(_ALONE.fullmatch(text))
    values = set[float]()
    for rating in ratings:
        if rating is None:
            return None
        value, total = float(rating[1]), 100.0 if rating[3] else float(rating[2] or 0)
        if rating[2] or rating[3]:
            if total <= 0:
                return None
            value = value / total * high
        values.add(value)
    if len(values) != 1:
        return None
    (value,) = values
    return value if low <= value <= high else None


def last_json_object(text: str, schema: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
    """Return the last JSON object in `text` if it fits `schema`, or None. `schema` must have passed `check_schema`.

    Earlier objects are taken as examples or drafts. An object inside of other brackets does not count.
    """
    try:
        value = last_json_object_or_array(remove_thoughts_and_strip(text))
    except ValueError:
        return None
    if not isinstance(value, dict) or schema is None:
        return value if isinstance(value, dict) else None
    from marl.roles.json_schema import fits_schema  # imported late, because the import takes long

    return value if fits_schema(value, schema) else None


def all_json_objects(text: str, schema: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """Return all top-level JSON objects in `text` that are not retracted, or [] if one is invalid or breaks `schema`.

    `schema` must have passed `check_schema`.
    """
    text = remove_thoughts_and_strip(text)
    objects: list[dict[str, Any]] = []
    for mark in drop_retracted_answers(text, find_json_spans(text)):
        if mark.content.startswith("["):
            continue
        value = last_json_object(mark.content, schema)
        if value is None:
            return []
        objects.append(value)
    return objects


def parse_json_value(text: str) -> Any:
    """Return the value of a JSON text (RFC 8259), or None if it is invalid.

    NaN, infinity, repeated keys and more than 32 levels of nesting are invalid.
    """
    try:
        return parse_strict_json(text)
    except ValueError:
        return None


def compact_json(value: Any) -> str:
    """Return `value` as JSON text without whitespace between tokens.

    Thought and tool-call tags are escaped, so that the parsers above return the JSON unchanged. Lone surrogates are
    escaped, so that the JSON can be encoded as UTF-8.
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return _UNSAFE.sub(lambda unsafe: f"\\u{ord(unsafe[0]):04x}", text)


def has_tool_call(text: str) -> bool:
    """Return True if the text contains a tool call, readable or not."""
    return answers.find_tagged_spans(remove_thoughts_and_strip(text), "tool_call") != []


def parse_tool_calls(text: str) -> list[dict[str, Any]] | None:
    """Return the contents of all `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.

    The result is None if the text has no call or an invalid one.
    """
    spans = answers.find_tagged_spans(remove_thoughts_and_strip(text), "tool_call") or []
    calls: list[dict[str, Any]] = []
    for span in spans:
        found = tool_calls.parse_tool_calls(span.content)
        if not found or len(calls) + len(found) > tool_calls.MAX_CALLS:
            return None
        calls += found
    return calls or None


def _content_if_all_equal(answer_spans: Iterable[AnswerSpan]) -> str | None:
    """Return the common content of all `answer_spans`, or None if contents differ or the content is empty."""
    contents = {mark.content.strip() for mark in answer_spans}
    return (contents.pop() or None) if len(contents) == 1 else None
