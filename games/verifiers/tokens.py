"""Tokenizer of formulas: numbers in any notation, words, LaTeX commands, signs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from marl.games.verifiers.quantities import (
    SCIENTIFIC,
    UNSIGNED,
    UNSIGNED_IN_GROUPS,
    decimal_value,
    repeats,
    scientific_exponent,
)


class UnreadableError(ValueError):
    """Error for a text that is no formula."""


@dataclass(frozen=True, slots=True)
class Token:
    """A number, a word, a command or a sign."""

    kind: str
    """One of number, text, word, command, begin, end, sign and stop."""
    text: str
    value: Fraction = Fraction(0)
    """Value of a number token, else 0."""


_MIXED = re.compile(
    r"([0-9]+)(?:\s*\\frac\s*\{\s*([0-9]+)\s*\}\s*\{\s*([0-9]+)\s*\}|\s+([0-9]+)\s*/\s*([0-9]+)(?![0-9]))"
)
_NUMBER = re.compile(rf"({UNSIGNED})(?:{SCIENTIFIC})?")
_NUMBER_IN_GROUPS = re.compile(rf"({UNSIGNED_IN_GROUPS})(?:{SCIENTIFIC})?")
_OTHER = re.compile(
    r"\\text\{(?P<text>[^{}]*)\}|\\begin\s*\{(?P<begin>[a-zA-Z]+)\*?\}(?:\s*\{[clr| ]*\})?"
    r"|\\end\s*\{(?P<end>[a-zA-Z]+)\*?\}|\\(?P<command>[A-Za-z]+)|(?P<word>[^\W\d_]+)|(?P<sign>\\[{}|]|\S)"
)
_SPACE = re.compile(r"\s*")
_NESTING = {"(": 1, "[": 1, "\\{": 1, ")": -1, "]": -1, "\\}": -1}


def tokenize(text: str) -> list[Token]:
    """Return the tokens of normalized `text`, with a stop at the end; raise UnreadableError for anything unreadable."""
    tokens, depth = list[Token](), 0
    position = _end_of_space(text, 0)
    while position < len(text):
        # Within brackets a comma separates: (1,234) is a point. So does a space after an index.
        grouped = depth == 0 and not (tokens and tokens[-1].text in ("_", "^"))
        token, position = _number_token(text, position, grouped) or _other_token(text, position)
        depth += _NESTING.get(token.text, 0) if token.kind == "sign" else 0
        tokens.append(token)
        position = _end_of_space(text, position)
    return [*tokens, Token("stop", "the end")]


def _end_of_space(text: str, position: int) -> int:
    """Return the position of the first character from `position` on that is no white space."""
    match = _SPACE.match(text, position)
    return match.end() if match else position


def _number_token(text: str, position: int, grouped: bool) -> tuple[Token, int] | None:
    """Return the number at `position` and its end, or None without a number. `grouped`: commas may separate digits."""
    mixed = _MIXED.match(text, position)  # 2 1/3
    if mixed and 0 < int(mixed[2] or mixed[4]) < int(mixed[3] or mixed[5]):
        value = int(mixed[1]) + Fraction(int(mixed[2] or mixed[4]), int(mixed[3] or mixed[5]))
        return Token("number", mixed[0], value), mixed.end()
    match = (_NUMBER_IN_GROUPS if grouped else _NUMBER).match(text, position)
    if match is None:
        return None
    if not repeats(match[1]):
        raise UnreadableError(f"{match[1]!r} does not say how it goes on")
    return Token("number", match[0], decimal_value(match[1]) * Fraction(10) ** scientific_exponent(match)), match.end()


def _other_token(text: str, position: int) -> tuple[Token, int]:
    """Return the token at `position` that is no number, and its end."""
    match = _OTHER.match(text, position)
    if match is None or match.lastgroup is None:
        raise UnreadableError(f"{text[position : position + 20]!r} is no formula")
    return Token(match.lastgroup, match[match.lastgroup]), match.end()
