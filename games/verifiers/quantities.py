"""Exact reading of numbers as people and models write them, in digits, LaTeX or English words."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction

from games.verifiers.reading import MAX_LENGTH

_MINUS = dict.fromkeys(map(ord, "−–—‐‑‒﹣－"), "-")  # noqa: RUF001 (these are what is looked for)
_SPACE = dict.fromkeys(map(ord, "\u00a0\u2007\u2009\u202f\u2002\u2003"), " ")
_OPERATORS = str.maketrans({"⁄": "/", "∕": "/", "×": "*", "·": "*", "⋅": "*", "∙": "*", "’": "'"})  # noqa: RUF001
_FRACTIONS = "1/2 1/3 2/3 1/4 3/4 1/5 2/5 3/5 4/5 1/6 5/6 1/7 1/8 3/8 5/8 7/8 1/9 1/10"
_VULGAR = dict(zip("½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅐⅛⅜⅝⅞⅑⅒", _FRACTIONS.split(), strict=True))
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
_LATEX = (
    (r"\\(?:left|right|displaystyle)\b|\\[!;:]", ""),
    (r"\\(?:text|textrm|mathrm|mbox|textbf)\s*\{([^{}]*)\}", r" \1 "),
    (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
    (r"^(?:minus|negative)\s+(?=[\d.\\$])", "-"),
    (r"\\frac\s*(\d)\s*(\d)(?!\d)", r"\\frac{\1}{\2}"),
    (r"\\(?:cdot|times)\b", "*"),
    (r"\^\s*\{?\s*\\circ\s*\}?|\\degree\b", "°"),
    (r"\{,\}|\\,", ","),
    (r"\s+\^", "^"),
    (r"^([-+]?)10\s*(?=\^|\*\*)", r"\g<1>1*10"),
    (r"\\([%$ ])", r"\1"),
)

_INT = r"(?:\d{1,3}(?P<SEPARATOR>[, _'])\d{3}(?:(?P=SEPARATOR)\d{3})*|\d+)(?![,_]?\d)"
_SCI = r"(?:[eE]\+?(?P<e>-?\d{1,3})(?!\d)|\s*[*x]\s*10\s*(?:\^|\*\*)\s*[{(]?\+?(?P<ten>-?\d{1,3})(?!\d)[)}]?)"
_SIGN = r"(?P<sign>[-+]?)\s*(?P<money>[$€£]?)\s*"
_FRACTION = r"(?:(?P<over>\d+)\s*/\s*(?P<under>\d+)|\\frac\s*\{\s*(?P<up>[-+]?\d+)\s*\}\s*\{\s*(?P<down>\d+)\s*\})"
_FORMS = (
    re.compile(
        _SIGN
        + rf"(?:(?P<whole>{_INT.replace('SEPARATOR', 'w')})(?:\s*(?=\\frac)|\s+and\s+|\s+))?{_FRACTION}(?P<rest>.*)",
        re.S,
    ),
    re.compile(
        _SIGN + rf"(?P<decimal>{_INT.replace('SEPARATOR', 'd')}(?:\.\d+|\.(?!\S))?|\.\d+)(?:{_SCI})?(?P<rest>.*)", re.S
    ),
)
_ASSIGNMENT = re.compile(r"[A-Za-z](?:_\{?\w{1,3}\}?)?\s*=\s*")


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number and the text after it."""

    value: Fraction
    rest: str
    unevaluated: bool = False
    """Written as a division without remainder, such as 6/3."""
    decimal: bool = False
    """Written with a decimal point, so it may be rounded."""


def _normalize(text: str) -> str:
    """Return the text with one spelling for signs, spaces and fractions in Unicode or LaTeX."""
    text = text.translate(_MINUS).translate(_SPACE).translate(_OPERATORS)
    for sign, fraction in _VULGAR.items():
        text = text.replace(sign, f" {fraction}")
    text = re.sub(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺]+", lambda raised: f"^{{{raised.group().translate(_RAISED)}}}", text)
    for pattern, replacement in _LATEX:
        text = re.sub(pattern, replacement, text)
    return text.strip()


def read_quantity(text: str) -> Quantity | None:
    """Return the number that `text` begins with, and the rest, which may be a unit; None if it begins with none.

    `x = 5` is read as 5. Powers of ten go up to 999, so that every number fits into memory.
    """
    if len(text) > MAX_LENGTH:
        return None
    text = _normalize(text)
    if assignment := _ASSIGNMENT.match(text):
        text = text[assignment.end() :]
    worded = read_words(text)
    if worded is not None:
        return _scaled(Quantity(*worded))
    for form, value in zip(_FORMS, (_fraction, _decimal), strict=True):
        match = form.fullmatch(text)
        if match and (quantity := value(match)) is not None:
            return _scaled(quantity)
    return None


def _fraction(match: re.Match[str]) -> Quantity | None:
    over, under = int(match["over"] or match["up"]), int(match["under"] or match["down"])
    if under == 0 or (match["whole"] and not 0 < over < under):
        return None
    whole = Fraction(re.sub(r"\D", "", match["whole"])) if match["whole"] else Fraction(0)
    value = whole + Fraction(over, under)
    unevaluated = not match["whole"] and over != 0 and over % under == 0
    return Quantity(-value if match["sign"] == "-" else value, match["money"] + match["rest"], unevaluated)


