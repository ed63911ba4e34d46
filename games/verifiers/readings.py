"""Further readings of a text whose plain reading is no right answer: a sentence, an object of JSON, several boxes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

from marl.games.verifiers.answer_statements import find_statements
from marl.games.verifiers.closed_form import exact_value, is_fully_evaluated
from marl.games.verifiers.definitions import with_defined_symbols
from marl.games.verifiers.formulas import Formula, read_formula
from marl.games.verifiers.sentences import readings_of_sentence
from marl.games.verifiers.tokens import UnreadableFormulaError
from marl.text.answers import drop_retracted_answers, drop_uncertain_answers, find_latex_boxes
from marl.text.json_text import parse_strict_json

_KEYS = ("answer", "final_answer", "final answer", "result", "solution")
_EXPLANATIONS = frozenset(
    ["reasoning", "reason", "explanation", "steps", "work", "thought", "thoughts", "justification", "rationale"]
)
"""Keys of a JSON answer whose values explain the answer and state no other one."""
_FENCE = re.compile(r"```(?:[a-z]{1,12})?\s*\n(.*?)\n\s*```", re.S)
_JOINT = re.compile(
    r"(?:[\s$.,;]|\\[,;: ]|\\q?quad\b|\\text\s*\{\s*(?:and|or|,)?\s*\}|\b(?:and|or|und|et|y|e)\b)*"
    r"(?P<name>[A-Za-z](?:_\{?\w\}?)?\s*=\s*)?\$?\s*"
)
_NAME = re.compile(r"(?P<name>[A-Za-z](?:_\{?\w\}?)?\s*=)\s*\$?\s*$")
_OTHER_VALUE = r"(?:-?\d[\d.,/]*|[A-Z]|\$[^$]{1,40}\$)"
_CONTRAST = re.compile(
    rf"(.{{1,80}}?),?\s\(?(?:and\s|but\s)?not\s{_OTHER_VALUE}\)?|[Nn]ot\s{_OTHER_VALUE},?\sbut\s(?:rather\s)?([^\s,;]{{1,40}})",
    re.S,
)
"""An answer beside a value that it is not: "42, not 41", "not 14 but 15"."""
_ADJECTIVE = re.compile(
    r"(\D{0,3}\d.{0,40}?)\s(?:long|wide|high|tall|deep|old|thick|apart|away|large|in\s(?:total|all)|altogether|on\saverage)$"
)
"""Quantity with an adjective behind it: "12 cm long"."""
_MAX_BOXES = 8
_MAX_STEPS, _MAX_CALCULATION = 4, 200
_PLAIN_SIGNS = str.maketrans("\u00d7\u00b7\u00f7\u2212", "**/-")
_ARITHMETIC = re.compile(
    r"\d.*(?:[-+*/^√]|\\(?:cdot|times|div|frac|dfrac|tfrac|sqrt|binom)\b).*\d|\\[dt]?frac\s*\{?\d|\d\s?!|√\d", re.S
)
_QUANTITY_NAME = re.compile(r"\$?\\?[A-Za-z]{1,12}(?:_\{?\w{1,3}\}?)?(?:\s?\([^()=]{1,20}\))?")
"""Name of the result before a calculation, such as A, f(7) or P(red)."""


def readings_of_text(text: str, answers: Sequence[str], question: str) -> Iterator[str]:
    """Yield further answers that `text` may state, of which one must be right for the text to be right.

    Args:
        answers: answers that were read from the text by the usual rules.
    """
    if len(answers) > 1 and (joined := _joined_boxes(text)):
        yield joined
    if len(answers) != 1:
        return
    if defined := with_defined_symbols(answers[0], text):
        yield defined
    if trimmed := _ADJECTIVE.match(answers[0]):
        yield trimmed[1]
    if result := result_of_calculation(answers[0], question):
        yield result
    if contrast := _CONTRAST.fullmatch(answers[0]):
        yield contrast[1] or contrast[2]
    if (value := _value_in_json(text)) is not None:
        yield value
    elif find_statements(text) is None:
        yield from readings_of_sentence(text, question)


def result_of_calculation(text: str, question: str) -> str:
    """Return the last side of a calculation such as 3 * 25 = 75, or "" if a side has another value or is no arithmetic.

    Sides with letters or units, as in "180 km / 2 h = 90 km/h", are not worked out. Without a question, other than
    evaluated sides such as that of 3/40 = 0.075 could be copied from it.
    """
    if "=" not in text and "\u2248" not in text:
        return ""
    *steps, last = re.split(r"=|≈", text.translate(_PLAIN_SIGNS)) if len(text) <= _MAX_CALCULATION else [""]
    if not 0 < len(steps) <= _MAX_STEPS or not re.search(r"\d", last) or re.search(r"[,;]\s", text):
        return ""
    result = _exact_value(last)
    for step in steps:
        value = _exact_value(step)
        is_name = len(steps) > 1 and result is not None and _QUANTITY_NAME.fullmatch(step.strip())
        if step.strip() == last.strip() or (not is_name and not _ARITHMETIC.search(step)):
            return ""
        if not question.strip() and not _is_evaluated(step):
            return ""
        if value is not None and (result is None or abs(value - result) > _last_digit_of(last) / 2):
            return ""
    return last.strip()


def _is_evaluated(text: str) -> bool:
    """Return True if `text` is a number that leaves no arithmetic, such as 3/40."""
    try:
        formula = read_formula(text.strip(" $"))
    except UnreadableFormulaError:
        return False
    return is_fully_evaluated(formula, Formula("number", value=formula.value))


def _exact_value(text: str) -> Fraction | None:
    try:
        return exact_value(read_formula(text.strip(" $")))
    except UnreadableFormulaError:
        return None


def _last_digit_of(text: str) -> Fraction:
    """Return the unit of the last decimal in `text`, of which a rounded result has half as its error; 0 if none."""
    decimals = re.search(r"\d\.(\d+)\s*$", text.strip(" $"))
    return Fraction(1, 10 ** len(decimals[1])) if decimals else Fraction(0)


def _joined_boxes(text: str) -> str:
    r"""Return several boxes as one list, or "" if words other than "and" or "or" lie between them.

    The names before the boxes, as in a = \boxed{3}, b = \boxed{4}, belong to the list.
    """
    boxes = find_latex_boxes(text)
    if not 1 < len(boxes) <= _MAX_BOXES or len(drop_retracted_answers(text, drop_uncertain_answers(text, boxes))) < len(
        boxes
    ):
        return ""
    first = _NAME.search(text[: boxes[0].start])
    items = [f"{first['name'] if first else ''}{boxes[0].content}"]
    for before, box in pairwise(boxes):
        joint = _JOINT.fullmatch(text[before.end : box.start])
        if joint is None:
            return ""
        items.append(f"{joint['name'] or ''}{box.content}")
    return ", ".join(items) if all(box.content for box in boxes) else ""


def _value_in_json(text: str) -> str | None:
    """Return the answer in an object of JSON, such as 17 in {"answer": 17}, or None if `text` is no such object."""
    block = _FENCE.fullmatch(text.strip())
    plain = (block[1] if block else text).strip()
    if not (plain.startswith("{") and plain.endswith("}")):
        return None
    try:
        value: Any = parse_strict_json(plain)
    except ValueError:
        return None
    keys = [key for key in value if key.lower() in _KEYS] if isinstance(value, dict) else []
    is_plain = len(keys) == 1 and {key.lower() for key in value} - {keys[0].lower()} <= _EXPLANATIONS
    stated = value[keys[0]] if is_plain else None
    return str(stated) if isinstance(stated, str | int | float) and not isinstance(stated, bool) else None
