"""Exact values of numbers in digits, LaTeX or words."""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

from marl.games.verifiers.answer_verifier import MAX_LENGTH
from marl.games.verifiers.latex_notation import normalize_notation, without_text_commands
from marl.games.verifiers.number_words import CHINESE_SCALES, SCALES, Quantity, read_chinese, read_words

_GROUPED = (
    r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,2}(?:,[0-9]{2})+,[0-9]{3}|[0-9]{1,3}(?: [0-9]{3})+"
    r"|[0-9]{1,3}(?:'[0-9]{3})+|[0-9]{1,3}(?:_[0-9]{3})+)"
)
"""Digits in groups: 1,234 or 12,34,567 (Indian) or 1 234 or 1'234 or 1_234."""
_REPEATED = r"\.[0-9]*(?:\\overline\s*\{[0-9]+\}|\([0-9]+\))|\.[0-9]{2,60}\.\.\.+"
_FRACTIONAL = rf"(?:{_REPEATED}|\.[0-9]+)"
UNSIGNED = rf"(?:[0-9]+{_FRACTIONAL}?|{_FRACTIONAL})"
"""Pattern of a number without sign and without groups of digits."""
UNSIGNED_IN_GROUPS = rf"(?:{_GROUPED}(?![,_']?[0-9]){_FRACTIONAL}?|{UNSIGNED})"
SCIENTIFIC = (
    r"(?:[eE]\+?(?P<e>-?[0-9]{1,3})(?![0-9])"
    r"|\s*[*x]\s*10\s*\^\s*(?:\{\s*\+?(?P<braced>-?[0-9]{1,3})\s*\}|\(\s*\+?(?P<bracketed>-?[0-9]{1,3})\s*\)"
    r"|\+?(?P<bare>-?[0-9]{1,3})(?![0-9.])))"
)
"""Pattern of a power of ten after a number."""
_SIGN = r"(?P<sign>[-+]?)\s*(?P<money>(?:US)?\$|(?:USD|EUR|GBP)(?=\s?\d)|[€£¥₹]?)\s*(?P<inner>-?)"
_OVER = (
    r"(?:(?P<over>[0-9]+)\s*/\s*(?P<under>[0-9]+)|\\frac\s*\{\s*(?P<up>[-+]?[0-9]+)\s*\}\s*\{\s*(?P<down>[0-9]+)\s*\})"
)
_FRACTION = re.compile(
    rf"{_SIGN}(?:(?P<whole>{_GROUPED}|[0-9]+)(?:\s*(?=\\frac)|\s+and\s+|\s+))?{_OVER}(?P<rest>.*)", re.S
)
_DECIMAL = re.compile(
    rf"{_SIGN}(?P<decimal>{UNSIGNED_IN_GROUPS})(?![,_']?[0-9])(?:\.(?!\S))?(?:{SCIENTIFIC})?(?P<rest>.*)", re.S
)
_SCALES = SCALES | CHINESE_SCALES
_SCALE = re.compile(rf"\s*(?P<name>{'|'.join(_SCALES)})(?![a-z])|(?P<k>k)(?![\w/^*])", re.I)
_GROUP = re.compile(r"^(?:\\begingroup |\{)((?:[^{}\\]|\^\{[^{}\\]*\})*)(?:\\endgroup\b |\\endgroup\b|\})")
_POWER_OF_TEN = re.compile(r"([-+]?)\s*10\s*\^")
_PERIOD = re.compile(r"([0-9]*?)([0-9]+?)\2+")
FUNCTION_VALUE = r"[fghpFGHPETSV](?:_\{?\w{1,3}\}?)?'{0,3}\s?\(-?[\w\s.,|<>='\\]{1,30}\)"
"""Pattern of the value of a function, such as f(2) or P(A). Sums in the brackets are factors: p(1 - p)."""
_ASSIGNMENT = re.compile(rf"(?:{FUNCTION_VALUE}|[A-Za-z](?:_\{{?\w{{1,3}}\}}?)?)\s*(?:=|\\approx)\s*(?:\\approx\s*)?")
_EXACT = re.compile(r"/|\\frac|\\overline|\(|[^\W\d_]{4}|分")
"""Signs of a fraction, of repeating digits and of words in a number."""
_BOLD = re.compile(r"\*\*([^*\n]{1,40})\*\*\s{0,3}(?=[^\W\d_])")
"""A number in bold face before a word."""


