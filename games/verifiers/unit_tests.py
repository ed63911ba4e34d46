"""Verifier of code by the unit tests of its problem, which are judged outside the sandbox that runs the code."""

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

from games.verifiers import harness
from games.verifiers.reading import reject
from marl.answer_text import last_code_block, without_thoughts
from marl.protocols import VerifierConfig
from marl.sandbox import ProgramResult, Sandbox, run, unusable
from marl.text import well_formed
from marl.types import Case, Problem, Verdict

_EXCEPTIONS = frozenset(name for name, kind in vars(builtins).items() if isinstance(kind, type))
_COLLECTIONS = {"set": set, "frozenset": frozenset, "tuple": tuple, "list": list}
_FORMS = (
    "'assert f(2) == 4' (one comparison with plain data), {call: 'f(2)', expect: '4'} (both are Python), "
    "{stdin: ..., stdout: ...}, or [stdin, stdout]"
)


@dataclass(frozen=True, slots=True)
class CallTest:
    """An expression and its expected value, in the form of `harness.plain`."""

    call: str
    expect: Any


@dataclass(frozen=True, slots=True)
class OutputTest:
    """Standard input of a program and its expected output."""

    stdin: str
    stdout: str


class UnitTestsVerifier(VerifierConfig):
    """Accepts Python code that passes every test in the problem's `facts.tests`.

    A test is `{call: "f(2)", expect: "4"}`, `{stdin: "2", stdout: "4"}` (or the pair as a list) or the text of an
    assertion that compares a call with plain data. Expected results never enter the sandbox.
    """

    kind: str = "unit_tests"
    timeout_s: PositiveFloat = 60.0
    """Longest time of a verdict, in seconds."""
    sandbox: Sandbox = Sandbox()
    """Limits of the program that runs. All calls share one run of `wall_s`; a test with input has a run of its own."""
    partial: bool = False
    """Score: with true the share of tests passed, with false 1 if all pass, else 0."""

    @model_validator(mode="after")
    def _check_timeout(self) -> UnitTestsVerifier:
        self.sandbox.check_timeout(self.timeout_s)
        return self

    def missing(self) -> Iterable[str]:
        if fault := unusable(self.sandbox):
            yield fault

    def __call__(self, case: Case) -> Verdict:
        tests = parse_tests(case.problem)
        if case.answer is None:
            return reject("no code")
        text = well_formed(without_thoughts(case.answer))
        failures = self._failures(last_code_block(text, "python") or text, tests)
        if not self.partial:
            first = next(failures, "")
            return reject(first) if first else Verdict(1.0)
        failed = list(failures)
        return Verdict(1 - len(failed) / len(tests), failed[0] if failed else "")

    def _failures(self, code: str, tests: Sequence[CallTest | OutputTest]) -> Iterator[str]:
        """Yield the reason of each failure: neither what was expected nor what the tests are, as speakers may hear it.

        What the code says is left out, too, as it may say what it was asked.
        """
        calls = [test for test in tests if isinstance(test, CallTest)]
        if calls:
            yield from self._call_failures(code, calls)
        for number, test in enumerate((test for test in tests if isinstance(test, OutputTest)), 1):
            result = run(self.sandbox, code, test.stdin)
            if not result.succeeded:
                yield f"input {number}: {_describe_end(result)}"
            elif _lines(result.stdout) != _lines(test.stdout):
                yield f"input {number}: another output than the right one"

    def _call_failures(self, code: str, calls: Sequence[CallTest]) -> Iterator[str]:
        files = {harness.ANSWER: code, harness.CALLS: json.dumps([call.call for call in calls])}
        result = run(self.sandbox, Path(harness.__file__).read_text(encoding="utf-8"), files=files)
        lines = result.stdout.split("\n")[:-1]
        if len(lines) > len(calls):
            yield from ["it said more than it was asked"] * len(calls)
            return
        for number, call in enumerate(calls, 1):
            if number > len(lines):
                yield f"call {number}: no result: {_describe_end(result)}"
            elif (value := _parse_line(lines[number - 1])) == [harness.RAISED]:
                yield f"call {number}: it raised an exception"
            elif not _equal(value, call.expect):
                yield f"call {number}: another result than the right one"


def _parse_line(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return ["unreadable"]


def _equal(value: Any, expected: Any) -> bool:
    """Return True if two values in the form of `harness.plain` are equal in Python, except that True is not 1."""
    if isinstance(value, list) and isinstance(expected, list):
        return len(value) == len(expected) and all(map(_equal, value, expected))
    numbers = (int, float)
    return value == expected and (
        type(value) is type(expected) or (type(value) in numbers and type(expected) in numbers)
    )


def _lines(text: str) -> list[str]:
    """Return the lines without trailing spaces, and without empty lines at the end."""
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _describe_end(result: ProgramResult) -> str:
    """Return the reason why a program did not finish; of its own words, the name of an exception at most."""
    reasons = {"timeout": "it ran too long", "memory": "it took too much memory", "output": "it said too much"}
    raised = re.match(r"\w{1,40}", result.last_error)
    if result.reason not in reasons and raised and raised[0] in _EXCEPTIONS:
        return f"it raised {raised[0]}"
    return reasons.get(result.reason, f"it ended with status {result.status}")


# --- tests as data ---------------------------------------------------------------------------------------------------


def parse_tests(problem: Problem) -> list[CallTest | OutputTest]:
    """Return the tests in `facts.tests`; raise ValueError if there are none, or one needs the code's own process."""
    tests = problem.facts.get("tests")
    if not isinstance(tests, list | tuple) or not tests:
        raise ValueError(f"problem {problem.key!r}: facts.tests: {tests!r} is no list of tests; choices: {_FORMS}")
    return [_parse_test(test, f"problem {problem.key!r}: facts.tests[{number}]") for number, test in enumerate(tests)]


def _parse_test(test: Any, where: str) -> CallTest | OutputTest:
    match test:
        case str():
            return _parse_assertion(test, where)
        case {"call": str(call), "expect": str(expect), **rest} if not rest:
            return _call_test(_parse_expression(call, where), _parse_expression(expect, where), where)
        case {"stdin": str(stdin), "stdout": str(stdout), **rest} if not rest:
            return OutputTest(stdin, stdout)
        case [str(stdin), str(stdout)]:
            return OutputTest(stdin, stdout)
    raise ValueError(f"{where}: {test!r} is no test; choices: {_FORMS}")


def _parse_assertion(text: str, where: str) -> CallTest:
    """Return the comparison in an assertion, which is not run itself: the code under test could make it pass."""
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
    expected = _literal(value, where)
    if _is_literal(call):
        raise ValueError(f"{where}: {ast.unparse(call)!r} is plain data and calls nothing, so it tests nothing")
    return CallTest(ast.unparse(call), harness.plain(expected))


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
    """Return the value of a Python literal; a collection may be written `set([1, 2])`."""
    try:
        match node:
            case ast.Call(func=ast.Name(id=name), args=[inner], keywords=[]) if name in _COLLECTIONS:
                return _COLLECTIONS[name](_literal(inner, where))
            case ast.Call(func=ast.Name(id=name), args=[], keywords=[]) if name in _COLLECTIONS:
                return _COLLECTIONS[name]()
        return ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(f"{where}: {ast.unparse(node)!r} is no plain data such as 4, 'a' or [1, (2, 3)]") from error
