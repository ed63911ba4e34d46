"""Computer algebra with math-verify. Slow to import, and a call may never end, so only worker processes load this."""

from __future__ import annotations

import sympy
from math_verify import LatexExtractionConfig, parse, verify
from sympy import Basic, Expr, MatrixBase, Set, Tuple
from sympy.core.relational import Relational
from sympy.logic.boolalg import Boolean

_TYPES = (MatrixBase, Relational, Boolean, Tuple, Set, Expr)
_CONFIG = [LatexExtractionConfig()]
"""LaTeX only: the other reader of math-verify evaluates text as Python."""
_POINTS = (sympy.Rational(13, 11), sympy.Rational(29, 17))
_TOLERANCE = sympy.Float("1e-9")
_DIGITS = 30


def difference(gold: str, answer: str) -> str:
    """Return the reason why two formulas in LaTeX are not equal; "" if they are."""
    right, formula = _parse(gold), _parse(answer)
    if right is None or formula is None:
        return "cannot be read as a formula" if formula is None else f"the right answer {gold!r} cannot be read"
    if len({next((type_ for type_ in _TYPES if isinstance(each, type_)), None) for each in (right, formula)}) > 1:
        return "another kind of thing than the right answer"
    if isinstance(formula, Expr) and isinstance(right, Expr) and (why := _visible_difference(right, formula)):
        return why
    # No time-outs of its own: they need the main thread and do not interrupt C; the whole process is killed instead.
    if not verify([right], [formula], strict=True, timeout_seconds=None):
        return f"not the same as {gold}"
    return ""


def _parse(latex: str) -> Basic | MatrixBase | None:
    parsed = parse(f"${latex}$", extraction_config=_CONFIG, fallback_mode="no_fallback", parsing_timeout=None)  # type: ignore[arg-type]
    return parsed[0] if parsed and not isinstance(parsed[0], str) else None


def _visible_difference(right: Expr, formula: Expr) -> str:
    """Return a difference that needs no simplification, even if small (math-verify rounds); "" if there is none."""
    if formula.has(sympy.zoo, sympy.nan, sympy.oo) and not right.has(sympy.zoo, sympy.nan, sympy.oo):
        return "not a number"
    if formula.free_symbols - right.free_symbols:
        return "variables that the right answer does not have"
    for point in _POINTS:
        a, b = (each.subs(dict.fromkeys(right.free_symbols, point)).evalf(_DIGITS) for each in (right, formula))
        if a.is_number and b.is_number and not abs(a - b) <= _TOLERANCE * max(abs(a), abs(b)):
            return f"another value than {right}"
    return ""
