"""Sums, products and integrals, which are compared by their text up to the name of the bound variable."""

from __future__ import annotations

import re

from marl.games.verifiers.latex_notation import GROUP_COMMAND, normalize_notation

_SUM = re.compile(r"\\(?:sum|prod)_\{?([a-zA-Z])=")
_INTEGRAL = re.compile(r"\\int(?![a-zA-Z]).*d([a-zA-Z])$")
_BINDERS = re.compile(r"\\(?:sum|prod|i*nt|oint|lim)(?![a-zA-Z])")


def with_standard_bound_variable(text: str) -> str:
    """Return a formula with one sum, product or integral without spaces, and with # for its bound variable.

    Any other text is returned unchanged.
    """
    if len(_BINDERS.findall(text)) != 1:
        return text
    plain = re.sub(r"\s", "", GROUP_COMMAND.sub(" ", normalize_notation(text)))
    match = _SUM.search(plain) or _INTEGRAL.search(plain)
    if match is None or "#" in plain:
        return text
    name = match[1]
    if _INTEGRAL.search(plain):
        # The d of a differential is spelled out as "differential", so that it is not confused with a name such as d_1.
        plain = plain[: -len(name) - 1] + f"differential{name}"
    return re.sub(rf"(?<!\\)(?<![A-Za-z]){name}(?![A-Za-z])|(?<=differential){name}$", "#", plain)
