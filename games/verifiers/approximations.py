r"""Answers with an exact number and its rounded value: \sqrt{7} \approx 2.65."""

from __future__ import annotations

import re
from fractions import Fraction

from marl.games.verifiers.closed_form import IRRATIONAL_ROOT, exact_value, is_fully_evaluated, is_scalar, variables
from marl.games.verifiers.formulas import read_formula
from marl.games.verifiers.latex_notation import normalize_notation
from marl.games.verifiers.tokens import UnreadableFormulaError

_ROUNDED = re.compile(r"\s*-?[0-9]+(?:\.([0-9]{1,30}))?\s*")


def split_exact_and_rounded(answer: str, gold: str) -> tuple[str, ...]:
    r"""Return exact number and rounded value in an answer such as \sqrt{7} \approx 2.65, or () for any other answer.

    Both values must agree to the digits shown. The exact number must be worked out, as an irrational number or in the
    form of `gold`.
    """
    exact, sign, rounded = normalize_notation(answer).partition("\\approx")
    shown = _ROUNDED.fullmatch(rounded)
    if not sign or shown is None:
        return ()
    try:
        stated, right = read_formula(exact), read_formula(gold)
    except UnreadableFormulaError:
        return ()
    if stated.head == "relation" and stated.name == "=" and len(stated.operands) == 2 and variables(stated.operands[0]):
        stated = stated.operands[1]
    if not is_scalar(stated) or variables(stated):
        return ()
    if not is_fully_evaluated(stated, IRRATIONAL_ROOT) and (variables(right) or not is_fully_evaluated(stated, right)):
        return ()
    value = exact_value(stated)
    if value is None:
        # Imported here, so that `marl check` does not load python-flint.
        from marl.games.verifiers.symbolic import approximate

        value = approximate(stated)
    half_of_last_digit = Fraction(1, 2 * 10 ** len(shown[1] or ""))
    if value is None or abs(value - Fraction(rounded.strip())) > half_of_last_digit:
        return ()
    return exact.strip(), rounded.strip()
