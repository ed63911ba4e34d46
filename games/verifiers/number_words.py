"""Reading of numbers in words: English ("two and a half") and Chinese ("百分之五十")."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "lakh": 10**5, "crore": 10**7}
_SMALL_NAMES = """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
    eighteen nineteen
"""
_SMALL = {name: value for value, name in enumerate(_SMALL_NAMES.split())}
_TENS_NAMES = "twenty thirty forty fifty sixty seventy eighty ninety"
_TENS = {name: 10 * n for n, name in enumerate(_TENS_NAMES.split(), 2)}
_ORDINALS = """
    fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth fifteenth sixteenth
    seventeenth eighteenth nineteenth
"""
_DENOMINATORS = {name + plural: n for n, name in enumerate(_ORDINALS.split(), 4) for plural in ("", "s")}
_CARDINALS = {name: list(_SMALL)[n] for n, name in enumerate(_ORDINALS.split(), 4)}
_CARDINALS |= {"first": "one", "second": "two", "third": "three", "hundredth": "hundred", "thousandth": "thousand"}
_CARDINALS |= {name.removesuffix("y") + "ieth": name for name in _TENS}
"""Ordinal -> cardinal number."""
_DENOMINATORS |= {"half": 2, "halves": 2, "third": 3, "thirds": 3, "quarter": 4, "quarters": 4, "twentieth": 20}
_DENOMINATORS |= {"twentieths": 20, "hundredth": 100, "hundredths": 100, "thousandth": 1000, "thousandths": 1000}
_MAX_WORDS = 30
"""Maximum number of words in a text that is read as a number; a longer text is no number."""


class Quantity(NamedTuple):
    """The number at the beginning of a text, and the text after the number, such as a unit."""

    value: Fraction
    """Exact value of the number."""
    following_text: str
    terms: tuple[int, int] | None = None
    """Numerator and denominator of a number written as a fraction, or None for any other notation."""


def read_words(text: str) -> Quantity | None:
    """Return the number in English words at the beginning of `text` with the text after the number, or None."""
    if not text.lstrip()[:1].isalpha():
        return None
    tokens = re.findall(r"[^\s-]+", text.lower())
    if len(tokens) > _MAX_WORDS:
        return None
    sign = -1 if tokens[0] in ("minus", "negative") else 1
    reader = _WordReader(tokens[sign < 0 :])
    value = reader.read_number()
    return None if value is None else Quantity(sign * value, " ".join(reader.tokens))


def read_ordinal(text: str) -> int | None:
    """Return the number of an ordinal in English words, such as "twenty-first" or "hundredth", or None."""
    *before, last = re.findall(r"[a-z]+", text.lower()) or [""]
    cardinal = _CARDINALS.get(last)
    quantity = read_words(" ".join([*before, cardinal])) if cardinal else None
    is_ordinal = quantity is not None and not quantity.following_text and quantity.value.denominator == 1
    return int(quantity.value) if quantity is not None and is_ordinal else None


class _WordReader:
    """Recursive-descent parser of number words; it removes the words that it reads from the front of `tokens`."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens

    def read_number(self) -> Fraction | None:
        """Read a number with its fraction or decimals, or return None if no number comes next."""
        if self._skip_words("a", "dozen") or self._skip_words("one", "dozen"):
            return Fraction(12)
        fraction = self._read_unit_fraction()
        if fraction is not None:
            # An article after a fraction belongs to the unit, as in "half an hour" and "a quarter of a mile".
            _ = self._skip_words("of", "a") or self._skip_words("an") or self._skip_words("a")
            return fraction
        if self.tokens[:1] == ["a"] and self.tokens[1:2] and self.tokens[1] in ("hundred", *SCALES):
            self.tokens[0] = "one"
        cardinal = self._read_cardinal()
        if cardinal is None:
            return None
        denominator = self._take_word_in(_DENOMINATORS)  # for example "quarters" in "three quarters"
        if denominator is not None:
            return cardinal / denominator
        if not self._skip_words("point"):
            return cardinal + self._read_fraction_after_and()
        place_value = Fraction(1, 10)
        while self.tokens and _SMALL.get(self.tokens[0], 10) < 10:
            cardinal, place_value = cardinal + place_value * _SMALL[self.tokens.pop(0)], place_value / 10
        return cardinal

    def _skip_words(self, *words: str) -> bool:
        """Remove `words` and return True if they come next, else return False."""
        if tuple(self.tokens[: len(words)]) != words:
            return False
        del self.tokens[: len(words)]
        return True

    def _take_word_in(self, table: dict[str, int]) -> int | None:
        """Remove the next word and return its value in `table`; if it is not in `table`, keep it and return None."""
        return table[self.tokens.pop(0)] if self.tokens and self.tokens[0] in table else None

    def _read_unit_fraction(self) -> Fraction | None:
        """Read a fraction with numerator 1, such as "half" or "a third", or return None if none comes next."""
        article = bool(self.tokens) and self.tokens[0] == "a"
        if len(self.tokens) > article and self.tokens[article] in _DENOMINATORS:
            fraction = Fraction(1, _DENOMINATORS[self.tokens[article]])
            del self.tokens[: article + 1]
            return fraction
        return None

    def _read_fraction_after_and(self) -> Fraction:
        """Read a fraction such as "and a half" or "and two thirds"; if none comes next, return 0 and read nothing."""
        tokens_before = list(self.tokens)
        if self._skip_words("and"):
            fraction = self._read_unit_fraction()
            if fraction is None and (count := self._read_cardinal()) is not None:
                denominator = self._take_word_in(_DENOMINATORS)
                fraction = None if denominator is None else count / denominator
            if fraction is not None and fraction < 1:
                return fraction
        self.tokens[:] = tokens_before
        return Fraction(0)

    def _read_cardinal(self) -> Fraction | None:
        """Read a cardinal number as groups below 1000 with falling scales, or return None if none comes next."""
        total, below = None, 10**15
        while (group := self._read_below_100()) is not None:
            if self._skip_words("hundred"):
                self._skip_and_before_number()
                group = 100 * group + (self._read_below_100() or 0)
            scale = self._take_word_in(SCALES) or 1
            if scale >= below:
                return None  # scales must decrease from left to right, so "two thousand three million" is no number
            total, below = (total or 0) + group * scale, scale
            if scale == 1:
                break
            self._skip_and_before_number()
        return None if total is None else Fraction(total)

    def _read_below_100(self) -> int | None:
        """Read a number below 100, or return None if none comes next."""
        tens = self._take_word_in(_TENS)
        if tens is None:
            return self._take_word_in(_SMALL)
        if self.tokens and 0 < _SMALL.get(self.tokens[0], 0) < 10:
            return tens + _SMALL[self.tokens.pop(0)]
        return tens

    def _skip_and_before_number(self) -> None:
        """Skip the "and" of "one hundred and five", but not that of "one hundred and a half"."""
        if len(self.tokens) > 1 and self.tokens[0] == "and" and self.tokens[1] in _SMALL | _TENS:
            following = self.tokens[2:3]
            if not (following and following[0] in _DENOMINATORS):
                del self.tokens[0]


