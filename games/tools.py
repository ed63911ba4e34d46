"""Tools for agents: Python in a sandbox, and a calculator."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic import Field, PositiveFloat, model_validator

from marl.protocols import ToolConfig
from marl.sandbox import Sandbox, run_program, unusable_reason

Number = int | float
_MAX_BITS = 4096
"""Maximum number of bits of an integer; larger results are refused before they are computed."""
_OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_UNARY_OPERATORS: Mapping[type[ast.unaryop], Callable[[Any], Any]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}


def _round(value: Number, digits: Number = 0) -> Number:
    if digits not in range(21):
        raise ValueError(f"expression: cannot round to {digits} digits; choices: 0 to 20")
    return round(value, int(digits)) if digits else round(value)


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {"abs": abs, "max": max, "min": min, "round": _round, "sqrt": math.sqrt}
_NAMES: Mapping[str, Number] = {"e": math.e, "pi": math.pi}


class PythonTool(ToolConfig):
    """Tool to run `code` in a sandbox. The result is the output, plus the last line of the error after a failure."""

    kind: str = "python"
    sandbox: Sandbox = Sandbox(output_kb=4)
    """Limits of the program."""

    @model_validator(mode="after")
    def _check_timeout(self) -> PythonTool:
        self.sandbox.check_timeout(self.timeout_s)
        return self

    def unmet_requirements(self) -> Iterable[str]:
        if fault := unusable_reason(self.sandbox):
            yield fault

    def __call__(self, arguments: Mapping[str, Any]) -> str:
        result = run_program(self.sandbox, _single_argument(arguments, "code"))
        limits = {
            "timeout": f"stopped: it ran longer than {self.sandbox.wall_s:g} s",
            "memory": f"stopped: it took more than {self.sandbox.memory_mb} MB",
            "output": f"stopped: it said more than {self.sandbox.output_kb} kB",
            "killed": f"killed with status {result.status}",
        }
        fault = limits.get(result.reason) or result.last_error or f"ended with status {result.status}"
        lines = (result.stdout.rstrip("\n"), "" if result.succeeded else fault)
        return "\n".join(filter(None, lines)) or "(no output)"


class CalculatorTool(ToolConfig):
    """Tool to evaluate `expression`: numbers, + - * / // % **, brackets, abs, max, min, round, sqrt, pi and e."""

    kind: str = "calculator"
    timeout_s: PositiveFloat = 2.0
    """Time limit of a call [seconds]."""
    longest: int = Field(default=200, ge=1, le=2000)
    """Maximum number of characters of an expression."""

    def __call__(self, arguments: Mapping[str, Any]) -> str:
        expression = _single_argument(arguments, "expression")
        if len(expression) > self.longest:
            raise ValueError(f"expression: {len(expression)} characters; at most {self.longest} are worked out")
        try:
            return str(_evaluate(ast.parse(expression.strip(), mode="eval").body))
        except SyntaxError as error:
            raise ValueError(f"expression: {expression!r} cannot be read: {error.msg}") from error
        except (ArithmeticError, TypeError, RecursionError, MemoryError) as error:
            raise ValueError(f"expression: {expression!r} has no value: {error}") from error


def _single_argument(arguments: Mapping[str, Any], name: str) -> str:
    if set(arguments) != {name} or not isinstance(arguments[name], str):
        raise ValueError(f"must be called with {name}, a text, and nothing else; got {sorted(map(str, arguments))}")
    return arguments[name]


def _evaluate(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=value) if type(value) in (int, float):
            return _check_size(value)
        case ast.UnaryOp(op=sign, operand=operand) if type(sign) in _UNARY_OPERATORS:
            return _UNARY_OPERATORS[type(sign)](_evaluate(operand))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _combine(_evaluate(left), op, _evaluate(right))
        case ast.Name(id=name) if name in _NAMES:
            return _NAMES[name]
        case ast.Call(func=ast.Name(id=name), args=operands, keywords=[]) if name in _FUNCTIONS:
            return _check_size(_FUNCTIONS[name](*map(_evaluate, operands)))
    raise ValueError(f"expression: {ast.unparse(node)!r} is no arithmetic")


def _combine(left: Number, op: ast.operator, right: Number) -> Number:
    match op, left, right:
        # Checked before the evaluation, as a power of large integers may take hours.
        case ast.Pow(), int(), int() if abs(left) > 1 and abs(right) * left.bit_length() > 2 * _MAX_BITS:
            raise ValueError(f"expression: a power of more than {_MAX_BITS} bits")
    return _check_size(_OPERATORS[type(op)](left, right))


def _check_size(value: Any) -> Number:
    if isinstance(value, complex):
        raise ValueError("expression: its value is no real number")
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        raise ValueError(f"expression: a number of more than {_MAX_BITS} bits")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("expression: a number that is too large")
    return value
