r"""Signs of vector analysis: the cross product, and \nabla as gradient, divergence, curl and Laplacian."""

# ruff: noqa: RUF001 (the sign of the cross product looks like a letter)

from __future__ import annotations

import re

from marl.games.verifiers.formulas import VECTOR_OPERATORS, Formula

_VECTORS = re.compile(r"\\nabla|∇|\\vec\b|\\overrightarrow|\bcross product|\bvectors?\b|\bcurl\b|\bdivergence\b", re.I)
_SIGNS = re.compile(r"\\times|\\nabla|∇|\u00d7|binom|\b(?:curl|rot|div|grad)\b")
_NABLA = r"(?:\\(?:vec|mathbf|boldsymbol|bm)\s*\{?\s*\\nabla\b\s*\}?|\\nabla\b|∇)\s*"
_DOT, _CROSS = r"(?:\\cdot(?![A-Za-z])|·|⋅|\*)\s*", r"(?:\\times(?![A-Za-z])|×)"
_REWRITES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        # School notation of a column vector.
        (r"\\d?binom\s*\{([^{}]*)\}\s*\{([^{}]*)\}", r"\\begin{pmatrix}\1\\\\\2\\end{pmatrix}"),
        (
            r"\\(?:text|mathrm|operatorname)\s*\{\s*(curl|rot|div|grad)\s*\}|\\?\b(curl|rot|div|grad)\b(?=\s*[\\A-Za-z(])",
            lambda match: f"\\{_OPERATORS[match[1] or match[2]]} ",
        ),
        (rf"{_NABLA}{_DOT}(?:\(\s*{_NABLA}([A-Za-z])\s*\)|{_NABLA}(?!{_DOT}|{_CROSS}))", r"\\laplacian \1"),
        (rf"{_NABLA}(?:\^\s*\{{?\s*2\s*\}}?|²)\s*", r"\\laplacian "),
        (rf"{_NABLA}{_DOT}", r"\\divergence "),
        (rf"{_NABLA}{_CROSS}", r"\\curl "),
        (rf"{_NABLA}(?=[A-Za-z(\\])", r"\\gradient "),
        (rf"(?<=[A-Za-z}})'])(\s*){_CROSS}(?=\s*(?:\\?[A-Za-z(]))", r"\1\\cross "),
    )
)
_DELTA = re.compile(r"(?:\\Delta\b|Δ|∆)\s*(?=[A-Za-z(\\])")
_OPERATORS = {"curl": "curl", "rot": "curl", "div": "divergence", "grad": "gradient"}


def mark_vector_operations(text: str, context: str) -> str:
    r"""Return `text` with \cross, \curl and the like, if `context` (question and answers) names vectors."""
    if "\\nabla" in context or "∇" in context:
        text = _DELTA.sub(r"\\laplacian ", text)
    if not (_SIGNS.search(text) and _VECTORS.search(context)):
        return text
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    return text


def with_separate_terms(tree: Formula) -> Formula:
    r"""Return `tree` with \nabla f + \nabla g for \nabla (f + g), and the like for the other operators."""
    operands = tuple(map(with_separate_terms, tree.operands))
    tree = Formula(tree.head, operands, tree.name, tree.value)
    if tree.head != "call" or tree.name not in VECTOR_OPERATORS or operands[0].head not in ("sum", "negative"):
        return tree
    (inner,) = operands
    terms = [with_separate_terms(Formula("call", (term,), tree.name)) for term in inner.operands]
    return Formula(inner.head, tuple(terms))