def _decimal(match: re.Match[str]) -> Quantity:
    value = Fraction(re.sub(r"[^\d.]", "", match["decimal"]).rstrip("."))
    value *= Fraction(10) ** int(match["e"] or match["ten"] or 0)
    signed = -value if match["sign"] == "-" else value
    return Quantity(signed, match["money"] + match["rest"], decimal="." in match["decimal"])


def _scaled(quantity: Quantity) -> Quantity:
    """Return the quantity times the "million" that follows it, if any."""
    word, _, rest = quantity.rest.strip().partition(" ")
    if word.lower() not in _SCALES:
        return replace(quantity, rest=quantity.rest.strip())
    return replace(quantity, value=quantity.value * _SCALES[word.lower()], rest=rest.strip())


# --- numbers in English words ----------------------------------------------------------------------------------------

_SMALL_NAMES = """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
    eighteen nineteen
"""
_SMALL = {name: value for value, name in enumerate(_SMALL_NAMES.split())}
_TENS_NAMES = "twenty thirty forty fifty sixty seventy eighty ninety"
_TENS = {name: 10 * n for n, name in enumerate(_TENS_NAMES.split(), 2)}
_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_ORDINALS = "fourth fifth sixth seventh eighth ninth tenth"
_PARTS = {name + plural: n for n, name in enumerate(_ORDINALS.split(), 4) for plural in ("", "s")}
_PARTS |= {"half": 2, "halves": 2, "third": 3, "thirds": 3, "quarter": 4, "quarters": 4}
_PARTS |= {"hundredth": 100, "hundredths": 100, "thousandth": 1000, "thousandths": 1000}
_MAX_WORDS = 30


def read_words(text: str) -> tuple[Fraction, str] | None:
    """Return the number in words that `text` begins with, and the text after it; None if it begins with none."""
    tokens = re.findall(r"[^\s-]+", text.lower())
    if not tokens or len(tokens) > _MAX_WORDS:
        return None
    sign = -1 if tokens[0] in ("minus", "negative") else 1
    reader = _WordReader(tokens[sign < 0 :])
    value = reader.number()
    return None if value is None else (sign * value, " ".join(reader.tokens))


class _WordReader:
    """Parser that takes number words off the front of a list."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens

    def number(self) -> Fraction | None:
        if self._skip("a", "dozen") or self._skip("one", "dozen"):
            return Fraction(12)
        part = self._part()
        if part is not None:
            # "half an hour", "a quarter of a mile"
            _ = self._skip("of", "a") or self._skip("an") or self._skip("a")
            return part
        if self.tokens[:1] == ["a"] and self.tokens[1:2] and self.tokens[1] in ("hundred", *_SCALES):
            self.tokens[0] = "one"
        whole = self._cardinal()
        if whole is None:
            return None
        part = self._divide_by_part(whole)
        if part is not None:
            return part
        return whole + self._decimals() if self._skip("point") else whole + self._and_a_part()

    def _skip(self, *words: str) -> bool:
        """Remove the words and return True if they come next."""
        present = tuple(self.tokens[: len(words)]) == words
        if present:
            del self.tokens[: len(words)]
        return present

    def _take(self, table: dict[str, int]) -> int | None:
        return table[self.tokens.pop(0)] if self.tokens and self.tokens[0] in table else None

    def _part(self) -> Fraction | None:
        """Read "half" or "a third"."""
        article = bool(self.tokens) and self.tokens[0] == "a"
        if len(self.tokens) > article and self.tokens[article] in _PARTS:
            part = Fraction(1, _PARTS[self.tokens[article]])
            del self.tokens[: article + 1]
            return part
        return None

    def _divide_by_part(self, count: Fraction) -> Fraction | None:
        """Read "quarters" in "three quarters", when three has been read."""
        denominator = self._take(_PARTS)
        return None if denominator is None else count / denominator

    def _and_a_part(self) -> Fraction:
        """Read "and a half" or "and two thirds"; 0 if neither follows."""
        before = list(self.tokens)
        if self._skip("and"):
            part = self._part()
            if part is None and (count := self._cardinal()) is not None:
                part = self._divide_by_part(count)
            if part is not None and part < 1:
                return part
        self.tokens[:] = before
        return Fraction(0)

    def _decimals(self) -> Fraction:
        value, place = Fraction(0), Fraction(1, 10)
        while self.tokens and _SMALL.get(self.tokens[0], 10) < 10:
            value, place = value + place * _SMALL[self.tokens.pop(0)], place / 10
        return value

    def _cardinal(self) -> Fraction | None:
        total, below = None, 10**15
        while (group := self._below_1000()) is not None:
            scale = self._take(_SCALES) or 1
            if scale >= below:
                return None
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
        ones = 0 < _SMALL.get(self.tokens[0], 0) < 10 if self.tokens else False
        return tens + (_SMALL[self.tokens.pop(0)] if ones else 0)

    def _skip_and_before_number(self) -> None:
        """Skip the "and" of "one hundred and five", but not that of "one hundred and a half"."""
        if len(self.tokens) > 1 and self.tokens[0] == "and" and self.tokens[1] in _SMALL | _TENS:
            following = self.tokens[2:3]
            if not (following and following[0] in _PARTS):
                del self.tokens[0]
