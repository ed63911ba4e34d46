"""Readers of model output: pure functions of a text.

They return None for text that is unreadable: nothing there, or more than one thing. No text makes them raise, and their
time grows linearly with its length.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from roles.schemas import fits_schema

_THOUGHT = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_BRACKETED = re.compile(r"\[([^\[\]\n]+)\]")
_BRACES = re.compile(r"\\boxed\s?\{|\\[{}]|[{}]")
_FENCE = re.compile(r" {0,3}(`{3,}+)([^`]*+)")
_JSON_MARK = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|\\.|[{}\[\]]', re.DOTALL)
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
_DEEPEST = 32
"""Greatest nesting of JSON; Python's own reader gives up at a depth that depends on its caller's stack."""


def without_thoughts(text: str) -> str:
    """Return the text without `<think>` blocks, one that is not closed, and all before a lone `</think>` (chat
    templates may open the block in the prompt)."""
    if "think>" not in text:
        return text.strip()
    # A blank, so that what stood before and after a block does not join into a new mark.
    return _THOUGHT.sub(" ", text).rpartition("</think>")[2].strip()


def whole(text: str) -> str | None:
    """Return all of the text, without thoughts."""
    return without_thoughts(text) or None


def last_line(text: str) -> str | None:
    """Return the last line that is not blank."""
    return next((line.strip() for line in reversed(without_thoughts(text).splitlines()) if line.strip()), None)


def tag(text: str, name: str) -> str | None:
    """Return the content of `<name>...</name>`; several must be equal, and none may be open or nested."""
    return _single(_contents(without_thoughts(text), name))


def bracketed(text: str) -> str | None:
    """Return the content of square brackets on one line; several must be equal."""
    return _single(brackets(without_thoughts(text)))


def brackets(text: str) -> list[str]:
    """Return the contents of all innermost square brackets, without empty ones."""
    return [content.strip() for content in _BRACKETED.findall(text) if content.strip()]


def boxed(text: str) -> str | None:
    r"""Return the content of the `\boxed{...}` that is closed last, LaTeX's mark of an answer; None if it is empty."""
    text = without_thoughts(text)
    opened: list[re.Match[str]] = []
    start = end = 0
    for mark in _BRACES.finditer(text):
        if mark[0] == "}" and opened:
            brace = opened.pop()
            if brace[0] != "{":
                start, end = brace.end(), mark.start()
        elif mark[0].endswith("{") and mark[0] != r"\{":
            opened.append(mark)
    answer = text[start:end].strip()
    return answer if answer and not answer.endswith("\\") else None


def code_block(text: str, language: str = "") -> str | None:
    """Return the last block between lines of backticks labelled `language` or not at all; with "", any block."""
    block, fence, label, lines = None, "", "", []
    for line in without_thoughts(text).split("\n"):
        mark = _FENCE.fullmatch(line.rstrip())
        if mark and not fence:
            fence, label, lines = mark[1], mark[2].strip().lower(), []
        elif mark and len(mark[1]) >= len(fence) and not mark[2]:
            block = "\n".join(lines) if not language or label in ("", language.lower()) else block
            fence = ""
        elif fence:
            lines.append(line)
    return (block or "").strip("\n").rstrip() or None


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
    if (contents := _contents(text, "score")) != []:
        marks = [_ALONE.fullmatch(content) for content in contents or [""]]
    else:
        marks = list(_LABELLED.finditer(text)) or [_ALONE.fullmatch(text)]
    values = {_rating(mark, high) if mark else None for mark in marks}
    value = values.pop()
    return value if not values and value is not None and low <= value <= high else None


def json_object(text: str, schema: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
    """Return the first JSON object, if it fits `schema`, which `check_schema` has passed.

    An object inside other braces does not count.
    """
    for candidate in _objects(without_thoughts(text)):
        value = json_value(candidate)
        if isinstance(value, dict):
            return value if schema is None or fits_schema(value, schema) else None
    return None


def json_value(text: str) -> Any:
    """Return the text read as JSON (RFC 8259): no NaN or infinity, no key twice, nested at most 32 deep."""
    if _depth(text) > _DEEPEST:
        return None
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_finite, parse_float=_finite)
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
    return _contents(without_thoughts(text), "tool_call") != []


def tool_call(text: str) -> dict[str, Any] | None:
    """Return name and arguments of the one `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`."""
    contents = _contents(without_thoughts(text), "tool_call") or []
    call = json_value(contents[0]) if len(contents) == 1 else None
    if not isinstance(call, dict):
        return None
    name, arguments = call.get("name"), call.get("arguments")
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None
    return {"name": name, "arguments": arguments}


def _single(contents: Iterable[str] | None) -> str | None:
    """Return the one text that all `contents` are, if it is not empty."""
    texts = {content.strip() for content in contents or ()}
    return (texts.pop() or None) if len(texts) == 1 else None


def _contents(text: str, name: str) -> list[str] | None:
    """Return the text between each `<name>` and its `</name>`; None if opening and closing tags do not alternate."""
    pieces = re.split(rf"(</?{re.escape(name)}>)", text)
    tags = pieces[1::2]
    if tags != [f"<{name}>", f"</{name}>"] * (len(tags) // 2):
        return None
    return pieces[2::4]


def _rating(mark: re.Match[str], high: float) -> float | None:
    value, total = float(mark[1]), 100.0 if mark[3] else float(mark[2] or 0)
    if not mark[2] and not mark[3]:
        return value
    return value / total * high if total > 0 else None


def _objects(text: str) -> Iterator[str]:
    """Return the texts in balanced braces, outermost, in order; braces within strings do not count."""
    spans: list[tuple[int, int]] = []
    opened: list[int] = []
    first = text.find("{")
    for mark in _JSON_MARK.finditer(text, first) if first >= 0 else ():
        if mark[0] == "{":
            opened.append(mark.start())
        elif mark[0] == "}" and opened:
            start = opened.pop()
            while spans and spans[-1][0] > start:
                spans.pop()
            spans.append((start, mark.end()))
    return (text[start:end] for start, end in spans)


def _depth(text: str) -> int:
    depth = deepest = 0
    for mark in _JSON_MARK.finditer(text):
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
        raise ValueError(f"{number} is no JSON number")
    return value
