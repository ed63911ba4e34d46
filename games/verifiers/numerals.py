r"""Numerals in a stated base, such as 1010_2, (3F)_{16}, 0xFF and "202 (base 7)"."""

from __future__ import annotations

import re
from typing import NamedTuple

from marl.games.verifiers.latex_notation import plain_words

_NAMES = {
    **{"binary": 2, "octal": 8, "decimal": 10, "hexadecimal": 16, "hex": 16},
    **{"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10},
    **{"twelve": 12, "sixteen": 16},
}
_BASE = rf"(?:base[\s-]*(?P<base>[0-9]{{1,2}}|{'|'.join(_NAMES)})|(?P<name>binary|octal|decimal|hexadecimal|hex))\b"
_ASKED = re.compile(rf"\b(?:in|to|into|as(?:\san?)?)\s(?:the\s)?(?:\$\s?)?{_BASE}", re.I)
_MENTIONED = re.compile(rf"\b{_BASE}", re.I)
_DIGITS = r"[0-9A-Za-z]{1,200}"
_FORMS = (
    re.compile(rf"\(?\s*(?P<digits>{_DIGITS})\s*\)?\s*_\s*\{{?\s*\(?(?P<base>[0-9]{{1,2}}|[a-z]{{3,7}})\)?\s*\}}?"),
    re.compile(rf"(?P<digits>{_DIGITS})\s*,?\s*\(?\s*(?:in\s+)?{_BASE}\s*\)?", re.I),
)
_PREFIXED = re.compile(r"0(?P<prefix>[xbo])(?P<digits>[0-9a-fA-F]{1,200})")
_PREFIXES = {"b": 2, "o": 8, "x": 16}


class Numeral(NamedTuple):
    """Digits with the base in which they are written."""

    digits: str
    """Digits in capital letters."""
    base: int | None
    """Base, or None if the text states none."""


def matches_numeral(gold: str, answer: str, question: str) -> bool | None:
    """Return True if `answer` is the numeral `gold`, None if `gold` is none or if `answer` states no base.

    The base of `gold` is written beside its digits, or the question asks for it. An answer without a base is accepted
    if the question asks for the base.
    """
    right, asked = _read_numeral(gold), _asked_base(question)
    base = None if right is None else right.base or asked
    if right is None or base is None or not _has_digits_of(right.digits, base):
        return None
    stated = _read_numeral(answer)
    if base == 16 and (suffixed := re.fullmatch(r"([0-9A-Fa-f]+)h", answer.strip())):
        stated = Numeral(suffixed[1].upper(), 16)
    if stated is None:
        return None
    if stated.base is None:
        return True if asked == base and stated.digits == right.digits else None
    return stated == (right.digits, base)


def _read_numeral(text: str) -> Numeral | None:
    """Return the numeral that `text` states, or None for any other text."""
    if len(text) > 300:
        return None
    plain = plain_words(text).strip(" .")
    if prefixed := _PREFIXED.fullmatch(plain):
        return Numeral(prefixed["digits"].upper(), _PREFIXES[prefixed["prefix"]])
    if re.fullmatch(_DIGITS, plain):
        return Numeral(plain.upper(), None)
    for form in _FORMS:
        if match := form.fullmatch(plain):
            base = _base_of(match)
            return Numeral(match["digits"].upper(), base) if base and _has_digits_of(match["digits"], base) else None
    return None


def _asked_base(question: str) -> int | None:
    """Return the base in which `question` asks for an answer, or None if it asks for no base or names several."""
    if match := next(iter(reversed([*_ASKED.finditer(question)])), None):
        return _base_of(match)
    bases = {_base_of(match) for match in _MENTIONED.finditer(question)}
    return bases.pop() if len(bases) == 1 else None


def _base_of(match: re.Match[str]) -> int | None:
    """Return the base that a match names, or None if there is no such base."""
    named = match.groupdict()
    word = (named.get("base") or named.get("name") or "").lower()
    base = int(word) if word.isdecimal() else _NAMES.get(word, 0)
    return base if 2 <= base <= 36 else None


def _has_digits_of(digits: str, base: int) -> bool:
    """Return True if all `digits` belong to a numeral in `base`."""
    try:
        int(digits, base)
    except ValueError:
        return False
    return True
