"""Results of tools, for odd arguments too."""

from __future__ import annotations

import re

import pytest
from pydantic import ValidationError

from marl.engines.workers.settings import Tools
from marl.games.tools import CalculatorTool, PythonTool
from marl.sandbox import Sandbox, reason_sandbox_is_unusable


def python(code: str, **limits: float) -> str:
    if fault := reason_sandbox_is_unusable(Sandbox()):
        pytest.skip(fault)
    return PythonTool(timeout_s=60, sandbox=Sandbox(**{"wall_s": 20, "output_kb": 4, **limits}))({"code": code})


def test_python_returns_what_was_printed() -> None:
    assert python("for n in range(3): print(n)") == "0\n1\n2"
    assert python("x = 1") == "(no output)"
    assert python("print('ü')\n1 / 0") == "ü\nZeroDivisionError: division by zero"


def test_python_says_what_stopped_the_code() -> None:
    assert python("print(1, flush=True)\nwhile True: pass", wall_s=0.5) == "1\nstopped: it ran longer than 0.5 s"
    flood = python("while True: print('x' * 99)")
    assert flood.endswith("stopped: it said more than 4 kB")
    assert len(flood) < 5000
    assert python("import os; os.abort()").endswith("killed with status 134")
    assert python("import sys; sys.exit(2)") == "ended with status 2"


def test_python_shuts_the_code_in() -> None:
    assert "FileNotFoundError" in python("open('/etc/passwd')")


@pytest.mark.parametrize("arguments", [{}, {"code": 3}, {"code": "1", "more": 2}, {"program": "1"}])
def test_python_wants_code_and_nothing_else(arguments: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="must be called with code, a text, and nothing else"):
        PythonTool()(arguments)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2 + 3 * 4", "14"),
        (" (1 - 5) ** 2 / 8", "2.0"),
        ("-7 // 2", "-4"),
        ("7 % 4", "3"),
        ("2 ** 0.5", "1.4142135623730951"),
        ("2 ** -1", "0.5"),
        ("2 ** 4000 % 7", str(2**4000 % 7)),
        ("round(2 / 3, 2)", "0.67"),
        ("round(2.5)", "2"),
        ("max(1, abs(-3), sqrt(16))", "4.0"),
        ("pi", "3.141592653589793"),
    ],
)
def test_calculator_works_out(expression: str, value: str) -> None:
    assert CalculatorTool()({"expression": expression}) == value


@pytest.mark.parametrize(
    "expression",
    [
        "9 ** 9 ** 9",
        "9 ** 9 ** 9 ** 9 ** 9",
        "(2 ** 4000) ** 4000",
        "2 ** 4000 * 2 ** 4000",
        "9.0 ** 9 ** 9",
        "1e308 * 10",
        "round(5, -10 ** 9)",
        "round(5, 10 ** 9)",
        "1 / 0",
        "0 ** -1",
        "(-1) ** 0.5",
        "sqrt(-1)",
        "max()",
        "True + 1",
        "'a' * 9",
        "[1] * 9",
        "__import__('os').system('true')",
        "(1).__class__",
        "x",
        "abs(x=1)",
        "lambda: 1",
        "1 if 1 else 2",
        "1; 2",
        "",
        "1 +",
        "\0",
        "\ud800",
        "1" * 201,
        "(" * 99 + "1" + ")" * 99 + "(",
        "-" * 190 + "1)",
    ],
)
def test_calculator_refuses(expression: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        CalculatorTool()({"expression": expression})


def test_calculator_survives_the_deepest_expression_that_it_reads() -> None:
    assert CalculatorTool(longest=2000)({"expression": "-" * 80 + "1"}) == "1"
    with pytest.raises(ValueError, match="expression"):
        CalculatorTool(longest=2000)({"expression": "-" * 1999 + "x"})


@pytest.mark.parametrize("name", ["", "a b", "größe", "x" * 65, "a.b"])
def test_a_name_that_no_server_of_models_takes_is_refused_with_what_is_allowed(name: str) -> None:
    with pytest.raises(ValidationError, match=re.escape("choices: 1 to 64 of A-Z, a-z, 0-9, _ and -")):
        Tools.model_validate({"tools": {name: CalculatorTool()}})
