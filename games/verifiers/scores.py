"""Pairs of numbers: ratios, which may be reduced, and scores and records, in which both numbers count as written."""

from __future__ import annotations

import re
from fractions import Fraction
from math import gcd

from marl.games.verifiers.latex_notation import plain_words

ASKS_FOR_RATIO = re.compile(r"\b(?:ratios?|proportions?|odds|scale|Verhältnis|rapport|razón|razão)\b", re.I)
_ASKS_FOR_LOWEST_TERMS = re.compile(r"\b(?:simpl\w+|reduced?|lowest terms|coprime|relatively prime|kürz\w+)\b", re.I)
_ASKS_FOR_SCORE = re.compile(
    r"\b(?:scores?|records?|win-loss|wins and losses|goals?|final result|result of the (?:match|game)"
    r"|(?:write|give|state) the result|Ergebnis"
    r"|Spielstand|marcador|resultado)\b",
    re.I,
)
_PAIR = re.compile(r"([0-9]+)(?:\s*[-:]\s*|\s+to\s+)([0-9]+)")
_RATIO = re.compile(
    r"(?:[A-Za-z](?::[A-Za-z])+\s*=\s*)?([0-9]+(?:\.[0-9]+)?(?:(?:\s*:\s*|\s+to\s+)[0-9]+(?:\.[0-9]+)?)+)"
)
_FRACTION = re.compile(r"([0-9]+\s*/\s*[0-9]+)")
_RESULTS = re.compile(
    r"([0-9]+)\s+(?:wins?|victories|won|goals?|points?)\s*(?:,|and|,\s*and|to)\s+([0-9]+)\s+(?:loss(?:es)?|defeats?|lost|goals?|points?)",
    re.I,
)
_CHANCE = re.compile(r"\b(?:probabilit\w+|chances?|likel\w+|fraction|proportion|odds)\b", re.I)
_ONE_IN = re.compile(r"\s*([0-9][0-9,]*)\s+(?:in|out\s+of)\s+([0-9][0-9,]*)\s*", re.I)


def matches_pair(gold: str, answer: str, question: str) -> bool | None:
    """Return True if a ratio or score is equal to `gold`, None if `gold` or the question is of another kind."""
    right, stated = _plain(gold), _plain(answer)
    if (ratio := _RATIO.fullmatch(right)) and ASKS_FOR_RATIO.search(question):
        other = _RATIO.fullmatch(stated.rpartition("=")[2].strip()) or _FRACTION.fullmatch(stated)
        return None if other is None else _is_same_ratio(ratio[1], other[1], question)
    if (score := _PAIR.fullmatch(right)) and _ASKS_FOR_SCORE.search(question):
        other = _PAIR.fullmatch(stated) or _RESULTS.fullmatch(stated)
        return other is not None and score.groups() == other.groups()
    return None


def with_fraction_for_chance(text: str, question: str) -> str:
    """Return "1/1024" for "1 in 1024" or "1 out of 1024" if `question` asks for a probability, else `text`."""
    chance = _ONE_IN.fullmatch(text) if " in " in text or " of " in text else None
    return f"{chance[1]}/{chance[2]}" if chance and _CHANCE.search(question) else text


def _plain(text: str) -> str:
    return plain_words(text).strip(" .")


def _is_same_ratio(gold: str, answer: str, question: str) -> bool:
    """Return True for equal ratios. An answer may be reduced; it must be so if the question asks for lowest terms."""
    separator = r"\s*[:/]\s*|\s+to\s+"
    right, stated = ([Fraction(number) for number in re.split(separator, text)] for text in (gold, answer))
    if right == stated:
        return True
    if len(right) != len(stated) or any(number == 0 for number in (*right, *stated)):
        return False
    is_reduced = all(number.denominator == 1 for number in stated) and gcd(*map(int, stated)) == 1
    if not is_reduced:
        # An answer that is not in lowest terms may be copied from the question.
        numbers = set(re.findall(r"[0-9]+(?:\.[0-9]+)?", question))
        if _ASKS_FOR_LOWEST_TERMS.search(question) or {str(number) for number in stated} <= numbers:
            return False
    return len({number / other for number, other in zip(right, stated, strict=True)}) == 1
