"""Verifier of code by unit tests: a sandbox runs the code, and its results are compared outside the sandbox."""

from __future__ import annotations

import ast
import builtins
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import PositiveFloat, model_validator

from marl.core.types import Problem, Verdict, VerifierCase
from marl.games.verifiers import unit_test_harness as harness
from marl.games.verifiers.answer_verifier import reject
from marl.games.verifiers.unit_test_expressions import RecordedCall, TestSplitter, overridden_builtins
from marl.host.untrusted_text import replace_surrogates
from marl.protocols import VerifierConfig
from marl.sandbox import ProgramResult, Sandbox, reason_sandbox_is_unusable, run_program
from marl.text.answers import last_code_block, remove_thoughts_and_strip

_EXCEPTIONS = frozenset(name for name, kind in vars(builtins).items() if isinstance(kind, type))
_COLLECTIONS = {"set": set, "frozenset": frozenset, "tuple": tuple, "list": list}
_FORMS = (
    "'assert f(2) == 4' (an expression about results of the code), {call: 'f(2)', expect: '4'} (both are Python), "
    "{stdin: ..., stdout: ...}, or [stdin, stdout]"
)


@dataclass(frozen=True, slots=True)
class CallTest:
    """Test that one call has one result."""

    call: RecordedCall
    expect: Any
    """Expected value of the call, in the form of `unit_test_harness.to_tagged_json`."""


@dataclass(frozen=True, slots=True)
class ExpressionTest:
    """Test of an expression about results of calls, such as `len(f(2)) == 4`."""

    calls: tuple[RecordedCall, ...]
    source: str
    """Python expression about the recorded results, which is true if the test is passed."""


@dataclass(frozen=True, slots=True)
class OutputTest:
    """Test of one run of the program."""

    stdin: str
    """Text for the program's standard input."""
    stdout: str
    """Expected text on the program's standard output."""


class UnitTestsVerifier(VerifierConfig):
    """Accepts Python code that passes every test in the problem's `facts.tests`.

    A test is `{call: "f(2)", expect: "4"}`, `{stdin: "2", stdout: "4"}` (or the pair as a list) or the source of an
    assertion about results of the code. Expected results never enter the process that runs the code. Comparisons and
    built-in functions of a test are evaluated in another process, on the results as plain data.
    """

    kind: str = "unit_tests"
    timeout_s: PositiveFloat = 60.0
    """Maximum time of a verdict, in seconds."""
    sandbox: Sandbox = Sandbox()
    """Limits of each run of the code. All tests of calls share one run; every test with input has a separate run."""
    partial: bool = False
    """True to score the share of passed tests; false to score 1 if all tests pass, else 0."""

    @model_validator(mode="after")
    def _check_timeout(self) -> UnitTestsVerifier:
        self.sandbox.check_timeout(self.timeout_s)
        return self

    def unmet_requirements(self) -> Iterable[str]:
        if fault := reason_sandbox_is_unusable(self.sandbox):
            yield fault

    def __call__(self, case: VerifierCase) -> Verdict:
        tests = parse_tests(case.problem)
        if case.answer is None:
            return reject("no code")
        text = replace_surrogates(remove_thoughts_and_strip(case.answer))
        failures = self._reasons_of_failed_tests(last_code_block(text, "python") or text, tests)
        if not self.partial:
            first = next(failures, "")
            return reject(first) if first else Verdict(1.0)
        failed = list(failures)
        return Verdict(1 - len(failed) / len(tests), failed[0] if failed else "")

    def _reasons_of_failed_tests(
        self, code: str, tests: Sequence[CallTest | ExpressionTest | OutputTest]
    ) -> Iterator[str]:
        """Yield the reason of each failed test, without the test, its expected result or the output of the code.

        Models may read the reason, and the output of the code may reveal the test.
        """
        calls = [test for test in tests if not isinstance(test, OutputTest)]
        if calls:
            yield from self._reasons_of_failed_calls(code, calls)
        outputs = [test for test in tests if isinstance(test, OutputTest)]
        for number, test in enumerate(outputs, 1):
            result = run_program(self.sandbox, code, test.stdin)
            if not result.succeeded:
                yield f"input {number}: {_reason_for_early_end(result)}"
            elif _stripped_lines(result.stdout) != _stripped_lines(test.stdout):
                yield f"input {number}: another output than the right one"

    def _reasons_of_failed_calls(self, code: str, tests: Sequence[CallTest | ExpressionTest]) -> Iterator[str]:
        """Yield the reason of each failed test of calls; the model's code runs once for all calls."""
        calls = [call for test in tests for call in _calls_of(test)]
        run = self._run_harness({harness.ANSWER: code, harness.CALLS: json.dumps([call.as_json() for call in calls])})
        lines = run.stdout.split("\n")[:-1]
        if len(lines) > len(calls):
            # Surplus lines mean that the model's code wrote to the channel itself, so no line can be trusted.
            yield from ["it said more than it was asked"] * len(tests)
            return
        remaining_lines = iter(lines)
        lines_of_tests = [list(islice(remaining_lines, len(_calls_of(test)))) for test in tests]
        checks = iter(self._check_results(tests, lines_of_tests))
        for number, (test, test_lines) in enumerate(zip(tests, lines_of_tests, strict=True), 1):
            if len(test_lines) < len(_calls_of(test)):
                yield f"call {number}: no result: {_reason_for_early_end(run)}"
                continue
            outcome = _compare_result(test_lines[0], test.expect) if isinstance(test, CallTest) else next(checks, False)
            if outcome == harness.RAISED:
                yield f"call {number}: it raised an exception"
            elif outcome is not True:
                yield f"call {number}: another result than the right one"

    def _check_results(
        self, tests: Sequence[CallTest | ExpressionTest], lines_of_tests: Sequence[Sequence[str]]
    ) -> list[bool | str]:
        """Return the outcome of each `ExpressionTest` that has all of its results, evaluated in one run of the harness.

        The run starts after the model's code has ended, and never loads it.
        """
        checks: list[dict[str, Any]] = []
        for test, lines in zip(tests, lines_of_tests, strict=True):
            if isinstance(test, ExpressionTest) and len(lines) == len(test.calls):
                checks.append({"source": test.source, "lines": lines})
        if not checks:
            return []
        result = self._run_harness({harness.CHECKS: json.dumps(checks)})
        return [json.loads(line) for line in result.stdout.split("\n")[:-1]]

    def _run_harness(self, files: Mapping[str, str]) -> ProgramResult:
        return run_program(self.sandbox, Path(harness.__file__).read_text(encoding="utf-8"), files=files)


