"""Times of the day: 14:30, 2:30 PM, 14h30, half past two."""

from __future__ import annotations

import re
from typing import NamedTuple

from marl.games.verifiers.latex_notation import plain_words
from marl.games.verifiers.number_words import read_words
from marl.games.verifiers.scores import ASKS_FOR_RATIO

_CLOCK = re.compile(
    r"(?:at\s)?([0-9]{1,2})(?:(?::|\s?h\s?(?=[0-5]\d)|\.(?=[0-5]\d\s?(?:uhr|[ap]\.?m)))([0-5][0-9]))?(?::([0-5][0-9]))?\s*"
    r"(a\.?\s?m\.?|p\.?\s?m\.?|noon|midnight|uhr|h|o'clock)?",
    re.I,
)
_IN_WORDS = re.compile(
    r"(?:at\s)?(?:(?:a\s)?(half|quarter|[a-z]+|\d{1,2})(?:\sminutes)?\s(past|after|to|before)\s)([a-z]+|\d{1,2})"
    r"(?:\s(a\.?m\.?|p\.?m\.?|in the (?:morning|afternoon|evening)|at night))?",
    re.I,
)
_ASKS = re.compile(r"\b(?:time|when|clock|o'clock|hour|Uhr|heure|hora)\b", re.I)


class ClockTime(NamedTuple):
    """A time of the day."""

    seconds: int
    """Seconds after midnight, or after noon or midnight if the text does not say which."""
    is_marked: bool
    """True if the text says which half of the day is meant."""


def read_clock_time(text: str, question: str) -> ClockTime | None:
    """Return the time of the day that `text` states, or None for a ratio and any other text."""
    plain = " ".join(plain_words(text).replace("~", " ").split())
    if (words := _IN_WORDS.fullmatch(plain)) and _ASKS.search(question):
        return _time_in_words(words)
    match = _CLOCK.fullmatch(plain)
    if match is None or not (match[2] or match[4]) or ASKS_FOR_RATIO.search(question):
        return None
    if not match[4] and not _ASKS.search(question):
        return None
    hour, mark = int(match[1]), re.sub(r"[\s.]", "", match[4] or "").lower()
    if mark in ("am", "pm", "noon", "midnight"):
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if mark in ("pm", "noon") else 0)
    elif mark == "h" and not match[2]:
        return None  # "5 h" is a duration, not a time of day
    if hour > 24:
        return None
    seconds = 3600 * hour + 60 * int(match[2] or 0) + int(match[3] or 0)
    return ClockTime(seconds, mark in ("am", "pm", "noon", "midnight", "uhr") or hour >= 13 or match[1][0] == "0")


def _time_in_words(match: re.Match[str]) -> ClockTime | None:
    """Return the time in a match of "quarter past three". The half of the day stays unknown for 10 past 3."""
    named = {"half": 30, "quarter": 15}.get(match[1].lower())
    minutes = _number(match[1]) if named is None else named
    hour, is_past = _number(match[3]), match[2].lower() in ("past", "after")
    if minutes is None or hour is None or not (0 < minutes < 60 and 1 <= hour <= 12) or (named == 30 and not is_past):
        return None
    mark = re.sub(r"[\s.]", "", match[4] or "").lower()
    is_late = mark in ("pm", "intheafternoon", "intheevening", "atnight")
    seconds = 3600 * (hour % 12 + 12 * is_late if mark else hour) + 60 * (minutes if is_past else -minutes)
    return ClockTime(seconds % 86400, bool(mark))


def _number(word: str) -> int | None:
    if word.isdecimal():
        return int(word)
    number = read_words(word)
    return None if number is None or number.following_text or number.value.denominator > 1 else int(number.value)


def is_same_time(gold: ClockTime, answer: ClockTime) -> bool:
    """Return True for equal times. 3:45 is not accepted for 3:45 PM, but 10:30 AM is for 10:30."""
    return gold.seconds == answer.seconds and (answer.is_marked or not gold.is_marked)
