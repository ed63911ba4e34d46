"""Verifier of countdown answers: arithmetic that reaches the target with the problem's numbers."""

from __future__ import annotations

import ast
import operator
from collections import Counter
from collections.abc import Callable, Mapping
from fractions import Fraction

from games.verifiers.reading import reject
from marl.protocols import VerifierConfig
from marl.types import Case, Verdict

_MAX_LENGTH = 200
"""Characters. An expression of six numbers needs fewer, and text this short is parsed fast."""
_PLAIN_SIGNS = str.maketrans("×·÷−", "**/-")  # noqa: RUF001 (deliberately ambiguous)
_OPERATIONS: Mapping[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


class CountdownVerifier(VerifierConfig):
    """Accepts an expression of `facts.numbers`, each used at most once, whose value is `facts.target`."""

    kind: str = "countdown_expression"

    def __call__(self, case: Case) -> Verdict:
        if not case.answer:
            return reject("no answer")
        try:
            why = _fault(case.answer, list(case.problem.facts["numbers"]), int(case.problem.facts["target"]))
        except (SyntaxError, ValueError, ZeroDivisionError) as error:
            why = f"not an expression: {type(error).__name__}: {error}"
        return reject(why) if why else Verdict(1.0)


def _fault(text: str, numbers: list[int], target: int) -> str:
    """Return the fault of the expression, "" if it is right; errors of parsing and evaluation are raised."""
    expression, equals, stated = text.strip().translate(_PLAIN_SIGNS).partition("=")
    if len(text) > _MAX_LENGTH:
        raise ValueError(f"{len(text)} characters, at most {_MAX_LENGTH}")
    if equals and stated.strip() != str(target):
        return f"states the result {stated.strip()!r}, not {target}"
    used: list[int] = []
    value = _value(ast.parse(expression.strip(), mode="eval").body, used)
    if surplus := Counter(used) - Counter(numbers):
        return f"uses {sorted(surplus.elements())}, which are not left in {numbers}"
    return "" if value == target else f"makes {value}, not {target}"


def _value(node: ast.expr, used: list[int]) -> Fraction:
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        return _OPERATIONS[type(node.op)](_value(node.left, used), _value(node.right, used))
    if isinstance(node, ast.Constant) and type(node.value) is int:
        used.append(node.value)
        return Fraction(node.value)
    raise ValueError(f"{ast.unparse(node)!r} is none of + - * / and whole numbers")