def _calls_of(test: CallTest | ExpressionTest) -> tuple[RecordedCall, ...]:
    return (test.call,) if isinstance(test, CallTest) else test.calls


def _compare_result(line: str, expected: Any) -> bool | str:
    """Return True if a recorded line holds the result `expected`, else False; "raised" if the call raised."""
    try:
        ((_, value),) = json.loads(line)
    except (ValueError, TypeError, RecursionError):
        return False
    return harness.RAISED if value == [harness.RAISED] else harness.equal_tagged(value, expected)


def _stripped_lines(output: str) -> list[str]:
    """Return the lines of a program's output without trailing spaces, and without empty lines at the end."""
    return [line.rstrip() for line in output.rstrip().split("\n")]


def _reason_for_early_end(result: ProgramResult) -> str:
    """Return the cause of a program's early end, such as "it ran too long" or "it raised KeyError".

    Of the program's own text, the reason contains at most the name of a built-in exception.
    """
    reasons = {"timeout": "it ran too long", "memory": "it took too much memory", "output": "it said too much"}
    raised = re.match(r"\w{1,40}", result.last_error)
    if result.reason not in reasons and raised and raised[0] in _EXCEPTIONS:
        return f"it raised {raised[0]}"
    return reasons.get(result.reason, f"it ended with status {result.status}")


