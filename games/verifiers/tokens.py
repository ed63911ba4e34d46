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
    has_known_value,
    scientific_exponent,
)


class UnreadableFormulaError(ValueError):
    """Error for a text that is no formula."""


@dataclass(frozen=True, slots=True)
class Token:
    """A number, word, LaTeX command or sign in the text of a formula."""

    kind: str
    """Kind of the token: number, text, word, command, begin, end, sign or stop."""
    text: str
    """The token as written; for a command its name, for `text` the words in braces."""
    value: Fraction = Fraction(0)
    """Value of the token if it is a number, else 0."""


_MIXED = re.compile(
    r"([0-9]+)(?:\s*\\frac\s*\{\s*([0-9]+)\s*\}\s*\{\s*([0-9]+)\s*\}|\s+([0-9]+)\s*/\s*([0-9]+)(?![0-9]))"
)
_NUMBER = re.compile(rf"({UNSIGNED})(?:{SCIENTIFIC})?")
_NUMBER_IN_GROUPS = re.compile(rf"({UNSIGNED_IN_GROUPS})(?:{SCIENTIFIC})?")
_OTHER = re.compile(
    r"\\text\{(?P<text>[^{}]*)\}|\\begin\s*\{(?P<begin>[a-zA-Z]+)\*?\}(?:\s*\{[clr| ]*\})?"
    r"|\\end\s*\{(?P<end>[a-zA-Z]+)\*?\}|\\(?P<command>[A-Za-z]+)|(?P<word>[^\W\d_]+)|(?P<sign>\\[{}|]|\S)"
)
_NOT_SPACE = re.compile(r"\S")
_NESTING = {"(": 1, "[": 1, "\\{": 1, ")": -1, "]": -1, "\\}": -1}


def tokenize(text: str) -> list[Token]:
    """Return the tokens of a normalized formula, with a stop at the end.

    Raises:
        UnreadableFormulaError: for a character that occurs in no formula, and for a number with unknown digits.
    """
    tokens, depth, position = list[Token](), 0, 0
    while next_sign := _NOT_SPACE.search(text, position):
        position = next_sign.start()
        # Digit groups (1,234) are read outside of brackets only: (1,234) is a point, and no groups follow _ or ^.
        grouped = depth == 0 and not (tokens and tokens[-1].text in ("_", "^"))
        may_be_number = text[position] in "0123456789."
        mixed = _MIXED.match(text, position) if may_be_number else None
        number = (_NUMBER_IN_GROUPS if grouped else _NUMBER).match(text, position) if may_be_number else None
        if mixed and 0 < int(mixed[2] or mixed[4]) < int(mixed[3] or mixed[5]):
            # A mixed number such as 2 1/3 is one token.
            match = mixed
            value = int(mixed[1]) + Fraction(int(mixed[2] or mixed[4]), int(mixed[3] or mixed[5]))
            token = Token("number", mixed[0], value)
        elif number:
            match = number
            if not has_known_value(number[1]):
                raise UnreadableFormulaError(f"{number[1]!r} does not say how it goes on")
            value = decimal_value(number[1]) * Fraction(10) ** scientific_exponent(number)
            token = Token("number", number[0], value)
        else:
            match = _OTHER.match(text, position)
            if match is None or match.lastgroup is None:
                raise UnreadableFormulaError(f"{text[position : position + 20]!r} is no formula")
            token = Token(match.lastgroup, match[match.lastgroup])
            depth += _NESTING.get(token.text, 0) if token.kind == "sign" else 0
        tokens.append(token)
        position = match.end()
    return [*tokens, Token("stop", "the end")]
