"""Search and strict parsing of JSON in model-written text. The last of several values is the answer."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any

from marl.text.answers import AnswerSpan, drop_retracted_answers, remove_thoughts_and_strip

_OPENING = re.compile(r"(?<!\\)[{\[]")
_TOKEN = re.compile(
    r'(?P<string>"[^"\\\n]*+(?:\\.[^"\\\n]*+)*+"|\\.)|(?P<bracket>[{}\[\]])|(?P<word>\w++)|[^\s,:+.-]', re.S
)
_BRACKET = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|\\.|[{}\[\]]', re.DOTALL)
_LITERALS = ("true", "false", "null")
_OBJECT = re.compile(r"\{\s*(?:[\"'}]|\w+\s*:)")
"""Beginning of a JSON object, in contrast to a set such as {1, 2}."""
_MAX_DEPTH = 32
"""Maximum nesting of JSON. The limit of Python's own parser would depend on the caller's stack depth."""


@dataclass(slots=True)
class _OpenBracket:
    """Opening bracket whose closing bracket has not been read yet."""

    sign: str
    """Bracket character, { or [."""
    start: int
    """Offset of the bracket in the text."""
    holds_prose: bool = False
    """True if words that are no JSON were read after the bracket."""


def parse_strict_json(text: str) -> Any:
    """Parse `text` as JSON (RFC 8259) without NaN, infinity or duplicate keys, nested at most 32 levels deep.

    Raises:
        ValueError: if `text` is no JSON, or breaks one of these rules.
    """
    depth = 0
    for bracket in _BRACKET.finditer(text):
        depth += (bracket[0] in "{[") - (bracket[0] in "}]")
        if depth > _MAX_DEPTH:
            raise ValueError(f"nested deeper than {_MAX_DEPTH}")
    return json.loads(
        text,
        object_pairs_hook=_reject_duplicate_keys,
        parse_constant=_parse_finite_float,
        parse_float=_parse_finite_float,
    )


def split_json_list(text: str) -> list[str]:
    """Return the items of a JSON list: texts as they are, other items as JSON. Any other text is returned alone."""
    try:
        items = parse_strict_json(text)
    except ValueError:
        return [text]
    if not isinstance(items, list) or not items:
        return [text]
    return [item if isinstance(item, str) else json.dumps(item, ensure_ascii=False) for item in items]


def last_json_value(text: str) -> Any:
    """Return the JSON value of an answer: the full text if it is JSON, else the last top-level object or array.

    Earlier values are examples or drafts. Thoughts and retracted values do not count.

    Raises:
        ValueError: if there is no value, or the last value is invalid by the rules of `parse_strict_json`.
    """
    text = remove_thoughts_and_strip(text)
    try:
        return parse_strict_json(text)
    except ValueError:
        return last_json_object_or_array(text)


def last_json_object_or_array(text: str) -> Any:
    """Return the last top-level JSON object or array in `text` (without thoughts) that no later words revoke.

    Raises:
        ValueError: if there is no object or array, or the last one is invalid by the rules of `parse_strict_json`.
    """
    marks = drop_retracted_answers(text, find_json_spans(text))
    if not marks:
        raise ValueError("no JSON object or array")
    return parse_strict_json(marks[-1].content)


def find_json_spans(text: str) -> list[AnswerSpan]:
    """Return the spans of the top-level JSON objects and arrays in `text`, which may be invalid JSON."""
    spans: list[tuple[int, int]] = []
    opened: list[_OpenBracket] = []
    end = 0
    while token := (_TOKEN if opened else _OPENING).search(text, end):
        end = token.end()
        sign = token[0]
        if sign in ("{", "["):
            opened.append(_OpenBracket(sign, token.start()))
        elif sign in ("}", "]"):
            opening = "{" if sign == "}" else "["
            # Only the last brackets are searched, so that a text of many opening brackets does not take quadratic time.
            if opening not in [bracket.sign for bracket in opened[-_MAX_DEPTH:]]:
                continue
            while (bracket := opened.pop()).sign != opening:
                pass  # brackets inside of this one that were never closed are dropped
            if sign == "]" and bracket.holds_prose:
                continue
            # An outer value replaces the values inside of it, which ended earlier.
            while spans and spans[-1][0] > bracket.start:
                spans.pop()
            spans.append((bracket.start, end))
        elif not token["string"] and not (token["word"] and (sign in _LITERALS or sign[0].isdigit())):
            opened[-1].holds_prose = True
    marks = list[AnswerSpan]()
    for start, end in spans:
        if text[start] == "[" or _OBJECT.match(text, start, end):
            marks.append(AnswerSpan(start, end, text[start:end]))
    return marks


def _reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the entries of a JSON object as a dict; raise ValueError for a key that occurs twice."""
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ValueError("a key is given twice")
    return entries


def _parse_finite_float(number: str) -> float:
    """Return the JSON number `number` as a float; raise ValueError for NaN, infinity and numbers such as 1e999."""
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{number[:20]} is no JSON number")
    return value
