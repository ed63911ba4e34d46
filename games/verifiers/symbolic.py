"""Computer algebra: math-verify as one part. Slow to import, and it may never come back, so only workers load this."""

from __future__ import annotations

import sympy
from math_verify import LatexExtractionConfig, parse, verify
from sympy import Basic, Expr, MatrixBase, Set, Tuple
from sympy.core.relational import Relational
from sympy.logic.boolalg import Boolean

_KINDS = (MatrixBase, Relational, Boolean, Tuple, Set, Expr)
_CONFIG = [LatexExtractionConfig()]
"""Only LaTeX: its other reader evaluates text as Python."""
_PLACES = (sympy.Rational(13, 11), sympy.Rational(29, 17))
_AGREE = sympy.Float("1e-9")
_DIGITS = 30


def same(gold: str, said: str) -> str:
    """Why two formulas in LaTeX are not the same; "" if they are."""
    right, found = _read(gold), _read(said)
    if right is None or found is None:
        return "cannot be read as a formula" if found is None else f"the right answer {gold!r} cannot be read"
    if _kind(right) is not _kind(found):
        return "another kind of thing than the right answer"
    if isinstance(found, Expr) and isinstance(right, Expr) and (why := _unlike(right, found)):
        return why
    # No time-outs of its own: they need the main thread and do not interrupt C; the whole process is killed instead.
    if not verify([right], [found], strict=True, timeout_seconds=None):
        return f"not the same as {gold}"
    return ""


def _read(latex: str) -> Basic | MatrixBase | None:
    found = parse(f"${latex}$", extraction_config=_CONFIG, fallback_mode="no_fallback", parsing_timeout=None)  # type: ignore[arg-type]
    return found[0] if found and not isinstance(found[0], str) else None


def _kind(thing: Basic | MatrixBase) -> type | None:
    return next((kind for kind in _KINDS if isinstance(thing, kind)), None)


def _unlike(right: Expr, found: Expr) -> str:
    """A difference that shows before anything is simplified; math-verify rounds, so that small numbers look alike."""
    if found.has(sympy.zoo, sympy.nan, sympy.oo) and not right.has(sympy.zoo, sympy.nan, sympy.oo):
        return "not a number"
    if found.free_symbols - right.free_symbols:
        return "variables that the right answer does not have"
    for place in _PLACES:
        values = [thing.subs(dict.fromkeys(right.free_symbols, place)).evalf(_DIGITS) for thing in (right, found)]
        if all(value.is_number for value in values) and not _close(*values):
            return f"another value than {right}"
    return ""


def _close(a: Expr, b: Expr) -> bool:
    return bool(abs(a - b) <= _AGREE * max(abs(a), abs(b)))
