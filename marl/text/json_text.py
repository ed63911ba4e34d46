"""Strict parsing of JSON in model-written text. Of several values, the last one is the answer."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from marl.text.answers import AnswerSpan, drop_retracted, without_thoughts

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
class _Bracket:
    """Opening bracket without its closing bracket."""

    sign: str
    start: int
    holds_prose: bool = False


def parse_strict_json(text: str) -> Any:
    """Parse `text` as JSON (RFC 8259) without NaN, infinity or duplicate keys, nested at most 32 levels deep.

    Raises:
        ValueError: if `text` is no such JSON.
    """
    depth = 0
    for bracket in _BRACKET.finditer(text):
        depth += (bracket[0] in "{[") - (bracket[0] in "}]")
        if depth > _MAX_DEPTH:
            raise ValueError(f"nested deeper than {_MAX_DEPTH}")
    return json.loads(text, object_pairs_hook=_unique, parse_constant=_finite, parse_float=_finite)


def last_json(text: str) -> Any:
    """Return the JSON value of an answer: the full text if it is JSON, else the last top-level object or array.

    Earlier values are examples or drafts. Thoughts and retracted values do not count.

    Raises:
        ValueError: if there is no value, or the last one is invalid by the rules of `parse_strict_json`.
    """
    text = without_thoughts(text)
    try:
        return parse_strict_json(text)
    except ValueError:
        return last_json_structure(text)


def last_json_structure(text: str) -> Any:
    """Return the last top-level JSON object or array of a text without thoughts.

    Raises:
        ValueError: as `last_json` does.
    """
    marks = drop_retracted(text, _structures(text))
    if not marks:
        raise ValueError("no JSON object or array")
    return parse_strict_json(marks[-1].content)


def _structures(text: str) -> list[AnswerSpan]:
    """Return the top-level JSON objects and arrays, valid or not. Brackets around prose are no array."""
    spans: list[tuple[int, int]] = []
    opened: list[_Bracket] = []
    for sign, offset in _tokens(text, opened):
        if not sign:
            opened[-1].holds_prose = True
        elif sign in "{[":
            opened.append(_Bracket(sign, offset))
        elif (bracket := _close(opened, "{" if sign == "}" else "[")) and (sign == "}" or not bracket.holds_prose):
            # Inner values end before outer ones, which replace them.
            while spans and spans[-1][0] > bracket.start:
                spans.pop()
            spans.append((bracket.start, offset + 1))
    marks = (AnswerSpan(start, end, text[start:end]) for start, end in spans)
    return [mark for mark in marks if mark.content[0] == "[" or _OBJECT.match(mark.content)]


def _tokens(text: str, opened: Sequence[_Bracket]) -> Iterator[tuple[str, int]]:
    """Yield (bracket, offset) for brackets outside of strings, and ("", offset) for prose inside of a bracket.

    The caller adds brackets to `opened` and removes them while it iterates.
    """
    end = 0
    while token := (_TOKEN if opened else _OPENING).search(text, end):
        end = token.end()
        if token[0] in "{}[]":
            yield token[0], token.start()
        elif not token["string"] and not (token["word"] and (token[0] in _LITERALS or token[0][0].isdigit())):
            yield "", token.start()


def _close(opened: list[_Bracket], sign: str) -> _Bracket | None:
    """Remove the innermost open bracket `sign` and all brackets inside of it; return it, or None if there is none."""
    # Only the last brackets are searched, so that a text of many opening brackets does not take quadratic time.
    if not any(bracket.sign == sign for bracket in opened[-_MAX_DEPTH:]):
        return None
    while (bracket := opened.pop()).sign != sign:
        pass
    return bracket


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ValueError("a key is given twice")
    return entries


def _finite(number: str) -> float:
    """Return a number as a float. Python's parser passes `NaN` and `Infinity` as well as numbers such as 1e999."""
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{number[:20]} is no JSON number")
    return value
