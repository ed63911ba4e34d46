"""Readers of model output: pure functions of a text.

They return None for text that is unreadable: nothing there, or more than one thing. What stands in thoughts, is denied
or is taken back afterwards is not there (`marl/answer_text.py`). No text makes them raise, and their time grows
linearly with its length.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from marl import answer_text
from marl.answer_text import AnswerMark, standing, without_thoughts
from marl.json_text import last_structure, read_json
from roles.schemas import fits_schema

_FENCE = re.compile(r" {0,3}(`{3,}+)([^`]*+)")
_UNSAFE = re.compile(r"<(?=/?(?:think|tool_call)>)|[\ud800-\udfff]")
_EDGES = " \t\r\n.,;:!?\"'`*_()[]{}<>$"
"""Characters that may stand around a choice."""
_NUMBER = r"[-+]?(?:\d{1,15}+(?:\.\d{1,15}+)?+|\.\d{1,15}+)"
_RATING = rf"({_NUMBER})(?:\s{{0,2}}(?:/|out of)\s{{0,2}}({_NUMBER})|\s?(%))?+"
_ALONE = re.compile(rf"[\s*_]{{0,4}}{_RATING}[\s*_.]{{0,4}}", re.ASCII)
_LABELLED = re.compile(
    rf"\b(?:score|rating|grade)[\s*_]{{0,4}}(?::|=|is|of)[\s*_]{{0,4}}{_RATING}"
    r"(?!\w|[.,]\d|\s{0,2}[-\u2013/]\s{0,2}\d|\s{1,2}(?:or|to)\s{1,2}\d)",
    re.ASCII | re.IGNORECASE,
)


def whole(text: str) -> str | None:
    """Return all of the text, without thoughts."""
    return without_thoughts(text) or None


def last_line(text: str) -> str | None:
    """Return the last line that is not blank."""
    return next((line.strip() for line in reversed(without_thoughts(text).splitlines()) if line.strip()), None)


def tag(text: str, name: str) -> str | None:
    """Return the content of `<name>...</name>`; several must be equal, and none may be open or nested."""
    text = without_thoughts(text)
    return _single(standing(text, answer_text.tags(text, name) or ()))


def bracketed(text: str) -> str | None:
    """Return the content of square brackets on one line; several must be equal."""
    return _single(_brackets(text))


def brackets(text: str) -> list[str]:
    """Return the contents of all innermost square brackets, without empty ones."""
    return [mark.content for mark in _brackets(text)]


def boxed(text: str) -> str | None:
    r"""Return the content of `\boxed{...}`, LaTeX's mark of an answer; several must be equal."""
    text = without_thoughts(text)
    answer = _single(answer_text.certain(text, standing(text, answer_text.boxes(text))))
    # A backslash at the end would hide the brace when the answer is said again.
    return None if answer is None or answer.endswith("\\") else answer


def code_block(text: str, language: str = "") -> str | None:
    """Return the last block between lines of backticks labelled `language` or not at all; with "", any block."""
    return answer_text.last_code_block(without_thoughts(text), language)


def fenced(code: str, language: str = "") -> str:
    """Return `code` between lines of backticks, more of them than `code` has at the beginning of any line."""
    longest = max((len(mark[1]) for line in code.split("\n") if (mark := _FENCE.match(line))), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{code}\n{fence}"


def choice(text: str, options: Sequence[str]) -> str | None:
    """Return the option that the whole text names, apart from punctuation and letter case."""
    text = without_thoughts(text)
    for spelling in (text, text.strip(_EDGES)):
        if spelling in options:
            return spelling
        matches = [option for option in options if option.casefold() == spelling.casefold()]
        if matches:
            return matches[0] if len(matches) == 1 else None
    return None


def score(text: str, low: float, high: float) -> float | None:
    """Return a number from `low` to `high`: in `<score>`, after a label ("Score: 7/10"), or alone; all must agree.

    Shares ("7/10", "7 out of 10", "70 %") are shares of `high`. A number out of range is unreadable.
    """
    text = without_thoughts(text)
    tags = answer_text.tags(text, "score")
    labels = [AnswerMark(*label.span(), label[0]) for label in _LABELLED.finditer(text)] if tags == [] else []
    if tags is None or tags:
        ratings = [_ALONE.fullmatch(mark.content) for mark in standing(text, tags or ())]
    elif labels:
        ratings = [_LABELLED.match(text, mark.start) for mark in standing(text, labels)]
    else:
        ratings = [_ALONE.fullmatch(text)]
    values = {_value(rating, high) if rating else None for rating in ratings} or {None}
    value = values.pop()
    return value if not values and value is not None and low <= value <= high else None


def json_object(text: str, schema: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
    """Return the last JSON object, if it fits `schema`, which `check_schema` has passed.

    Earlier ones are examples or drafts. An object inside other brackets does not count.
    """
    try:
        value = last_structure(without_thoughts(text))
    except ValueError:
        return None
    return value if isinstance(value, dict) and (schema is None or fits_schema(value, schema)) else None


def json_value(text: str) -> Any:
    """Return the text read as JSON (RFC 8259), or None: no NaN or infinity, no key twice, nested at most 32 deep."""
    try:
        return read_json(text)
    except ValueError:
        return None


def compact(value: Any) -> str:
    """Return JSON without blanks.

    Tags of thoughts and of calls are escaped, so that the readers above return it as it is, and halves of surrogate
    pairs, so that it can be written as UTF-8.
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return _UNSAFE.sub(lambda unsafe: f"\\u{ord(unsafe[0]):04x}", text)


def calls_tool(text: str) -> bool:
    """Return whether a tool is called, readably or not."""
    return answer_text.tags(without_thoughts(text), "tool_call") != []


def tool_call(text: str) -> dict[str, Any] | None:
    """Return name and arguments of the one `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`."""
    calls = answer_text.tags(without_thoughts(text), "tool_call") or []
    call = json_value(calls[0].content) if len(calls) == 1 else None
    if not isinstance(call, dict):
        return None
    name, arguments = call.get("name"), call.get("arguments")
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None
    return {"name": name, "arguments": arguments}


def _brackets(text: str) -> list[AnswerMark]:
    text = without_thoughts(text)
    return standing(text, answer_text.brackets(text))


def _single(marks: Iterable[AnswerMark]) -> str | None:
    """Return the one content that all `marks` have, if it is not empty."""
    contents = {mark.content.strip() for mark in marks}
    return (contents.pop() or None) if len(contents) == 1 else None


def _value(rating: re.Match[str], high: float) -> float | None:
    number, total = float(rating[1]), 100.0 if rating[3] else float(rating[2] or 0)
    if not rating[2] and not rating[3]:
        return number
    return number / total * high if total > 0 else None
