"""Reads numbers as people and models write them, exactly: as fractions, with the unit that follows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from games.verifiers.reading import LONGEST
from games.verifiers.words import SCALES, read_words

_MINUS = dict.fromkeys(map(ord, "−–—‐‑‒﹣－"), "-")  # noqa: RUF001 (these are what is looked for)
_SPACE = dict.fromkeys(map(ord, "\u00a0\u2007\u2009\u202f\u2002\u2003"), " ")
_SIGNS = str.maketrans({"⁄": "/", "∕": "/", "×": "*", "·": "*", "⋅": "*", "∙": "*", "’": "'"})  # noqa: RUF001
_FRACTIONS = "1/2 1/3 2/3 1/4 3/4 1/5 2/5 3/5 4/5 1/6 5/6 1/7 1/8 3/8 5/8 7/8 1/9 1/10"
_VULGAR = dict(
    zip(
        "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅐⅛⅜⅝⅞⅑⅒",
        _FRACTIONS.split(),
        strict=True,
    )
)
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
_NAMED = re.compile(r"[A-Za-z](?:_\{?\w{1,3}\}?)?\s*=\s*")


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number as it was written, the text after it, and whether it is a division that leaves no remainder."""

    value: Fraction
    rest: str
    undone: bool = False
    decimal: bool = False
    """Whether it was written with a decimal point, and may be rounded."""


def normal(text: str) -> str:
    """One spelling for signs, spaces and fractions, whether they were Unicode or LaTeX."""
    text = text.translate(_MINUS).translate(_SPACE).translate(_SIGNS)
    for sign, fraction in _VULGAR.items():
        text = text.replace(sign, f" {fraction}")
    text = re.sub(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺]+", lambda raised: f"^{{{raised.group().translate(_RAISED)}}}", text)
    for pattern, replacement in _LATEX:
        text = re.sub(pattern, replacement, text)
    return text.strip()


def read_quantity(text: str) -> Quantity | None:
    """The number that `text` begins with, and the rest, which may be a unit; None if it begins with none.

    `x = 5` is read as 5. Powers of ten go up to 999, so that no text makes a number that does not fit into memory.
    """
    if len(text) > LONGEST:
        return None
    text = _NAMED.sub("", normal(text), count=1) if _NAMED.match(normal(text)) else normal(text)
    worded = read_words(text)
    if worded is not None:
        return _scaled(Quantity(*worded))
    for form, value in zip(_FORMS, (_fraction, _decimal), strict=True):
        found = form.fullmatch(text)
        if found and (quantity := value(found)) is not None:
            return _scaled(quantity)
    return None


def _fraction(found: re.Match[str]) -> Quantity | None:
    over, under = int(found["over"] or found["up"]), int(found["under"] or found["down"])
    if under == 0 or (found["whole"] and not 0 < over < under):
        return None
    whole = Fraction(re.sub(r"\D", "", found["whole"])) if found["whole"] else Fraction(0)
    value = (whole + Fraction(over, under)) * _sign(found)
    undone = not found["whole"] and over != 0 and over % under == 0
    return Quantity(value, found["money"] + found["rest"], undone)


def _decimal(found: re.Match[str]) -> Quantity:
    value = Fraction(re.sub(r"[^\d.]", "", found["decimal"]).rstrip("."))
    exponent = int(found["e"] or found["ten"] or 0)
    value *= Fraction(10) ** exponent * _sign(found)
    return Quantity(value, found["money"] + found["rest"], decimal="." in found["decimal"])


def _sign(found: re.Match[str]) -> int:
    return -1 if found["sign"] == "-" else 1


def _scaled(quantity: Quantity) -> Quantity:
    """With the "million" that follows the number."""
    word, _, rest = quantity.rest.strip().partition(" ")
    if word.lower() not in SCALES:
        return Quantity(quantity.value, quantity.rest.strip(), quantity.undone, quantity.decimal)
    return Quantity(quantity.value * SCALES[word.lower()], rest.strip(), quantity.undone, quantity.decimal)
