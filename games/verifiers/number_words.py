"""Reading of numbers in words: English ("two and a half") and Chinese ("百分之五十")."""

from __future__ import annotations

import re
from fractions import Fraction

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
_PARTS = {name + plural: n for n, name in enumerate(_ORDINALS.split(), 4) for plural in ("", "s")}
_PARTS |= {"half": 2, "halves": 2, "third": 3, "thirds": 3, "quarter": 4, "quarters": 4, "twentieth": 20}
_PARTS |= {"twentieths": 20, "hundredth": 100, "hundredths": 100, "thousandth": 1000, "thousandths": 1000}
_MAX_WORDS = 30
"""Maximum number of words of a text that is read as a number."""


def read_words(text: str) -> tuple[Fraction, str] | None:
    """Return the number in English words at the beginning of `text` and the text after it, or None without a number."""
    tokens = re.findall(r"[^\s-]+", text.lower())
    if not tokens or len(tokens) > _MAX_WORDS or text.lstrip().startswith("-"):
        return None
    sign = -1 if tokens[0] in ("minus", "negative") else 1
    reader = _WordReader(tokens[sign < 0 :])
    value = reader.number()
    return None if value is None else (sign * value, " ".join(reader.tokens))


class _WordReader:
    """Recursive descent over number words, removed from the front of `tokens`."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens

    def number(self) -> Fraction | None:
        """Read a number with its fraction or decimals, or return None if none comes next."""
        if self._skip("a", "dozen") or self._skip("one", "dozen"):
            return Fraction(12)
        part = self._part()
        if part is not None:
            # The article belongs to the unit: "half an hour", "a quarter of a mile".
            _ = self._skip("of", "a") or self._skip("an") or self._skip("a")
            return part
        if self.tokens[:1] == ["a"] and self.tokens[1:2] and self.tokens[1] in ("hundred", *SCALES):
            self.tokens[0] = "one"
        cardinal = self._cardinal()
        if cardinal is None:
            return None
        denominator = self._take(_PARTS)  # "quarters" in "three quarters"
        if denominator is not None:
            return cardinal / denominator
        return cardinal + (self._decimals() if self._skip("point") else self._and_a_part())

    def _skip(self, *words: str) -> bool:
        """Remove `words` if they come next, and return whether they did."""
        if tuple(self.tokens[: len(words)]) != words:
            return False
        del self.tokens[: len(words)]
        return True

    def _take(self, table: dict[str, int]) -> int | None:
        """Remove the next word and return its value in `table`, or None if it is not in `table`."""
        return table[self.tokens.pop(0)] if self.tokens and self.tokens[0] in table else None

    def _part(self) -> Fraction | None:
        """Read a fraction such as "half" or "a third", or return None."""
        article = bool(self.tokens) and self.tokens[0] == "a"
        if len(self.tokens) > article and self.tokens[article] in _PARTS:
            part = Fraction(1, _PARTS[self.tokens[article]])
            del self.tokens[: article + 1]
            return part
        return None

    def _and_a_part(self) -> Fraction:
        """Read a fraction such as "and a half" or "and two thirds"; without one, return 0 and read nothing."""
        tokens_before = list(self.tokens)
        if self._skip("and"):
            part = self._part()
            if part is None and (count := self._cardinal()) is not None:
                denominator = self._take(_PARTS)
                part = None if denominator is None else count / denominator
            if part is not None and part < 1:
                return part
        self.tokens[:] = tokens_before
        return Fraction(0)

    def _decimals(self) -> Fraction:
        """Read the digits after "point"."""
        value, scale = Fraction(0), Fraction(1, 10)
        while self.tokens and _SMALL.get(self.tokens[0], 10) < 10:
            value, scale = value + scale * _SMALL[self.tokens.pop(0)], scale / 10
        return value

    def _cardinal(self) -> Fraction | None:
        """Read a cardinal number as groups below 1000 with falling scales, or return None."""
        total, below = None, 10**15
        while (group := self._below_1000()) is not None:
            scale = self._take(SCALES) or 1
            if scale >= below:
                return None  # "two thousand three million"
            total, below = (total or 0) + group * scale, scale
            if scale == 1:
                break
            self._skip_and_before_number()
        return None if total is None else Fraction(total)

    def _below_1000(self) -> int | None:
        value = self._below_100()
        if value is not None and self._skip("hundred"):
            self._skip_and_before_number()
            value = 100 * value + (self._below_100() or 0)
        return value

    def _below_100(self) -> int | None:
        tens = self._take(_TENS)
        if tens is None:
            return self._take(_SMALL)
        if self.tokens and 0 < _SMALL.get(self.tokens[0], 0) < 10:
            return tens + _SMALL[self.tokens.pop(0)]
        return tens

    def _skip_and_before_number(self) -> None:
        """Skip the "and" of "one hundred and five", but not that of "one hundred and a half"."""
        if len(self.tokens) > 1 and self.tokens[0] == "and" and self.tokens[1] in _SMALL | _TENS:
            following = self.tokens[2:3]
            if not (following and following[0] in _PARTS):
                del self.tokens[0]


# --- Chinese ---------------------------------------------------------------------------------------------------------

CHINESE_SCALES = {"万": 10**4, "亿": 10**8}
_DIGITS = {numeral: value for value, numeral in enumerate("零一二三四五六七八九")}
_DIGITS |= {"\u3007": 0, "两": 2, "壹": 1, "贰": 2, "叁": 3, "肆": 4, "伍": 5, "陆": 6, "柒": 7, "捌": 8, "玖": 9}
_POWERS_OF_TEN = {"十": 10, "百": 100, "千": 1000, "拾": 10, "佰": 100, "仟": 1000}
_NUMERALS = "".join([*_DIGITS, *_POWERS_OF_TEN, *CHINESE_SCALES])
_CHINESE = re.compile(
    rf"(?P<minus>负)?(?:(?P<percent>百分之)(?P<share>[{_NUMERALS}]+(?:点[{_NUMERALS}]+)?|半)"
    rf"|(?:(?P<whole>[{_NUMERALS}]+)又)?(?P<under>[{_NUMERALS}]+)分之(?P<over>[{_NUMERALS}]+)"
    rf"|(?P<number>[{_NUMERALS}]+(?:点[{_NUMERALS}]+)?)(?P<half>半)?)(?P<rest>.*)",
    re.S,
)


def read_chinese(text: str) -> tuple[Fraction, str] | None:
    """Return the number in Chinese numerals at the beginning of `text` and the text after it, or None without one."""
    match = _CHINESE.fullmatch(text)
    if match is None or len(text) > 10 * _MAX_WORDS:
        return None
    value = _chinese_value(match)
    return None if value is None else (-value if match["minus"] else value, match["rest"].strip())


def _chinese_value(match: re.Match[str]) -> Fraction | None:
    """Return the unsigned value of a match of `_CHINESE`, or None if its numerals make no number."""
    if match["percent"]:
        share = _chinese_decimal(match["share"])
        return None if share is None else share / 100
    if match["number"]:
        # 三半 is ambiguous: three and a half, or three halves.
        return None if match["half"] else _chinese_decimal(match["number"])
    integer, denominator = _chinese_integer(match["whole"] or "零"), _chinese_integer(match["under"])
    numerator = _chinese_integer(match["over"])
    if integer is None or not denominator or numerator is None:
        return None
    return integer + Fraction(numerator, denominator)


def _chinese_decimal(text: str) -> Fraction | None:
    """Return the value of a decimal such as "三点一四", or None if its numerals make no number."""
    integer, _, decimals = text.partition("点")
    value = _chinese_integer(integer)
    if value is None or not all(numeral in _DIGITS for numeral in decimals):
        return None
    digits = "".join(str(_DIGITS[numeral]) for numeral in decimals)
    return value + Fraction(int(digits or 0), 10 ** len(digits))


def _chinese_integer(text: str) -> int | None:
    """Return the value of numerals with powers of ten ("三百零五") or digit by digit ("二〇二四"), or None."""
    if len(text) > 1 and all(numeral in _DIGITS for numeral in text):
        return int("".join(str(_DIGITS[numeral]) for numeral in text)) if _DIGITS[text[0]] else None
    for numeral, scale in reversed(CHINESE_SCALES.items()):
        above, mark, below = text.partition(numeral)
        if mark:
            factor, remainder = _chinese_integer(above), _chinese_integer(below) if below else 0
            return None if factor is None or remainder is None else factor * scale + remainder
    return _below_myriad(text)


def _below_myriad(text: str) -> int | None:
    """Return the value of numerals up to 9999, or None if their powers of ten do not fall."""
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