CHINESE_SCALES = {"万": 10**4, "亿": 10**8}
_DIGITS = {numeral: value for value, numeral in enumerate("零一二三四五六七八九")}
_DIGITS |= {"\u3007": 0, "两": 2, "壹": 1, "贰": 2, "叁": 3, "肆": 4, "伍": 5, "陆": 6, "柒": 7, "捌": 8, "玖": 9}
_TO_ASCII = str.maketrans({numeral: str(digit) for numeral, digit in _DIGITS.items()})
_POWERS_OF_TEN = {"十": 10, "百": 100, "千": 1000, "拾": 10, "佰": 100, "仟": 1000}
_NUMERALS = "".join([*_DIGITS, *_POWERS_OF_TEN, *CHINESE_SCALES])
_CHINESE = re.compile(
    rf"(?P<minus>负)?(?:(?P<percent>百分之)(?P<share>[{_NUMERALS}]+(?:点[{_NUMERALS}]+)?|半)"
    rf"|(?:(?P<whole>[{_NUMERALS}]+)又)?(?P<under>[{_NUMERALS}]+)分之(?P<over>[{_NUMERALS}]+)"
    rf"|(?P<number>[{_NUMERALS}]+(?:点[{_NUMERALS}]+)?)(?P<half>半)?)(?P<rest>.*)",
    re.S,
)


def read_chinese(text: str) -> Quantity | None:
    """Return the number in Chinese numerals at the beginning of `text` with the text after the number, or None."""
    match = _CHINESE.fullmatch(text)
    if match is None or len(text) > 10 * _MAX_WORDS or match["half"]:
        return None  # 三半 is ambiguous: it may mean three and a half, or three halves
    if match["percent"] or match["number"]:
        numerals, _, decimals = (match["share"] or match["number"]).partition("点")
        integer = _chinese_integer(numerals)
        if integer is None or not _DIGITS.keys() >= set(decimals):
            return None
        value = integer + Fraction(int(decimals.translate(_TO_ASCII) or 0), 10 ** len(decimals))
        value = value / 100 if match["percent"] else value
    else:
        integer, denominator = _chinese_integer(match["whole"] or "零"), _chinese_integer(match["under"])
        numerator = _chinese_integer(match["over"])
        if integer is None or not denominator or numerator is None:
            return None
        value = integer + Fraction(numerator, denominator)
    return Quantity(-value if match["minus"] else value, match["rest"].strip())


def _chinese_integer(text: str) -> int | None:
    """Return the value of numerals with powers of ten ("三百零五") or digit by digit ("二〇二四").

    None if the numerals form no number, for example because their powers of ten do not fall.
    """
    if len(text) > 1 and _DIGITS.keys() >= set(text):
        return int(text.translate(_TO_ASCII)) if _DIGITS[text[0]] else None
    for numeral, scale in reversed(CHINESE_SCALES.items()):
        above, mark, below = text.partition(numeral)
        if mark:
            factor, remainder = _chinese_integer(above), _chinese_integer(below) if below else 0
            return None if factor is None or remainder is None else factor * scale + remainder
    # Here, `text` gives a number up to 9999. `pending`: the last digit has no power of ten (such as 十) yet.
    value, digit, below, pending = 0, 1, 10**4, False
    for numeral in text:
        if numeral in _DIGITS:
            if pending and digit:
                return None
            digit, pending = _DIGITS[numeral], True
        else:
            power = _POWERS_OF_TEN.get(numeral, below)
            if power >= below:
                return None
            value, below, digit, pending = value + digit * power, power, 1, False
    return value + digit if pending else value
