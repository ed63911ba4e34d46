"""Tools for agents: Python in a sandbox, and a calculator."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from pydantic import Field, PositiveFloat, model_validator

from marl.protocols import ToolConfig
from marl.sandbox import Sandbox, reason_sandbox_is_unusable, run_program

Number = int | float
_MAX_BITS = 4096
"""Maximum number of bits of an integer in the calculator; a larger power is refused before its computation."""
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


def _round_number(number: Number, digits: Number = 0) -> Number:
    if digits not in range(21):
        raise ValueError(f"expression: cannot round to {digits} digits; choices: 0 to 20")
    return round(number, int(digits)) if digits else round(number)


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "abs": abs,
    "max": max,
    "min": min,
    "round": _round_number,
    "sqrt": math.sqrt,
}
_NAMES: Mapping[str, Number] = {"e": math.e, "pi": math.pi}


def _object_schema(argument: str, description: str) -> Mapping[str, Any]:
    """Return the JSON schema of the arguments of a tool whose only argument is the text `argument`."""
    properties = {argument: {"type": "string", "description": description}}
    return {"type": "object", "properties": properties, "required": [argument], "additionalProperties": False}


class PythonTool(ToolConfig):
    """Tool to run `code` in a sandbox. The result is the output, plus the last line of the error after a failure."""

    description: ClassVar[str] = "Runs a Python program in a sandbox and returns what it prints."
    parameters: ClassVar[Mapping[str, Any]] = _object_schema("code", "The program.")
    kind: str = "python"
    sandbox: Sandbox = Sandbox(output_kb=4)
    """Limits of the sandbox in which the program runs: time, memory and output."""

    @model_validator(mode="after")
    def _check_timeout(self) -> PythonTool:
        self.sandbox.check_timeout(self.timeout_s)
        return self

    def unmet_requirements(self) -> Iterable[str]:
        if fault := reason_sandbox_is_unusable(self.sandbox):
            yield fault

    def __call__(self, arguments: Mapping[str, Any]) -> str:
        result = run_program(self.sandbox, read_text_argument(arguments, "code"))
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

    description: ClassVar[str] = (
        "Evaluates an arithmetic expression with + - * / // % **, brackets, abs, max, min, round, sqrt, pi and e."
    )
    parameters: ClassVar[Mapping[str, Any]] = _object_schema("expression", "The expression, such as (3 + 4) * 2.")
    kind: str = "calculator"
    timeout_s: PositiveFloat = 2.0
    """Time limit of one evaluation [seconds]."""
    longest: int = Field(default=200, ge=1, le=2000)
    """Maximum number of characters of an expression."""

    def __call__(self, arguments: Mapping[str, Any]) -> str:
        expression = read_text_argument(arguments, "expression")
        if len(expression) > self.longest:
            raise ValueError(f"expression: {len(expression)} characters; at most {self.longest} are worked out")
        try:
            return str(_evaluate_arithmetic(ast.parse(expression.strip(), mode="eval").body))
        except SyntaxError as error:
            raise ValueError(f"expression: {expression!r} cannot be read: {error.msg}") from error
        except (ArithmeticError, TypeError, RecursionError, MemoryError) as error:
            raise ValueError(f"expression: {expression!r} has no value: {error}") from error


def read_text_argument(arguments: Mapping[str, Any], name: str) -> str:
    """Return the text argument `name` of a tool call; raise ValueError if the call has other arguments."""
    if set(arguments) != {name} or not isinstance(arguments[name], str):
        raise ValueError(f"must be called with {name}, a text, and nothing else; got {sorted(map(str, arguments))}")
    return arguments[name]


def _evaluate_arithmetic(node: ast.expr) -> Number:
    """Return the value of an arithmetic expression; raise ValueError if `node` holds anything else."""
    match node:
        case ast.Constant(value=value) if type(value) in (int, float):
            return _require_number_within_limits(value)
        case ast.UnaryOp(op=sign, operand=operand) if type(sign) in _UNARY_OPERATORS:
            return _UNARY_OPERATORS[type(sign)](_evaluate_arithmetic(operand))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            base, operand = _evaluate_arithmetic(left), _evaluate_arithmetic(right)
            # A power is checked before its evaluation, as a power of large integers may take hours.
            if isinstance(op, ast.Pow) and isinstance(base, int) and isinstance(operand, int):
                bits = abs(operand) * base.bit_length()
                if abs(base) > 1 and bits > 2 * _MAX_BITS:
                    raise ValueError(f"expression: a power of more than {_MAX_BITS} bits")
            return _require_number_within_limits(_OPERATORS[type(op)](base, operand))
        case ast.Name(id=name) if name in _NAMES:
            return _NAMES[name]
        case ast.Call(func=ast.Name(id=name), args=operands, keywords=[]) if name in _FUNCTIONS:
            return _require_number_within_limits(_FUNCTIONS[name](*map(_evaluate_arithmetic, operands)))
    raise ValueError(f"expression: {ast.unparse(node)!r} is no arithmetic")


def _require_number_within_limits(number: Any) -> Number:
    """Return `number` if it is a real number within the limits of the calculator, else raise ValueError."""
    if isinstance(number, complex):
        raise ValueError("expression: its value is no real number")
    if isinstance(number, int) and number.bit_length() > _MAX_BITS:
        raise ValueError(f"expression: a number of more than {_MAX_BITS} bits")
    if isinstance(number, float) and not math.isfinite(number):
        raise ValueError("expression: a number that is too large")
    return number
