r"""Answers with an exact number and its rounded value: \sqrt{7} \approx 2.65."""

from __future__ import annotations

import re
from fractions import Fraction

from marl.games.verifiers.closed_form import IRRATIONAL_ROOT, exact_value, is_scalar, is_worked_out, variables
from marl.games.verifiers.formulas import read_formula
from marl.games.verifiers.latex_notation import normalize_notation
from marl.games.verifiers.tokens import UnreadableError

_ROUNDED = re.compile(r"\s*-?[0-9]+(?:\.([0-9]{1,30}))?\s*")


def exact_and_rounded(answer: str, gold: str) -> tuple[str, ...]:
    """Return the exact number and the rounded value that `answer` states, or () if it does not state both.

    Both must agree to the digits shown. The exact number must be worked out, as an irrational number or like `gold`.
    """
    exact, sign, rounded = normalize_notation(answer).partition("\\approx")
    shown = _ROUNDED.fullmatch(rounded)
    if not sign or shown is None:
        return ()
    try:
        stated, right = read_formula(exact), read_formula(gold)
    except UnreadableError:
        return ()
    if stated.head == "relation" and stated.name == "=" and len(stated.operands) == 2 and variables(stated.operands[0]):
        stated = stated.operands[1]
    if not is_scalar(stated) or variables(stated):
        return ()
    if not is_worked_out(stated, IRRATIONAL_ROOT) and (variables(right) or not is_worked_out(stated, right)):
        return ()
    value = exact_value(stated)
    if value is None:
        # Here, so that `marl check` does not load mpmath.
        from marl.games.verifiers.symbolic import approximate

        value = approximate(stated)
    half_of_last_digit = Fraction(1, 2 * 10 ** len(shown[1] or ""))
    if value is None or abs(value - Fraction(rounded.strip())) > half_of_last_digit:
        return ()
    return exact.strip(), rounded.strip()
