"""JSON in text that a model wrote: read strictly, and the last of several values is meant."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from marl.answer_text import AnswerMark, standing, without_thoughts

_OPENING = re.compile(r"(?<!\\)[{\[]")
_TOKEN = re.compile(
    r'(?P<string>"[^"\\\n]*+(?:\\.[^"\\\n]*+)*+"|\\.)|(?P<bracket>[{}\[\]])|(?P<word>\w++)|[^\s,:+.-]', re.S
)
_BRACKET = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|\\.|[{}\[\]]', re.DOTALL)
_LITERALS = ("true", "false", "null")
_OBJECT = re.compile(r"\{\s*(?:[\"'}]|\w+\s*:)")
"""Braces that mean to be an object, unlike the set {1, 2}."""
_DEEPEST = 32
"""Greatest nesting of JSON; Python's own reader gives up at a depth that depends on its caller's stack."""


@dataclass(slots=True)
class _Bracket:
    """An opening bracket that is not closed yet."""

    sign: str
    start: int
    holds_prose: bool = False


def read_json(text: str) -> Any:
    """Return the text read as JSON (RFC 8259): no NaN or infinity, no key twice, nested at most 32 deep.

    Raises:
        ValueError: if it is no such JSON.
    """
    if _depth(text) > _DEEPEST:
        raise ValueError(f"nested deeper than {_DEEPEST}")
    return json.loads(text, object_pairs_hook=_unique, parse_constant=_finite, parse_float=_finite)


def last_json(text: str) -> Any:
    """Return the answer in a text: all of it if it is JSON, else the last object or array outside of all others.

    Earlier ones are examples or drafts. Thoughts and what is taken back do not count.

    Raises:
        ValueError: if there is none, or the last one is no JSON by the rules of `read_json`.
    """
    text = without_thoughts(text)
    try:
        return read_json(text)
    except ValueError:
        return last_structure(text)


def last_structure(text: str) -> Any:
    """Return the last JSON object or array of a text without thoughts.

    Raises:
        ValueError: as `last_json` does.
    """
    marks = standing(text, _structures(text))
    if not marks:
        raise ValueError("no JSON object or array")
    return read_json(marks[-1].content)


def _structures(text: str) -> list[AnswerMark]:
    """Return the outermost JSON objects and arrays, readable or not; brackets around words are no array."""
    spans: list[tuple[int, int]] = []
    opened: list[_Bracket] = []
    for sign, place in _tokens(text, opened):
        if not sign:
            opened[-1].holds_prose = True
        elif sign in "{[":
            opened.append(_Bracket(sign, place))
        elif (bracket := _close(opened, "{" if sign == "}" else "[")) and (sign == "}" or not bracket.holds_prose):
            while spans and spans[-1][0] > bracket.start:
                spans.pop()
            spans.append((bracket.start, place + 1))
    marks = (AnswerMark(start, end, text[start:end]) for start, end in spans)
    return [mark for mark in marks if mark.content[0] == "[" or _OBJECT.match(mark.content)]


def _tokens(text: str, opened: Sequence[_Bracket]) -> Iterator[tuple[str, int]]:
    """Yield (bracket, place), and ("", place) for what JSON has not outside of strings, while a bracket is `opened`."""
    end = 0
    while token := (_TOKEN if opened else _OPENING).search(text, end):
        end = token.end()
        if token[0] in "{}[]":
            yield token[0], token.start()
        elif not token["string"] and not (token["word"] and (token[0] in _LITERALS or token[0][0].isdigit())):
            yield "", token.start()


def _close(opened: list[_Bracket], sign: str) -> _Bracket | None:
    """Remove and return the innermost open bracket `sign`, with those open within it; None if there is none."""
    if not any(bracket.sign == sign for bracket in opened[-_DEEPEST:]):
        return None
    while (bracket := opened.pop()).sign != sign:
        pass
    return bracket


def _depth(text: str) -> int:
    depth = deepest = 0
    for mark in _BRACKET.finditer(text):
        depth += (mark[0] in "{[") - (mark[0] in "}]")
        deepest = max(deepest, depth)
    return deepest


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ValueError("a key is given twice")
    return entries


def _finite(number: str) -> float:
    """Return a number as a float; Python's reader calls this for `NaN` and the infinities as well as for 1e999."""
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{number[:20]} is no JSON number")
    return value
