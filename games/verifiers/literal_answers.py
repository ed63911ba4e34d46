"""Right answers that are compared as they are written: dates, scores, ranges, clock times, ratios, words, numerals."""

from __future__ import annotations

import re

from marl.games.verifiers.chemistry import is_letter_case_significant, matches_chemistry
from marl.games.verifiers.clock_times import is_same_time, read_clock_time
from marl.games.verifiers.dates import read_date
from marl.games.verifiers.days import matches_day
from marl.games.verifiers.latex_notation import plain_words
from marl.games.verifiers.numerals import matches_numeral
from marl.games.verifiers.python_values import matches_python_value
from marl.games.verifiers.rankings import matches_order
from marl.games.verifiers.scores import matches_pair

_DIFFERENCE = re.compile(r"[0-9]+(?:-[0-9]+)+|[0-9]{1,4}/[0-9]{1,2}/[0-9]{1,4}")
"""Date, score or range that could also be read as a difference or as a quotient."""
_SUM = re.compile(r"-?[0-9.]+(?:[-+][0-9.]+)+")
_LEADING_ZERO = re.compile(r"0[0-9]+")
"""String of digits, such as bits or a code, rather than a number."""
_WRITTEN_RANGE = re.compile(
    r"(?:from|pages?|pp?\.?|years?|ages?|days?|rows?|seiten?|s\.){0,2}([0-9]+)(?:to|through|thru|until|bis|-)"
    r"(?:pages?|seite)?([0-9]+)"
)
_LABELS = re.compile(
    r"\b(?:versions?|releases?|firmware|chapters?|sections?|paragraphs?|verses?|clauses?|IP address|blood pressure"
    r"|time signature|visual acuity|room number|licen[cs]e plate|phone number|post(?:al )?code|zip code)\b",
    re.I,
)
"""Questions for labels of digits with separators, such as version 1.10, which are no numbers."""
_LABEL = re.compile(r"v?[0-9]+(?:[./-][0-9]+)+")
_WORD = re.compile(r"[A-Za-z]{2,}")
_ASKS_FOR_ORDER = re.compile(
    r"\b(?:order|arrang\w+|permut\w+|sequence|pattern|strings?|words?|letters?|flips?|toss\w*|rank\w*|codes?|genotype"
    r"|anagram|seat\w*|line|path|route|queue)\b",
    re.I,
)
_SMALL_WORDS = frozenset(
    ["no", "on", "yes", "it", "is", "so", "or", "of", "to", "up", "top", "ten", "net", "odd", "one"]
)


def plain_spelling(text: str) -> str:
    """Return `text` without markup and spaces, with plain dashes, in lower case."""
    return re.sub(r"(?<=[0-9])-{2,3}(?=[0-9])", "-", plain_words(text).replace(" ", "")).casefold()


def note_on_misreading(gold: str) -> str:
    """Return a note on how `gold` could be misread as arithmetic and is compared, or "" if it cannot be misread."""
    plain = plain_spelling(gold)
    if _DIFFERENCE.fullmatch(plain):
        return "could be read as a difference or a quotient; it is compared letter by letter"
    return "is a sum of numbers; it is compared by its value" if _SUM.fullmatch(plain) else ""


def matches_literally(gold: str, answer: str, question: str) -> bool | None:
    """Return True if `answer` is written like `gold`, else False; None if `gold` may be written in other ways."""
    right, stated = plain_spelling(gold), plain_spelling(answer)
    if (limits := _WRITTEN_RANGE.fullmatch(stated)) and re.fullmatch(r"[0-9]+-[0-9]+", right):
        stated = f"{limits[1]}-{limits[2]}"
    if _LABEL.fullmatch(right) and _LABELS.search(question):
        return right.removeprefix("v") == re.sub(r"^v(?:ersion)?|mmhg$", "", stated)
    for matches in (matches_chemistry, matches_python_value):
        if (is_same := matches(gold, answer, question)) is not None:
            return is_same
    if (is_same_day := matches_day(gold, answer, question)) is not None:
        return is_same_day
    if (date := read_date(gold)) is not None:
        return date == read_date(answer) or right == stated
    if (is_same_pair := matches_pair(gold, answer, question)) is not None:
        return is_same_pair
    is_code = _LEADING_ZERO.fullmatch(right) and _ASKS_FOR_ORDER.search(question)
    if _DIFFERENCE.fullmatch(right) or is_code:
        return right == stated
    if right_time := read_clock_time(gold, question):
        stated_time = read_clock_time(answer, question)
        return stated_time is not None and is_same_time(right_time, stated_time)
    if (is_same_numeral := matches_numeral(gold, answer, question)) is not None:
        return is_same_numeral
    if matches_order(gold, answer, question) and (_ASKS_FOR_ORDER.search(question) or "outcome" in question):
        return True
    return _matches_word(gold, answer, question)


def _matches_word(gold: str, answer: str, question: str) -> bool | None:
    """Return True if two words are equal, None if `gold` is no word, or a product of declared letters."""
    right, stated = plain_words(gold), plain_words(answer)
    if not _WORD.fullmatch(right):
        return None
    must_be_literal = len(set(right)) < len(right) or bool(_ASKS_FOR_ORDER.search(question))
    if not _WORD.fullmatch(stated):
        return False if must_be_literal and right.isupper() else None
    letters = set(re.findall(r"(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])", question))
    declared = set(right) <= letters if question.strip() else right.islower() and right not in _SMALL_WORDS
    if declared and not must_be_literal:
        return None
    is_cased = is_letter_case_significant(right, question) or right not in (
        right.lower(),
        right.upper(),
        right.capitalize(),
    )
    return stated == right if is_cased else stated.casefold() == right.casefold()
