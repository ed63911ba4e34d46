"""Verifier of countdown answers: arithmetic expressions of the problem's numbers with the target as their value."""

from __future__ import annotations

import ast
import operator
import re
from collections import Counter
from collections.abc import Callable, Mapping
from fractions import Fraction

from marl.core.types import Problem, Verdict
from marl.games.verifiers.answer_verifier import AnswerVerifier, quote, reject

_MAX_LENGTH = 200
"""Maximum length of an expression, in characters. Six numbers need fewer, and so short a text is parsed fast."""
_PLAIN_SIGNS = str.maketrans("×·÷−", "**/-")  # noqa: RUF001 (deliberately ambiguous)
_LATEX_SIGNS = ((re.compile(r"\\(?:times|cdot)(?![a-z])"), "*"), (re.compile(r"\\div(?![a-z])"), "/"))
_FORM = re.compile(r"[0-9+\-*/() ]*(?:= ?-?[0-9]+)?")
_OPERATIONS: Mapping[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


class CountdownVerifier(AnswerVerifier):
    """Accepts an expression of `facts.numbers`, each used at most once, with the value `facts.target`."""

    kind: str = "countdown_expression"

    def grade(self, answer: str, problem: Problem) -> Verdict:
        expression = answer.translate(_PLAIN_SIGNS)
        for pattern, sign in _LATEX_SIGNS:
            expression = pattern.sub(sign, expression)
        formula, _, stated = expression.partition("=")
        used: list[int] = []
        try:
            numbers, target = list(problem.facts["numbers"]), int(problem.facts["target"])
            if len(expression) > _MAX_LENGTH or not _FORM.fullmatch(expression):
                raise ValueError("more than + - * / and whole numbers")
            if stated and int(stated) != target:
                return reject(f"states the result {int(stated)}, not {target}")
            value = _evaluate_expression(ast.parse(formula.strip(), mode="eval").body, used)
        except (SyntaxError, ValueError, ZeroDivisionError) as error:
            return reject(f"{quote(answer)} is no expression: {type(error).__name__}")
        if surplus := Counter(used) - Counter(numbers):
            return reject(f"uses {sorted(surplus.elements())}, which are not left in {numbers}")
        return Verdict(1.0) if value == target else reject(f"makes {value}, not {target}")


def _evaluate_expression(node: ast.expr, used: list[int]) -> Fraction:
    """Return the exact value of an expression's syntax node, and append the numbers in the expression to `used`."""
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        return _OPERATIONS[type(node.op)](_evaluate_expression(node.left, used), _evaluate_expression(node.right, used))
    if isinstance(node, ast.Constant) and type(node.value) is int:  # True is an int for isinstance
        used.append(node.value)
        return Fraction(node.value)
    raise ValueError("more than + - * / and whole numbers")
