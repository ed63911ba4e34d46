r"""Binomial coefficients in other notations than \binom{10}{3}: C(10,3), {10 \choose 3}, C_{10}^3, {}_{10}C_3, 10C3."""

from __future__ import annotations

import re

_NUMBER = r"\{?\s*([0-9n]{1,4})\s*\}?"
_FORMS = tuple(
    re.compile(pattern)
    for pattern in (
        r"\{\s*([^{}]{1,20}?)\s*\\choose\s*([^{}]{1,20}?)\s*\}",
        rf"(?:\{{\s*\}})?\s*[_^]{_NUMBER}\s*(?:\\(?:mathrm|text)\s*\{{\s*)?C\s*\}}?\s*_{_NUMBER}",
        rf"(?<![A-Za-z\\])C_{_NUMBER}\^{_NUMBER}",
        r"(?<![A-Za-z\\])C\s*\(\s*([0-9n]{1,4})\s*,\s*([0-9k]{1,4})\s*\)",
        r"(?<![A-Za-z0-9\\])([0-9]{1,4})\s?C\s?([0-9]{1,4})(?![A-Za-z0-9])",
    )
)


def with_binomials(text: str) -> str:
    r"""Return `text` with \binom{n}{k} for all notations of binomial coefficients."""
    for form in _FORMS:
        text = form.sub(r"\\binom{\1}{\2}", text)
    return text
