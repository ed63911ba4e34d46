"""Numbers in English words: "minus one hundred and five", "two and a half", "three point one four", "one third"."""

from __future__ import annotations

import re
from fractions import Fraction

_NAMES = """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
    eighteen nineteen
"""
_UNITS = {name: value for value, name in enumerate(_NAMES.split())}
_TENS_NAMES = "twenty thirty forty fifty sixty seventy eighty ninety"
_TENS = {name: 10 * n for n, name in enumerate(_TENS_NAMES.split(), 2)}
SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_PARTS = {
    name: n
    for n, names in {
        2: "half halves",
        3: "third thirds",
        4: "quarter quarters fourth fourths",
        5: "fifth fifths",
        6: "sixth sixths",
        7: "seventh sevenths",
        8: "eighth eighths",
        9: "ninth ninths",
        10: "tenth tenths",
        100: "hundredth hundredths",
        1000: "thousandth thousandths",
    }.items()
    for name in names.split()
}
_LONGEST = 30


def read_words(text: str) -> tuple[Fraction, str] | None:
    """The number that `text` begins with and the words after it; None if it begins with none."""
    tokens = re.findall(r"[^\s-]+", text.lower())
    if not tokens or len(tokens) > _LONGEST:
        return None
    sign = -1 if tokens[0] in ("minus", "negative") else 1
    reader = _Reader(tokens[sign < 0 :])
    value = reader.number()
    return None if value is None else (sign * value, " ".join(reader.tokens))


class _Reader:
    """Takes number words off the front of a list."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens

    def number(self) -> Fraction | None:
        if self._next("a", "dozen") or self._next("one", "dozen"):
            return Fraction(12)
        alone = self._part(1)
        if alone is not None:
            # "half an hour", "a quarter of a mile"
            _ = self._next("of", "a") or self._next("an") or self._next("a")
            return alone
        if self.tokens[:1] == ["a"] and self.tokens[1:2] and self.tokens[1] in ("hundred", *SCALES):
            self.tokens[0] = "one"
        whole = self._cardinal()
        if whole is None:
            return None
        part = self._parts_of(whole)
        if part is not None:
            return part
        return whole + self._decimals() if self._next("point") else whole + self._and_a_part()

    def _next(self, *words: str) -> bool:
        found = tuple(self.tokens[: len(words)]) == words
        if found:
            del self.tokens[: len(words)]
        return found

    def _take(self, table: dict[str, int]) -> int | None:
        return table[self.tokens.pop(0)] if self.tokens and self.tokens[0] in table else None

    def _part(self, at: int) -> Fraction | None:
        """ "half", "a third"."""
        article = bool(self.tokens) and self.tokens[0] == "a"
        if len(self.tokens) > article and self.tokens[article] in _PARTS:
            part = Fraction(at, _PARTS[self.tokens[article]])
            del self.tokens[: article + 1]
            return part
        return None

    def _parts_of(self, many: Fraction) -> Fraction | None:
        """ "three quarters", when three has been read."""
        below = self._take(_PARTS)
        return None if below is None else many / below

    def _and_a_part(self) -> Fraction:
        """ "... and a half", "... and two thirds"; 0 if nothing like it follows."""
        before = list(self.tokens)
        if self._next("and"):
            part = self._part(1)
            if part is None and (many := self._cardinal()) is not None:
                part = self._parts_of(many)
            if part is not None and part < 1:
                return part
        self.tokens[:] = before
        return Fraction(0)

    def _decimals(self) -> Fraction:
        value, place = Fraction(0), Fraction(1, 10)
        while self.tokens and _UNITS.get(self.tokens[0], 10) < 10:
            value, place = value + place * _UNITS[self.tokens.pop(0)], place / 10
        return value

    def _cardinal(self) -> Fraction | None:
        total, below = None, 10**15
        while (group := self._below_1000()) is not None:
            scale = self._take(SCALES) or 1
            if scale >= below:
                return None
            total, below = (total or 0) + group * scale, scale
            if scale == 1:
                break
            self._and_a_number()
        return None if total is None else Fraction(total)

    def _below_1000(self) -> int | None:
        value = self._below_100()
        if value is not None and self._next("hundred"):
            self._and_a_number()
            value = 100 * value + (self._below_100() or 0)
        return value

    def _below_100(self) -> int | None:
        tens = self._take(_TENS)
        if tens is None:
            return self._take(_UNITS)
        ones = 0 < _UNITS.get(self.tokens[0], 0) < 10 if self.tokens else False
        return tens + (_UNITS[self.tokens.pop(0)] if ones else 0)

    def _and_a_number(self) -> None:
        """Skip the "and" of "one hundred and five"; not that of "one hundred and a half"."""
        if len(self.tokens) > 1 and self.tokens[0] == "and" and self.tokens[1] in _UNITS | _TENS:
            following = self.tokens[2:3]
            if not (following and following[0] in _PARTS):
                del self.tokens[0]
