r"""Symbols with several usual meanings: \log is \ln in analysis and \log_{10} in chemistry, and j is Python's i."""

from __future__ import annotations

import re

from marl.games.verifiers.formulas import Formula, number_formula

_DECIMAL = re.compile(
    r"\bpH\b|\bdecibels?\b|\bRichter\b|\bcommon log|\bbase[- ]?(?:10|ten)\b|\\log_\{?10|\\lg\b|\blg\b", re.I
)
"""Questions whose logarithms have the base 10."""
_LOGARITHM = re.compile(r"\\?\blog\b(?!\s*_)")
_COMPLEX = re.compile(r"\bcomplex\b|\bimaginary\b|\bPython\b|\bimpedance|(?<![A-Za-z])i(?![A-Za-z])|\broots?\b", re.I)
_VECTORS = re.compile(r"\bvectors?\b|\\vec|\\hat|\\mathbf|\bunit\b", re.I)


def with_standard_symbols(tree: Formula, gold: Formula, question: str) -> Formula:
    r"""Return `tree` with the base of its logarithms if `question` or `gold` tells it, and with i for j beside `gold`.

    A right answer with \ln, for a question without \log, makes \log the natural logarithm.
    """
    if _DECIMAL.search(question):
        tree = _with_base(tree, "log", number_formula(10))
    elif any(part.name == "ln" for part in gold.walk()) and not _LOGARITHM.search(question):
        tree = _with_base(tree, "ln", None)
    symbols = tree.symbols()
    is_imaginary = "i" in gold.symbols() and "j" not in gold.symbols() and "j" in symbols and "i" not in symbols
    return (
        _with_name(tree, "j", "i")
        if is_imaginary and _COMPLEX.search(question) and not _VECTORS.search(question)
        else tree
    )


def _with_base(tree: Formula, name: str, base: Formula | None) -> Formula:
    """Return `tree` with the function `name` for each logarithm without a base."""
    operands = tuple(_with_base(part, name, base) for part in tree.operands)
    if tree.head == "call" and tree.name == "log" and len(operands) == 1:
        return Formula("call", operands if base is None else (*operands, base), name)
    return Formula(tree.head, operands, tree.name, tree.value)


def _with_name(tree: Formula, old: str, new: str) -> Formula:
    name = new if tree.head == "symbol" and tree.name == old else tree.name
    return Formula(tree.head, tuple(_with_name(part, old, new) for part in tree.operands), name, tree.value)
