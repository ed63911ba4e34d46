"""Dates in digits, whose order of day, month and year the question tells: 12/05 for "dd/mm" is 12 May."""

from __future__ import annotations

import re
from typing import NamedTuple

from marl.games.verifiers.dates import month_number
from marl.games.verifiers.latex_notation import plain_words

_FORMAT = re.compile(r"\b(dd?|mm?|y{2,4})([/.\-])(dd?|mm?)(?:\2(dd?|mm?|y{2,4}))?(?![a-z])", re.I)
"""Order of the parts of a date, such as dd/mm or MM-DD-YYYY."""
_ASKS_FOR_DATE = re.compile(r"\b(?:dates?|birthday|which day of the (?:month|year)|Datum|fecha|data)\b", re.I)
_DIGITS = re.compile(r"([0-9]{1,4})([/.\-])([0-9]{1,2})(?:\2([0-9]{2,4}))?\.?")
_WORDS = (
    re.compile(
        r"(?:on\s)?(?:the\s)?(?P<d>[0-9]{1,2})(?:st|nd|rd|th|er|\.)?\s(?:of\s|de\s)?(?P<m>[^\W\d_]{3,10})\.?(?:,?\s(?P<y>[0-9]{4}))?",
        re.I,
    ),
    re.compile(
        r"(?:on\s)?(?P<m>[^\W\d_]{3,10})\.?\s(?:the\s)?(?P<d>[0-9]{1,2})(?:st|nd|rd|th)?(?:,?\s(?P<y>[0-9]{4}))?", re.I
    ),
)


class Day(NamedTuple):
    """Day, month and year of a date, each None if the text lacks it or its position is ambiguous."""

    day: int | None
    month: int | None
    year: int | None
    parts: tuple[int, ...] = ()
    """Numbers in the order of the text if the question tells no order, else ()."""


def matches_day(gold: str, answer: str, question: str) -> bool | None:
    """Return True if two dates are equal, None if `gold` is no date, or one in digits for which no question asks."""
    if (written := _parse_date_with_month_name(gold)) is not None and written.year is None:
        return written == _parse_date_with_month_name(answer)
    if not _DIGITS.fullmatch(plain_words(gold)):
        return None
    order = _FORMAT.search(question)
    if not order and not _ASKS_FOR_DATE.search(question):
        return None
    parts = tuple(part[0].lower() for part in (order[1], order[3], order[4]) if part) if order else ()
    right = _read_day(gold, parts)
    return None if right is None else right == _read_day(answer, parts)


def _read_day(text: str, order: tuple[str, ...]) -> Day | None:
    """Return the date that `text` states in words, or in digits in the `order` of d, m and y; else None."""
    if len(text) > 60:
        return None
    plain = plain_words(text)
    if match := _DIGITS.fullmatch(plain):
        numbers = tuple(int(number) for number in (match[1], match[3], match[4]) if number)
        if not order:
            return Day(None, None, None, numbers) if numbers[0] < 100 else None
        if len(numbers) != len(order):
            return None
        named = dict(zip(order, numbers, strict=True))
        return _valid_day(named.get("d"), named.get("m"), named.get("y"))
    return _parse_date_with_month_name(text) if order else None


def _parse_date_with_month_name(text: str) -> Day | None:
    """Return the date whose month `text` names in words, or None for any other text."""
    words = next(filter(None, (form.fullmatch(plain_words(text).strip(" .")) for form in _WORDS)), None)
    if words is None or not (month := month_number(words["m"])):
        return None
    return _valid_day(int(words["d"]), month, int(words["y"]) if words["y"] else None)


def _valid_day(day: int | None, month: int | None, year: int | None) -> Day | None:
    is_valid = (day is None or 1 <= day <= 31) and (month is None or 1 <= month <= 12)
    return Day(day, month, year) if is_valid else None
