"""Accepts code that passes the unit tests of its problem, judged outside the sandbox that runs it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import PositiveFloat, model_validator

from games.verifiers import harness
from games.verifiers.reading import refused
from games.verifiers.suite import Call, Printing, tests_of
from marl.protocols import VerifierConfig
from marl.sandbox import Ran, Sandbox, run, unusable
from marl.types import Case, Verdict

_FENCED = re.compile(r"^```[\w+-]*[ \t]*\n(.*?)^```", re.M | re.S)
_LONGEST_WHY = 200


class UnitTests(VerifierConfig):
    """Accepts Python code that passes every test in the problem's `facts.tests`.

    A test is `{call: "f(2)", expect: "4"}`, `{stdin: "2", stdout: "4"}` (or the pair as a list) or the text of an
    assertion that compares a call with plain data. What is expected never enters the sandbox.
    """

    kind: str = "unit_tests"
    timeout_s: PositiveFloat = 60.0
    sandbox: Sandbox = Sandbox()
    """Calls share one run of `wall_s`; a test that types has a run of its own."""
    partial: bool = False
    """Whether the score is the share of tests passed; otherwise one failure is failure."""

    @model_validator(mode="after")
    def _in_time(self) -> UnitTests:
        self.sandbox.must_fit(self.timeout_s)
        return self

    def missing(self) -> Iterable[str]:
        if fault := unusable(self.sandbox):
            yield fault

    def __call__(self, case: Case) -> Verdict:
        tests = tests_of(case.problem)
        if case.answer is None:
            return refused("no code")
        blocks = _FENCED.findall(case.answer)
        failures = self._failures(blocks[-1] if blocks else case.answer, tests)
        if not self.partial:
            first = next(failures, "")
            return refused(first[:_LONGEST_WHY]) if first else Verdict(1.0)
        failed = list(failures)
        return Verdict(1 - len(failed) / len(tests), failed[0][:_LONGEST_WHY] if failed else "")

    def _failures(self, code: str, tests: Sequence[Call | Printing]) -> Iterator[str]:
        """What went wrong with each test that failed. Never says what was expected: speakers may hear it."""
        calls = [test for test in tests if isinstance(test, Call)]
        if calls:
            yield from self._miscalled(code, calls)
        for test in tests:
            if isinstance(test, Printing):
                ran = run(self.sandbox, code, test.stdin)
                if not ran.well:
                    yield _trouble(ran)
                elif _lines(ran.stdout) != _lines(test.stdout):
                    yield f"given {test.stdin!r}, it printed {ran.stdout!r}"

    def _miscalled(self, code: str, calls: Sequence[Call]) -> Iterator[str]:
        listed = json.dumps([call.call for call in calls])
        ran = run(self.sandbox, _harness(), files={harness.ANSWER: code, harness.CALLS: listed})
        lines = ran.stdout.splitlines()
        if len(lines) > len(calls):
            yield from ["it said more than it was asked"] * len(calls)
            return
        for number, call in enumerate(calls):
            if number >= len(lines):
                yield f"{call.call} gave nothing: {_trouble(ran)}"
            elif not _agree(_read(lines[number]), call.expect):
                yield f"{call.call} gave {lines[number]}"


def _harness() -> str:
    return Path(harness.__file__).read_text(encoding="utf-8")


def _read(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return ["unreadable"]


def _agree(said: Any, right: Any) -> bool:
    """Whether two values in the form of `harness.plain` are equal as Python has it, except that True is not 1."""
    if isinstance(said, list) and isinstance(right, list):
        return len(said) == len(right) and all(map(_agree, said, right))
    numbers = (int, float)
    return said == right and (type(said) is type(right) or (type(said) in numbers and type(right) in numbers))


def _lines(text: str) -> list[str]:
    """Trailing spaces and empty lines at the end are not looked at."""
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _trouble(ran: Ran) -> str:
    """Why a program did not come to its end."""
    if ran.why not in ("finished", "killed"):
        return {"timeout": "it ran too long", "memory": "it took too much memory", "output": "it said too much"}[
            ran.why
        ]
    return ran.last_error or f"it ended with status {ran.status}"
