"""Parsers of model output: pure functions of a text.

A parser returns None for an unreadable text, with no answer or with several different ones. Answers in thoughts, denied
answers and retracted answers do not count (`marl/text/answers.py`). No text makes a parser raise, and the time is
linear in the length of the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from marl.text import answers
from marl.text.answers import AnswerSpan, drop_retracted, without_thoughts
from marl.text.json_text import last_json_structure, parse_strict_json

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


def whole(text: str) -> str | None:
    """Return the full text without thoughts, or None if nothing remains."""
    return without_thoughts(text) or None


def last_line(text: str) -> str | None:
    """Return the last line that is not blank, or None if all lines are blank."""
    lines = without_thoughts(text).splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), None)


def tag(text: str, name: str) -> str | None:
    """Return the content of `<name>...</name>`; repeated tags must have equal contents, without open or nested tags."""
    text = without_thoughts(text)
    return _single(drop_retracted(text, answers.tags(text, name) or ()))


def bracketed(text: str) -> str | None:
    """Return the content of square brackets on one line; repeated brackets must have equal contents."""
    return _single(_brackets(text))


def brackets(text: str) -> list[str]:
    """Return the contents of all innermost square brackets that are not empty."""
    return [mark.content for mark in _brackets(text)]


def boxed(text: str) -> str | None:
    r"""Return the content of LaTeX's `\boxed{...}`; repeated boxes must have equal contents."""
    text = without_thoughts(text)
    answer = _single(answers.drop_uncertain(text, drop_retracted(text, answers.find_boxes(text))))
    # A backslash at the end would escape the closing brace when the answer is formatted again.
    return None if answer is None or answer.endswith("\\") else answer


def code_block(text: str, language: str = "") -> str | None:
    """Return the last fenced block with the label `language` or without a label; for "", the last block of any kind."""
    return answers.last_code_block(without_thoughts(text), language)


def format_code_block(code: str, language: str = "") -> str:
    """Return `code` as a fenced block, with a fence longer than any fence within `code`."""
    matches = filter(None, map(_FENCE.match, code.split("\n")))
    longest = max((len(match[1]) for match in matches), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{code}\n{fence}"


def match_option(text: str, options: Sequence[str]) -> str | None:
    """Return the option equal to the full text, apart from punctuation at both ends and letter case, or None."""
    text = without_thoughts(text)
    for spelling in (text, text.strip(_EDGES)):
        if spelling in options:
            return spelling
        matches = [option for option in options if option.casefold() == spelling.casefold()]
        if matches:
            return matches[0] if len(matches) == 1 else None
    return None


def score(text: str, low: float, high: float) -> float | None:
    """Return a number from `low` to `high`: in `<score>`, after a label ("Score: 7/10"), or as the full text.

    All such numbers must be equal. Fractions ("7/10", "7 out of 10", "70 %") are multiplied by `high`. A number out of
    range is unreadable.
    """
    text = without_thoughts(text)
    tags = answers.tags(text, "score")
    labels = [AnswerSpan(*label.span(), label[0]) for label in _LABELLED.finditer(text)] if tags == [] else []
    if tags is None or tags:
        ratings = [_ALONE.fullmatch(mark.content) for mark in drop_retracted(text, tags or ())]
    elif labels:
        ratings = [_LABELLED.match(text, mark.start) for mark in drop_retracted(text, labels)]
    else:
        ratings = [_ALONE.fullmatch(text)]
    values = {_value(rating, high) if rating else None for rating in ratings} or {None}
    value = values.pop()
    return value if not values and value is not None and low <= value <= high else None


def json_object(text: str, schema: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
    """Return the last JSON object if it fits `schema`, or None. `schema` must have passed `check_schema`.

    Earlier objects are taken as examples or drafts. An object inside other brackets does not count.
    """
    try:
        value = last_json_structure(without_thoughts(text))
    except ValueError:
        return None
    if not isinstance(value, dict) or schema is None:
        return value if isinstance(value, dict) else None
    from marl.roles.json_schema import fits_schema  # takes long to import

    return value if fits_schema(value, schema) else None


def json_value(text: str) -> Any:
    """Return the value of a JSON text (RFC 8259), or None if it is invalid.

    NaN, infinity, repeated keys and more than 32 levels of nesting are invalid.
    """
    try:
        return parse_strict_json(text)
    except ValueError:
        return None


def compact_json(value: Any) -> str:
    """Return JSON without whitespace between tokens.

    Thought and tool-call tags are escaped, so that the parsers above return the JSON unchanged. Lone surrogates are
    escaped, so that the JSON can be encoded as UTF-8.
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return _UNSAFE.sub(lambda unsafe: f"\\u{ord(unsafe[0]):04x}", text)


def has_tool_call(text: str) -> bool:
    """Return True if the text contains a tool call, readable or not."""
    return answers.tags(without_thoughts(text), "tool_call") != []


def parse_tool_call(text: str) -> dict[str, Any] | None:
    """Return name and arguments of the only `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, or None."""
    calls = answers.tags(without_thoughts(text), "tool_call") or []
    call = json_value(calls[0].content) if len(calls) == 1 else None
    if not isinstance(call, dict):
        return None
    name, arguments = call.get("name"), call.get("arguments")
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None
    return {"name": name, "arguments": arguments}


def _brackets(text: str) -> list[AnswerSpan]:
    text = without_thoughts(text)
    return drop_retracted(text, answers.brackets(text))


def _single(marks: Iterable[AnswerSpan]) -> str | None:
    """Return the common content of all `marks`, or None if contents differ or the content is empty."""
    contents = {mark.content.strip() for mark in marks}
    return (contents.pop() or None) if len(contents) == 1 else None


def _value(rating: re.Match[str], high: float) -> float | None:
    number, total = float(rating[1]), 100.0 if rating[3] else float(rating[2] or 0)
    if not rating[2] and not rating[3]:
        return number
    return number / total * high if total > 0 else None
