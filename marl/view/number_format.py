"""The one format of numbers in tables of the terminal; `figure` in `page/static/words.js` is the same for the page."""

from __future__ import annotations

from math import isfinite

_ROUNDING = 1e-15
"""Absolute value below which a number is a remainder of rounding."""


def count_with_noun(count: int, singular: str, plural: str = "") -> str:
    """Return a number with its noun, such as `1 turn` or `2 turns` (default of `plural`: `singular` and an s)."""
    return f"{count:,} {singular if count == 1 else plural or f'{singular}s'}"


def format_metric_value(value: float) -> str:
    """Return a number as text: a whole number with separators of thousands, any other number with four digits.

    A number below 1e-15 is a remainder of rounding, and is written as 0.
    """
    if not isfinite(value):
        return str(float(value))
    if abs(value) < _ROUNDING:
        return "0"
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) >= 1e6 or abs(value) < 1e-4:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{mantissa}e{int(exponent):+d}"
    # `:.4g` rounds to four digits; `:.10g` then avoids exponents for five-digit numbers.
    return f"{float(f'{value:.4g}'):.10g}"