@lru_cache(1024)
def read_quantity(text: str) -> Quantity | None:
    """Return the number at the beginning of `text` with the text after it, or None without a number.

    `x = 5` and `f(2) = 5` are read as 5. Powers of ten go up to 999, so that every number fits into memory.
    """
    if len(text) > MAX_LENGTH:
        return None
    bold = _BOLD.match(text)
    text = normalize_notation(f"{bold[1]} {text[bold.end() :]}" if bold else text)
    text = _GROUP.sub(r"\1 ", without_text_commands(text), count=1).strip()
    text = re.sub(r"^(?:minus|negative)\s+(?=[0-9.\\$])", "-", text)
    text = text[assignment.end() :] if (assignment := _ASSIGNMENT.match(text)) else text
    if _POWER_OF_TEN.match(text):
        text = _POWER_OF_TEN.sub(r"\g<1>1*10^", text, count=1)
    if worded := read_words(text) or read_chinese(text):
        return _scaled_by_next_word(worded)
    return _read_fraction(text) or _read_decimal(text)


def decimal_value(digits: str) -> Fraction:
    """Return the value of an unsigned number that matches `UNSIGNED_IN_GROUPS`: 0.8333..., 0.8(3), 1,234.5."""
    integer, _, decimals = re.sub(r"[,' _]", "", digits).partition(".")
    fixed, repeated = decimals.rstrip("."), ""
    if marked := re.fullmatch(r"([0-9]*)[^0-9]+([0-9]+)[)}]", decimals):
        fixed, repeated = marked[1], marked[2]
    elif decimals.endswith("...") and (match := _PERIOD.fullmatch(fixed)):
        fixed, repeated = match[1], match[2]
    value = Fraction(int(integer or 0)) + Fraction(int(fixed or 0), 10 ** len(fixed))
    return value + Fraction(int(repeated), (10 ** len(repeated) - 1) * 10 ** len(fixed)) if repeated else value


def is_exactly_written(number: str) -> bool:
    """Return True for 2 1/3, 0.(3) and two thirds, and False for decimals such as 0.75, which may be rounded."""
    return bool(_EXACT.search(number))


def has_known_value(digits: str) -> bool:
    """Return True for 5 and 0.8333..., and False for 3.14159..., whose further digits are unknown."""
    return not digits.endswith("...") or bool(_PERIOD.fullmatch(digits.partition(".")[2].rstrip(".")))


def scientific_exponent(match: re.Match[str]) -> int:
    """Return the exponent of the power of ten in a match of `SCIENTIFIC`: -3 for "e-3" and "* 10^{-3}"."""
    return int(match["e"] or match["braced"] or match["bracketed"] or match["bare"] or 0)


def _read_fraction(text: str) -> Quantity | None:
    match = _FRACTION.fullmatch(text)
    if match is None:
        return None
    over, under = int(match["over"] or match["up"]), int(match["under"] or match["down"])
    if under == 0 or (match["whole"] and not 0 < over < under):
        return None
    if match["whole"]:
        integer = Fraction(re.sub(r"[^0-9]", "", match["whole"]))
        return _with_sign_and_currency(Quantity(integer + Fraction(over, under), match["rest"]), match)
    return _with_sign_and_currency(Quantity(Fraction(over, under), match["rest"], (over, under)), match)


def _read_decimal(text: str) -> Quantity | None:
    match = _DECIMAL.fullmatch(text)
    if match is None or not has_known_value(match["decimal"]):
        return None
    value = decimal_value(match["decimal"]) * Fraction(10) ** scientific_exponent(match)
    return _with_sign_and_currency(Quantity(value, match["rest"]), match)


def _with_sign_and_currency(quantity: Quantity, match: re.Match[str]) -> Quantity | None:
    """Return `quantity` with the sign of `match`, and the currency as part of `following_text`.

    None if the number has two signs: "$-5" has one, "-$-5" has two.
    """
    if match["inner"] and (match["sign"] or not match["money"]):
        return None
    quantity = _scaled_by_next_word(quantity)
    value = -quantity.value if "-" in (match["sign"], match["inner"]) else quantity.value
    return quantity._replace(value=value, following_text=match["money"] + quantity.following_text)


def _scaled_by_next_word(quantity: Quantity) -> Quantity:
    """Return `quantity` multiplied by the scale word that begins its `following_text`, such as "million" or "k"."""
    scale = _SCALE.match(quantity.following_text)
    if scale is None:
        return quantity._replace(following_text=quantity.following_text.strip())
    factor = 1000 if scale["k"] else _SCALES[scale["name"].lower()]
    following_text = quantity.following_text[scale.end() :].strip()
    return quantity._replace(value=quantity.value * factor, following_text=following_text)
