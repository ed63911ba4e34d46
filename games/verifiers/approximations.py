r"""Answers that state a number together with its rounded value: \sqrt{7} \approx 2.65."""

from __future__ import annotations

import re
from fractions import Fraction

from games.verifiers.closed_form import exact, is_scalar, is_worked_out, symbols
from games.verifiers.formulas import Tree, number, read_formula
from games.verifiers.notation import plain
from games.verifiers.tokens import UnreadableError

_ROUNDED = re.compile(r"\s*-?[0-9]+(?:\.([0-9]{1,30}))?\s*")
_IRRATIONAL = Tree("root", (number(2), number(2)))


def approximated(answer: str, gold: str) -> tuple[str, ...]:
    """Return a number and its rounded value, if an answer states both and they agree to the digits that it shows.

    The number must be worked out: an irrational number may be, or what is written as the right answer is.
    """
    exactly, sign, rounded = plain(answer).partition("\\approx")
    shown = _ROUNDED.fullmatch(rounded)
    if not sign or shown is None:
        return ()
    try:
        stated, right = read_formula(exactly), read_formula(gold)
    except UnreadableError:
        return ()
    if stated.head == "relation" and stated.name == "=" and len(stated.parts) == 2 and symbols(stated.parts[0]):
        stated = stated.parts[1]
    if not is_scalar(stated) or symbols(stated) or not _is_worked_out(stated, right):
        return ()
    value, half = _value(stated), Fraction(1, 2 * 10 ** len(shown[1] or ""))
    agree = value is not None and abs(value - Fraction(rounded.strip())) <= half
    return (exactly.strip(), rounded.strip()) if agree else ()


def _is_worked_out(stated: Tree, right: Tree) -> bool:
    return is_worked_out(stated, _IRRATIONAL) or (not symbols(right) and is_worked_out(stated, right))


def _value(tree: Tree) -> Fraction | None:
    from games.verifiers.symbolic import approximate

    value = exact(tree)
    return approximate(tree) if value is None else value
