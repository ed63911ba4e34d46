"""Normal form of questions, to find held-out problems in any spelling."""

from __future__ import annotations

import re
import unicodedata
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
"""Maximum number of words that are read as one number; "and" counts as a word."""
_DIGITS = 40
"""Maximum number of characters of a number that is compared by value; longer numbers are compared as texts."""


def normalize_question(question: str) -> str:
    """Return `question` in normal form, for comparison with other questions.

    Case, spaces, punctuation, Unicode forms (NFKC) and the spelling of numbers (`1,000`, `01000.0`, `one thousand`) do
    not count. Signs of arithmetic count between operands.
    """
    text = question.casefold()
    if not question.isascii():
        # Vulgar fractions come before NFKC, which would turn 2½ into 21/2.
        text = _VULGAR.sub(_mixed_number_as_fraction, question)
        text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold()).translate(_SIGNS)
        # Characters of category Cf are invisible, so they are removed.
        text = "".join(sign for sign in text if unicodedata.category(sign) != "Cf")
    tokens = _TOKEN.findall(_HYPHEN.sub(" ", _GROUPED.sub("", text)))
    # Tokens in which every number, written in digits or words, is replaced by its simplest spelling in digits.
    plain_tokens = list[str]()
    index = 0
    while index < len(tokens):
        token, used = tokens[index], 1
        if _may_begin_number(token):
            words = list(takewhile(str.isalpha, tokens[index : index + _WORDS_OF_NUMBER]))
            if (number := read_words(" ".join(words))) is not None:
                token, used = str(number.value), len(words) - len(number.following_text.split())
        elif token[0].isdigit():
            token = str(Fraction(token)) if len(token) <= _DIGITS else token.lstrip("0")
        # A number that is a fraction (1/2) or negative (-5) is split into several tokens.
        pieces = [token] if token.isalnum() else _TOKEN.findall(token)
        plain_tokens += [_SIGN_WORDS.get(piece, piece) for piece in pieces]
        index += used
    significant = [""]
    for token, following in pairwise([*plain_tokens, ""]):
        # A sign is kept if it stands between two operands; a minus sign is also kept before an operand.
        is_between = _is_operand(following) and (token == "-" or _is_operand(significant[-1]))
        if is_between or token[0].isalnum():
            significant.append(token)
    return " ".join(significant[1:])


def _mixed_number_as_fraction(match: re.Match[str]) -> str:
    """Return a match of `_VULGAR` as a fraction: 5/2 for 2½."""
    return str(int(match[1] or 0) + Fraction(unicodedata.numeric(match[2])).limit_denominator(10))


def _is_operand(token: str) -> bool:
    return token[:1].isdigit() or (len(token) == 1 and token.isalpha())


@lru_cache(maxsize=65536)
def _may_begin_number(word: str) -> bool:
    """Return True if a number in words may begin with `word`, as `a` does in `a dozen` and `a third`."""
    return any(read_words(f"{word} {next_word}") for next_word in ("", "one", "dozen", "third", "hundred"))