def parse_tests(problem: Problem) -> list[CallTest | ExpressionTest | OutputTest]:
    """Return the tests of a problem, read from `facts.tests`.

    Raises:
        ValueError: if there are no tests, or a test does not compare a call or an output with plain data.
    """
    tests = _listed_tests(problem.facts.get("tests"))
    if not tests:
        tests = problem.facts.get("tests")
        raise ValueError(f"problem {problem.key!r}: facts.tests: {tests!r} is no list of tests; choices: {_FORMS}")
    parsed = list[CallTest | ExpressionTest | OutputTest]()
    for number, test in enumerate(tests):
        where = f"problem {problem.key!r}: facts.tests[{number}]"
        match test:
            case str():
                parsed.append(_parse_assertion(test, where))
            case {"call": str(call), "expect": str(expect), **other_keys} if not other_keys:
                value = _parse_expression(expect, where)
                _literal_value(value, where)
                parsed.append(_parse_test(ast.Compare(_parse_expression(call, where), [ast.Eq()], [value]), where))
            case {"stdin": str(stdin), "stdout": str(stdout), **other_keys} if not other_keys:
                parsed.append(OutputTest(stdin, stdout))
            case [str(stdin), str(stdout)]:
                parsed.append(OutputTest(stdin, stdout))
            case _:
                raise ValueError(f"{where}: {test!r} is no test; choices: {_FORMS}")
    return parsed


def _listed_tests(tests: Any) -> Sequence[Any]:
    """Return `facts.tests` as a list: data sets also store the text of a list, or a program of assertions."""
    if not isinstance(tests, str):
        return tests if isinstance(tests, list | tuple) else ()
    try:
        if tests.lstrip().startswith("["):
            return _listed_tests(ast.literal_eval(tests.strip()))
        return [ast.unparse(statement) for statement in ast.parse(tests).body if not _is_known_import(statement)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()


def _is_known_import(statement: ast.stmt) -> bool:
    """Return True if `statement` imports a module, or a name, that tests have without an import."""
    match statement:
        case ast.Import(names=names):
            return all(alias.name in harness.TRUSTED and alias.asname is None for alias in names)
        case ast.ImportFrom(module=module, names=names):
            is_known = all(alias.name in harness.TRUSTED and alias.asname is None for alias in names)
            return is_known and module in harness.TRUSTED
    return False


def _parse_assertion(assertion: str, where: str) -> CallTest | ExpressionTest:
    """Return the test in an assertion such as `assert f(2) == 4`; `where` names the test in errors.

    The assertion itself is not run, since the code under test could make it pass.
    """
    try:
        (statement,) = [part for part in ast.parse(assertion.strip()).body if not _is_known_import(part)]
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{where}: {assertion!r} is not one statement of Python; choices: {_FORMS}") from error
    if not isinstance(statement, ast.Assert):
        raise ValueError(f"{where}: {assertion!r} is no assertion; choices: {_FORMS}")
    return _parse_test(statement.test, where)


def _parse_test(expression: ast.expr, where: str) -> CallTest | ExpressionTest:
    """Return the test that `expression` is true; `where` names the test in errors."""
    written, splitter = ast.unparse(expression), TestSplitter(expression, overridden_builtins(expression))
    match expression:
        case ast.Compare(left=left, ops=[ast.Eq() | ast.Is()], comparators=[right]):
            call, value = (right, left) if _is_literal(left) else (left, right)
            if splitter.evaluates_answer_code(call) and _is_literal(value):
                splitter.visit(call)
                (recorded,) = splitter.calls
                tagged = harness.to_tagged_json(_literal_value(value, where))
                return CallTest(replace(recorded, detailed=False), tagged)
    try:
        source = ast.unparse(ast.fix_missing_locations(splitter.visit(expression)))
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    if not splitter.calls:
        raise ValueError(f"{where}: {written!r} calls nothing, so it tests nothing")
    return ExpressionTest(tuple(splitter.calls), source)


def _parse_expression(source: str, where: str) -> ast.expr:
    """Return the syntax tree of a Python expression; `where` names the test in errors."""
    try:
        return ast.parse(source.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{where}: {source!r} is no Python expression") from error


def _is_literal(node: ast.expr) -> bool:
    try:
        _literal_value(node, "")
    except ValueError:
        return False
    return True


def _literal_value(node: ast.expr, where: str) -> Any:
    """Return the value of a Python literal; collections may be written as calls such as `set([1, 2])`."""
    try:
        match node:
            case ast.Call(func=ast.Name(id=name), args=[inner], keywords=[]) if name in _COLLECTIONS:
                return _COLLECTIONS[name](_literal_value(inner, where))
            case ast.Call(func=ast.Name(id=name), args=[], keywords=[]) if name in _COLLECTIONS:
                return _COLLECTIONS[name]()
        return ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(f"{where}: {ast.unparse(node)!r} is no plain data such as 4, 'a' or [1, (2, 3)]") from error
