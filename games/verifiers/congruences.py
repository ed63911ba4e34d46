"""Congruences as answers, such as x ≡ 3 (mod 7)."""

from __future__ import annotations

import re

from marl.games.verifiers.latex_notation import normalize_notation, without_text_commands

_CONGRUENCE = re.compile(
    r"(?:([A-Za-z])\s*\\equiv\s*)?(-?[0-9]{1,30})\s*,?\s*(?:\\pmod|\\bmod|\\mod|\(\s*\\?mod|mod)\s*"
    r"\{?\s*([1-9][0-9]{0,29})\s*\}?\s*\)?"
)

_DOMAIN = r"(?:\s*,?\s*\(?\s*(?:(?:for|where|with)\s+)?\{}\s*\\in\s*\\mathbb\s*[{{]?\s*Z\s*[}}]?\s*\)?)?"
_SOLUTION = re.compile(
    rf"(?:([A-Za-z])\s*=)?\s*([1-9][0-9]{{0,29}})\s*\*?\s*([a-z])\s*([-+]\s*[0-9]{{1,30}})?{_DOMAIN.format(3)}"
)
_SOLUTION_FROM_START = re.compile(
    rf"(?:([A-Za-z])\s*=)?\s*(-?[0-9]{{1,30}})\s*\+\s*([1-9][0-9]{{0,29}})\s*\*?\s*([a-z]){_DOMAIN.format(4)}"
)
"""General solution x = 7k + 3, which means the same as the congruence x ≡ 3 (mod 7)."""
_WORDS_BEFORE = re.compile(r"^(?:(?:all|the)\s)?(?:integers?|numbers?)\s(?:of the form\s)?", re.I)
_SET_OF_SOLUTIONS = re.compile(
    r"^(?:[A-Za-z]\s*\\in\s*)?\\\{\s*([^{}:|\\]{1,60}?)\s*(?::|\||\\mid)\s*([a-z])\s*\\in\s*\\mathbb\s*\{?\s*Z\s*\}?\s*\\\}$"
)
"""Set of all solutions, such as {7k + 3 : k ∈ Z}."""


def read_congruence(text: str, *, reads_general_solution: bool = False) -> tuple[str, int, int] | None:
    """Return variable, smallest residue and modulus: (x, 3, 7) for x ≡ 10 (mod 7). None if `text` is no congruence.

    If `reads_general_solution`, the general solution x = 7k + 3 is read, too; alone, it could be the equation of a
    line.
    """
    plain = without_text_commands(normalize_notation(text.replace("≡", "\\equiv "))).strip()
    plain = _WORDS_BEFORE.sub("", _SET_OF_SOLUTIONS.sub(r"\1, \2 \\in \\mathbb{Z}", plain))
    if reads_general_solution and (solution := _SOLUTION.fullmatch(plain)):
        modulus = int(solution[2] or 1)
        return solution[1] or "", int(re.sub(r"\s", "", solution[4] or "0")) % modulus, modulus
    if reads_general_solution and (solution := _SOLUTION_FROM_START.fullmatch(plain)):
        modulus = int(solution[3] or 1)
        return solution[1] or "", int(solution[2]) % modulus, modulus
    match = _CONGRUENCE.fullmatch(plain)
    if match is None:
        return None
    modulus = int(match[3])
    return match[1] or "", int(match[2]) % modulus, modulus
