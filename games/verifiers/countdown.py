"""Countdown answers: arithmetic that reaches the target with the numbers given."""

from __future__ import annotations

import ast
import operator
from collections import Counter
from collections.abc import Callable, Mapping
from fractions import Fraction

from marl.protocols import VerifierConfig
from marl.types import Case, Verdict

_LONGEST = 200
"""Characters. An expression of six numbers needs fewer, and nothing this short is slow to parse."""
_SIGNS = str.maketrans(
    {
        "\N{MULTIPLICATION SIGN}": "*",
        "\N{MIDDLE DOT}": "*",
        "\N{DIVISION SIGN}": "/",
        "\N{MINUS SIGN}": "-",
    }
)
_OPERATIONS: Mapping[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


class Countdown(VerifierConfig):
    """An expression of `facts.numbers`, each used at most once, that makes `facts.target` exactly."""

    kind: str = "countdown"

    def __call__(self, case: Case) -> Verdict:
        if not case.answer:
            return Verdict(0.0, "no answer")
        try:
            why = _fault(case.answer, list(case.problem.facts["numbers"]), int(case.problem.facts["target"]))
        except (SyntaxError, ValueError, ZeroDivisionError) as error:
            why = f"not an expression: {type(error).__name__}: {error}"
        return Verdict(0.0 if why else 1.0, why)


def _fault(text: str, numbers: list[int], target: int) -> str:
    """What is wrong with the expression; empty if nothing is.

    Raises:
        SyntaxError, ValueError, ZeroDivisionError: if it has no value.
    """
    expression, equals, stated = text.strip().translate(_SIGNS).partition("=")
    if len(text) > _LONGEST:
        raise ValueError(f"{len(text)} characters, at most {_LONGEST}")
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
