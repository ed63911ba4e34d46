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
"""Maximum length of an expression, in characters. Six numbers need fewer, and text this short is parsed fast."""
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
        try:
            why = _fault(answer, list(problem.facts["numbers"]), int(problem.facts["target"]))
        except (SyntaxError, ValueError, ZeroDivisionError) as error:
            why = f"{quote(answer)} is no expression: {type(error).__name__}"
        return reject(why) if why else Verdict(1.0)


def _fault(text: str, numbers: list[int], target: int) -> str:
    """Return the fault of the expression `text`, or "" if it is right.

    Raises:
        SyntaxError, ValueError, ZeroDivisionError: the expression cannot be parsed or evaluated.
    """
    text = text.translate(_PLAIN_SIGNS)
    for pattern, sign in _LATEX_SIGNS:
        text = pattern.sub(sign, text)
    if len(text) > _MAX_LENGTH or not _FORM.fullmatch(text):
        raise ValueError("more than + - * / and whole numbers")
    expression, _, stated = text.partition("=")
    if stated and int(stated) != target:
        return f"states the result {int(stated)}, not {target}"
    used: list[int] = []
    value = _value(ast.parse(expression.strip(), mode="eval").body, used)
    if surplus := Counter(used) - Counter(numbers):
        return f"uses {sorted(surplus.elements())}, which are not left in {numbers}"
    return "" if value == target else f"makes {value}, not {target}"


def _value(node: ast.expr, used: list[int]) -> Fraction:
    """Return the exact value of `node`, and append its numbers to `used`."""
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        return _OPERATIONS[type(node.op)](_value(node.left, used), _value(node.right, used))
    if isinstance(node, ast.Constant) and type(node.value) is int:  # True is an int for isinstance
        used.append(node.value)
        return Fraction(node.value)
    raise ValueError("more than + - * / and whole numbers")
