"""Normal form of questions, to find held-out problems in any spelling."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise, takewhile

from marl.games.verifiers.number_words import read_words

_SIGNS = str.maketrans(
    dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212", "-")
    | dict.fromkeys("\u00b7\u00d7\u2217\u22c5", "*")
    | dict.fromkeys("\u00f7\u2044\u2215", "/")
)
_SIGN_WORDS = {"plus": "+", "minus": "-", "times": "*"}
_GROUPED = re.compile(r"(?<=\d)[,_' \u2019](?=\d{3}(?!\d))")
_HYPHEN = re.compile(r"(?<=[^\W\d_]{2})-(?=[^\W\d_]{2})")
_VULGAR = re.compile(r"(\d{0,30}) ?([\u00bc-\u00be\u2150-\u215e])")
_TOKEN = re.compile(r"\d+(?:\.\d+)?|[^\W\d_]+|[-+*/^=<>]")
_WORDS_OF_NUMBER = 12
"""Maximum number of words of a number in words, with "and"."""
_DIGITS = 40
"""Maximum length of a number that is compared by value; longer numbers are compared digit by digit."""


def normalize_question(question: str) -> str:
    """Return `question` in normal form, for comparison with other questions.

    Case, spaces, punctuation, Unicode forms (NFKC) and the spelling of numbers (`1,000`, `01000.0`, `one thousand`) do
    not count. Signs of arithmetic count between operands.
    """
    text = _HYPHEN.sub(" ", _GROUPED.sub("", _plain(question)))
    tokens = [_SIGN_WORDS.get(token, token) for token in _numbered(_TOKEN.findall(text))]
    significant = [""]
    for token, following in pairwise([*tokens, ""]):
        # A minus may also stand before its only operand.
        is_between = _is_operand(following) and (token == "-" or _is_operand(significant[-1]))
        if is_between or token[0].isalnum():
            significant.append(token)
    return " ".join(significant[1:])


def _plain(text: str) -> str:
    """Return `text` casefolded in Unicode form NFKC, without invisible characters (category Cf)."""
    if text.isascii():
        return text.casefold()
    # Before NFKC, which would turn 2½ into 21/2.
    text = _VULGAR.sub(lambda match: str(int(match[1] or 0) + _value(match[2])), text)
    text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold()).translate(_SIGNS)
    return "".join(sign for sign in text if unicodedata.category(sign) != "Cf")


def _value(vulgar: str) -> Fraction:
    return Fraction(unicodedata.numeric(vulgar)).limit_denominator(10)


def _is_operand(token: str) -> bool:
    return token[:1].isdigit() or (len(token) == 1 and token.isalpha())


def _numbered(tokens: list[str]) -> Iterator[str]:
    """Yield `tokens` with numbers, in digits or words, in one spelling."""
    index = 0
    while index < len(tokens):
        token, used = tokens[index], 1
        if _begins_number(token):
            words = list(takewhile(str.isalpha, tokens[index : index + _WORDS_OF_NUMBER]))
            if (number := read_words(" ".join(words))) is not None:
                token, used = str(number[0]), len(words) - len(number[1].split())
        elif token[0].isdigit():
            token = str(Fraction(token)) if len(token) <= _DIGITS else token.lstrip("0")
        # A fraction, or a negative number, is several tokens.
        yield from (token,) if token.isalnum() else _TOKEN.findall(token)
        index += used


@lru_cache(maxsize=65536)
def _begins_number(word: str) -> bool:
    """Return True if a number in words may begin with `word`, as `a` does in `a dozen` and `a third`."""
    return any(read_words(f"{word} {next_word}") for next_word in ("", "one", "dozen", "third", "hundred"))
