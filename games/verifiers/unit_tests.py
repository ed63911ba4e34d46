"""Verifier of code by unit tests: a sandbox runs the code, and its results are compared outside the sandbox."""

from __future__ import annotations

import ast
import builtins
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import PositiveFloat, model_validator

from marl.core.types import Problem, Verdict, VerifierCase
from marl.games.verifiers import unit_test_harness
from marl.games.verifiers.answer_verifier import reject
from marl.host.outside import replace_surrogates
from marl.protocols import VerifierConfig
from marl.sandbox import ProgramResult, Sandbox, run_program, unusable_reason
from marl.text.answers import last_code_block, without_thoughts

_EXCEPTIONS = frozenset(name for name, kind in vars(builtins).items() if isinstance(kind, type))
_COLLECTIONS = {"set": set, "frozenset": frozenset, "tuple": tuple, "list": list}
_FORMS = (
    "'assert f(2) == 4' (one comparison with plain data), {call: 'f(2)', expect: '4'} (both are Python), "
    "{stdin: ..., stdout: ...}, or [stdin, stdout]"
)


@dataclass(frozen=True, slots=True)
class CallTest:
    """An expression and its expected value, in the form of `unit_test_harness.to_tagged_json`."""

    call: str
    expect: Any


@dataclass(frozen=True, slots=True)
class OutputTest:
    """Standard input of a program and its expected output."""

    stdin: str
    stdout: str


class UnitTestsVerifier(VerifierConfig):
    """Accepts Python code that passes every test in the problem's `facts.tests`.

    A test is `{call: "f(2)", expect: "4"}`, `{stdin: "2", stdout: "4"}` (or the pair as a list) or the source of an
    assertion about a call and plain data. Expected results never enter the sandbox.
    """

    kind: str = "unit_tests"
    timeout_s: PositiveFloat = 60.0
    """Maximum time of a verdict, in seconds."""
    sandbox: Sandbox = Sandbox()
    """Limits of each run. All call tests share one run of `wall_s`; every test with input has a separate run."""
    partial: bool = False
    """Score: with true the share of passed tests, with false 1 if all tests pass, else 0."""

    @model_validator(mode="after")
    def _check_timeout(self) -> UnitTestsVerifier:
        self.sandbox.check_timeout(self.timeout_s)
        return self

    def unmet_requirements(self) -> Iterable[str]:
        if fault := unusable_reason(self.sandbox):
            yield fault

    def __call__(self, case: VerifierCase) -> Verdict:
        tests = parse_tests(case.problem)
        if case.answer is None:
            return reject("no code")
        text = replace_surrogates(without_thoughts(case.answer))
        failures = self._failures(last_code_block(text, "python") or text, tests)
        if not self.partial:
            first = next(failures, "")
            return reject(first) if first else Verdict(1.0)
        failed = list(failures)
        return Verdict(1 - len(failed) / len(tests), failed[0] if failed else "")

    def _failures(self, code: str, tests: Sequence[CallTest | OutputTest]) -> Iterator[str]:
        """Yield the reason of each failed test, without the test, its expected result or the output of the code.

        Models may read the reason, and the output of the code may reveal the test.
        """
        calls = [test for test in tests if isinstance(test, CallTest)]
        if calls:
            yield from self._call_failures(code, calls)
        output_tests = [test for test in tests if isinstance(test, OutputTest)]
        for number, test in enumerate(output_tests, 1):
            result = run_program(self.sandbox, code, test.stdin)
            if not result.succeeded:
                yield f"input {number}: {_describe_end(result)}"
            elif _lines(result.stdout) != _lines(test.stdout):
                yield f"input {number}: another output than the right one"

    def _call_failures(self, code: str, calls: Sequence[CallTest]) -> Iterator[str]:
        """Yield the reason of each failed call test; all calls are evaluated in one run."""
        files = {unit_test_harness.ANSWER: code, unit_test_harness.CALLS: json.dumps([call.call for call in calls])}
        result = run_program(self.sandbox, Path(unit_test_harness.__file__).read_text(encoding="utf-8"), files=files)
        lines = result.stdout.split("\n")[:-1]
        if len(lines) > len(calls):
            # The code wrote to the channel of results, so that no line can be trusted.
            yield from ["it said more than it was asked"] * len(calls)
            return
        for number, call in enumerate(calls, 1):
            if number > len(lines):
                yield f"call {number}: no result: {_describe_end(result)}"
            elif (value := _parse_line(lines[number - 1])) == [unit_test_harness.RAISED]:
                yield f"call {number}: it raised an exception"
            elif not _equal(value, call.expect):
                yield f"call {number}: another result than the right one"


