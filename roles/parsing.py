"""What can be read from what a model says.

Pure functions of a text. None means unreadable: nothing there, or more than one thing. No text makes them raise, and
their time grows with the text's length only, for any text may come.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from roles.schemas import fits

_THOUGHT = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_BRACKETED = re.compile(r"\[([^\[\]\n]+)\]")
_BRACES = re.compile(r"\\boxed\s?\{|\\[{}]|[{}]")
_FENCE = re.compile(r" {0,3}(`{3,}+)([^`]*+)")
_JSON_MARK = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|\\.|[{}\[\]]', re.DOTALL)
_UNSAFE = re.compile(r"<(?=/?(?:think|tool_call)>)|[\ud800-\udfff]")
_EDGES = " \t\r\n.,;:!?\"'`*_()[]{}<>$"
"""What may stand around a choice."""
_NUMBER = r"[-+]?(?:\d{1,15}+(?:\.\d{1,15}+)?+|\.\d{1,15}+)"
_RATING = rf"({_NUMBER})(?:\s{{0,2}}(?:/|out of)\s{{0,2}}({_NUMBER})|\s?(%))?+"
_ALONE = re.compile(rf"[\s*_]{{0,4}}{_RATING}[\s*_.]{{0,4}}", re.ASCII)
_LABELLED = re.compile(
    rf"\b(?:score|rating|grade)[\s*_]{{0,4}}(?::|=|is|of)[\s*_]{{0,4}}{_RATING}"
    r"(?!\w|[.,]\d|\s{0,2}[-\u2013/]\s{0,2}\d|\s{1,2}(?:or|to)\s{1,2}\d)",
    re.ASCII | re.IGNORECASE,
)
_DEEPEST = 32
"""How deep JSON may be nested; Python's own reader gives up at a depth that depends on who calls it."""


def spoken(text: str) -> str:
    """The text without what was thought: `<think>` blocks, one that is not closed, and all before a lone `</think>`
    (chat templates may open the block in the prompt)."""
    if "think>" not in text:
        return text.strip()
    # A blank, so that what stood before and after a block does not join into a new mark.
    return _THOUGHT.sub(" ", text).rpartition("</think>")[2].strip()


def whole(text: str) -> str | None:
    """All of it."""
    return spoken(text) or None


def last_line(text: str) -> str | None:
    """The last line that is not blank."""
    return next((line.strip() for line in reversed(spoken(text).splitlines()) if line.strip()), None)


def tag(text: str, name: str) -> str | None:
    """What stands in `<name>...</name>`; more than one must say the same, and none may be open or nested."""
    return _only(_between(spoken(text), name))


def bracketed(text: str) -> str | None:
    """What stands in square brackets on one line; more than one must say the same."""
    return _only(brackets(spoken(text)))


def brackets(text: str) -> list[str]:
    """All that stands in square brackets, innermost, without empty ones."""
    return [said for found in _BRACKETED.findall(text) if (said := found.strip())]


def boxed(text: str) -> str | None:
    r"""What stands in the `\boxed{...}` that is closed last, as answers in LaTeX are marked; None if that is empty."""
    said = spoken(text)
    opened: list[re.Match[str]] = []
    start = end = 0
    for mark in _BRACES.finditer(said):
        if mark[0] == "}" and opened:
            brace = opened.pop()
            if brace[0] != "{":
                start, end = brace.end(), mark.start()
        elif mark[0].endswith("{") and mark[0] != r"\{":
            opened.append(mark)
    answer = said[start:end].strip()
    return answer if answer and not answer.endswith("\\") else None


def code_block(text: str, language: str = "") -> str | None:
    """The last block between lines of backticks that is labelled `language` or not at all; with "", any block."""
    found, fence, label, lines = None, "", "", []
    for line in spoken(text).split("\n"):
        mark = _FENCE.fullmatch(line.rstrip())
        if mark and not fence:
            fence, label, lines = mark[1], mark[2].strip().lower(), []
        elif mark and len(mark[1]) >= len(fence) and not mark[2]:
            found = "\n".join(lines) if not language or label in ("", language.lower()) else found
            fence = ""
        elif fence:
            lines.append(line)
    return (found or "").strip("\n").rstrip() or None


