"""Congruences as answers, such as x ≡ 3 (mod 7)."""

from __future__ import annotations

import re

from marl.games.verifiers.latex_notation import normalize_notation, without_text_commands

_CONGRUENCE = re.compile(
    r"([A-Za-z])\s*\\equiv\s*(-?[0-9]{1,30})\s*,?\s*(?:\\pmod|\\bmod|\\mod|\(\s*\\?mod|mod)\s*"
    r"\{?\s*([1-9][0-9]{0,29})\s*\}?\s*\)?"
)


def read_congruence(text: str) -> tuple[str, int, int] | None:
    """Return name, smallest residue and modulus of a congruence, or None if `text` is none."""
    match = _CONGRUENCE.fullmatch(without_text_commands(normalize_notation(text.replace("≡", "\\equiv "))).strip())
    if match is None:
        return None
    modulus = int(match[3])
    return match[1], int(match[2]) % modulus, modulus