def _parse_line(line: str) -> Any:
    """Return the JSON value of a line of results, or a value equal to no result if it is unreadable."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return ["unreadable"]


def _equal(value: Any, expected: Any) -> bool:
    """Return True if two tagged values are equal in Python, except that True is not 1."""
    if isinstance(value, list) and isinstance(expected, list):
        return len(value) == len(expected) and all(map(_equal, value, expected))
    numbers = (int, float)
    return value == expected and (
        type(value) is type(expected) or (type(value) in numbers and type(expected) in numbers)
    )


def _lines(text: str) -> list[str]:
    """Return the lines of `text` without trailing spaces, and without empty lines at the end."""
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _describe_end(result: ProgramResult) -> str:
    """Return the reason for a program's failure to finish: of its output, at most the name of a built-in exception."""
    reasons = {"timeout": "it ran too long", "memory": "it took too much memory", "output": "it said too much"}
    raised = re.match(r"\w{1,40}", result.last_error)
    if result.reason not in reasons and raised and raised[0] in _EXCEPTIONS:
        return f"it raised {raised[0]}"
    return reasons.get(result.reason, f"it ended with status {result.status}")


# --- tests as data ---------------------------------------------------------------------------------------------------


def parse_tests(problem: Problem) -> list[CallTest | OutputTest]:
    """Return the tests in `facts.tests`; raise ValueError without tests, or for a test that the sandbox would judge."""
    tests = problem.facts.get("tests")
    if not isinstance(tests, list | tuple) or not tests:
        raise ValueError(f"problem {problem.key!r}: facts.tests: {tests!r} is no list of tests; choices: {_FORMS}")
    return [_parse_test(test, f"problem {problem.key!r}: facts.tests[{number}]") for number, test in enumerate(tests)]


def _parse_test(test: Any, where: str) -> CallTest | OutputTest:
    """Return the test `test`, named `where` in errors."""
    match test:
        case str():
            return _parse_assertion(test, where)
        case {"call": str(call), "expect": str(expect), **other_keys} if not other_keys:
            return _call_test(_parse_expression(call, where), _parse_expression(expect, where), where)
        case {"stdin": str(stdin), "stdout": str(stdout), **other_keys} if not other_keys:
            return OutputTest(stdin, stdout)
        case [str(stdin), str(stdout)]:
            return OutputTest(stdin, stdout)
    raise ValueError(f"{where}: {test!r} is no test; choices: {_FORMS}")


def _parse_assertion(text: str, where: str) -> CallTest:
    """Return the test in an assertion. The assertion itself is not run, since the code could make it pass."""
    try:
        (statement,) = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{where}: {text!r} is not one statement of Python; choices: {_FORMS}") from error
    match statement:
        case ast.Assert(test=ast.Compare(left=left, ops=[ast.Eq() | ast.Is()], comparators=[right])):
            call, value = (right, left) if _is_literal(left) and not _is_literal(right) else (left, right)
            return _call_test(call, value, where)
    raise ValueError(f"{where}: {text!r} is no comparison of a call with plain data; choices: {_FORMS}")


def _call_test(call: ast.expr, value: ast.expr, where: str) -> CallTest:
    """Return the test that `call` has the result `value`, a literal."""
    expected = _literal(value, where)
    if _is_literal(call):
        raise ValueError(f"{where}: {ast.unparse(call)!r} is plain data and calls nothing, so it tests nothing")
    return CallTest(ast.unparse(call), unit_test_harness.to_tagged_json(expected))


def _parse_expression(text: str, where: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{where}: {text!r} is no Python expression") from error


def _is_literal(node: ast.expr) -> bool:
    try:
        _literal(node, "")
    except ValueError:
        return False
    return True


def _literal(node: ast.expr, where: str) -> Any:
    """Return the value of a Python literal; collections may be written as calls such as `set([1, 2])`."""
    try:
        match node:
            case ast.Call(func=ast.Name(id=name), args=[inner], keywords=[]) if name in _COLLECTIONS:
                return _COLLECTIONS[name](_literal(inner, where))
            case ast.Call(func=ast.Name(id=name), args=[], keywords=[]) if name in _COLLECTIONS:
                return _COLLECTIONS[name]()
        return ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(f"{where}: {ast.unparse(node)!r} is no plain data such as 4, 'a' or [1, (2, 3)]") from error