def fenced(code: str, language: str = "") -> str:
    """`code` between lines of backticks, more of them than `code` has at the beginning of any line."""
    longest = max((len(mark[1]) for line in code.split("\n") if (mark := _FENCE.match(line))), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{code}\n{fence}"


def choice(text: str, options: Sequence[str]) -> str | None:
    """The option that the text is, beside punctuation and letter case; a sentence about one is none."""
    said = spoken(text)
    for spelling in (said, said.strip(_EDGES)):
        if spelling in options:
            return spelling
        meant = [option for option in options if option.casefold() == spelling.casefold()]
        if meant:
            return meant[0] if len(meant) == 1 else None
    return None


def score(text: str, low: float, high: float) -> float | None:
    """A number from `low` to `high`: in `<score>`, after a label ("Score: 7/10"), or alone; all must agree.

    Shares ("7/10", "7 out of 10", "70 %") are shares of `high`. A number out of range is unreadable.
    """
    said = spoken(text)
    if (found := _between(said, "score")) != []:
        marks = [_ALONE.fullmatch(one) for one in found or [""]]
    else:
        marks = list(_LABELLED.finditer(said)) or [_ALONE.fullmatch(said)]
    values = {_rating(mark, high) if mark else None for mark in marks}
    value = values.pop()
    return value if not values and value is not None and low <= value <= high else None


def json_object(text: str, schema: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
    """The first JSON object, if it fits `schema`, which `check_schema` has passed.

    An object that stands in other braces does not count.
    """
    for candidate in _objects(spoken(text)):
        value = json_value(candidate)
        if isinstance(value, dict):
            return value if schema is None or fits(value, schema) else None
    return None


def json_value(text: str) -> Any:
    """The text as JSON (RFC 8259): no NaN or infinity, no key twice, not too deep."""
    if _depth(text) > _DEEPEST:
        return None
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_finite, parse_float=_finite)
    except ValueError:
        return None


def compact(value: Any) -> str:
    """JSON without blanks. Marks of thought and of calls are escaped, so that it is read again as it is, and halves of
    surrogate pairs, so that it can be written as UTF-8."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return _UNSAFE.sub(lambda unsafe: f"\\u{ord(unsafe[0]):04x}", text)


def calls(text: str) -> bool:
    """Whether a tool is called, readably or not."""
    return _between(spoken(text), "tool_call") != []


def tool_call(text: str) -> dict[str, Any] | None:
    """The one `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`."""
    found = _between(spoken(text), "tool_call") or []
    call = json_value(found[0]) if len(found) == 1 else None
    if not isinstance(call, dict):
        return None
    name, arguments = call.get("name"), call.get("arguments")
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None
    return {"name": name, "arguments": arguments}


def _only(found: Iterable[str] | None) -> str | None:
    """What all say, if it is not empty."""
    said = {one.strip() for one in found or ()}
    return (said.pop() or None) if len(said) == 1 else None


def _between(text: str, name: str) -> list[str] | None:
    """What stands between each `<name>` and its `</name>`; None if these do not take turns."""
    pieces = re.split(rf"(</?{re.escape(name)}>)", text)
    marks = pieces[1::2]
    if marks != [f"<{name}>", f"</{name}>"] * (len(marks) // 2):
        return None
    return pieces[2::4]


def _rating(mark: re.Match[str], high: float) -> float | None:
    value, of = float(mark[1]), 100.0 if mark[3] else float(mark[2] or 0)
    if not mark[2] and not mark[3]:
        return value
    return value / of * high if of > 0 else None


def _objects(text: str) -> Iterator[str]:
    """Whatever stands in balanced braces, outermost, in order; braces within strings do not count."""
    spans: list[tuple[int, int]] = []
    opened: list[int] = []
    at = text.find("{")
    for mark in _JSON_MARK.finditer(text, max(at, 0)) if at >= 0 else ():
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
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key is given twice")
    return made


def _finite(number: str) -> float:
    """`NaN` and the infinities come here as well as 1e999."""
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{number} is no JSON number")
    return value
