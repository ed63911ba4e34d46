"""Unit tests as data: what to call and what it should give, or what to type and what should be printed."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

from games.verifiers.harness import plain
from marl.types import Problem

_COLLECTIONS = {"set": set, "frozenset": frozenset, "tuple": tuple, "list": list}
FORMS = (
    "'assert f(2) == 4' (one comparison with plain data), {call: 'f(2)', expect: '4'} (both are Python), "
    "{stdin: ..., stdout: ...}, or [stdin, stdout]"
)


@dataclass(frozen=True, slots=True)
class Call:
    """An expression and what it should give, as `plain` writes it."""

    call: str
    expect: Any


@dataclass(frozen=True, slots=True)
class Printing:
    """What is typed into a program and what it should print."""

    stdin: str
    stdout: str


def tests_of(problem: Problem) -> list[Call | Printing]:
    """The unit tests in `problem.facts["tests"]`.

    Raises:
        ValueError: if there are none, or if one could not be judged outside the process that runs the code.
    """
    listed = problem.facts.get("tests")
    if not isinstance(listed, list | tuple) or not listed:
        raise ValueError(f"problem {problem.key!r}: facts.tests: {listed!r} is no list of tests; choices: {FORMS}")
    return [_test(test, f"problem {problem.key!r}: facts.tests[{number}]") for number, test in enumerate(listed)]


def _test(test: Any, where: str) -> Call | Printing:
    match test:
        case str():
            return _assertion(test, where)
        case {"call": str(call), "expect": str(expect), **rest} if not rest:
            return Call(_expression(call, where), plain(_value(_parsed(expect, where), where)))
        case {"stdin": str(stdin), "stdout": str(stdout), **rest} if not rest:
            return Printing(stdin, stdout)
        case [str(stdin), str(stdout)]:
            return Printing(stdin, stdout)
    raise ValueError(f"{where}: {test!r} is no test; choices: {FORMS}")


def _assertion(text: str, where: str) -> Call:
    """An assertion runs where the code runs, and could be talked out of failing: only what it compares is taken."""
    try:
        (statement,) = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{where}: {text!r} is not one statement of Python; choices: {FORMS}") from error
    match statement:
        case ast.Assert(test=ast.Compare(left=left, ops=[ast.Eq() | ast.Is()], comparators=[right])):
            call, value = (right, left) if _is_value(left) and not _is_value(right) else (left, right)
            return Call(ast.unparse(call), plain(_value(value, where)))
    raise ValueError(f"{where}: {text!r} is no comparison of a call with plain data; choices: {FORMS}")


def _parsed(text: str, where: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{where}: {text!r} is no Python expression") from error


def _expression(text: str, where: str) -> str:
    return ast.unparse(_parsed(text, where))


def _is_value(node: ast.expr) -> bool:
    try:
        _value(node, "")
    except ValueError:
        return False
    return True


def _value(node: ast.expr, where: str) -> Any:
    """Plain data as Python writes it; a collection may be written `set([1, 2])`."""
    match node:
        case ast.Call(func=ast.Name(id=name), args=[inner], keywords=[]) if name in _COLLECTIONS:
            return _COLLECTIONS[name](_value(inner, where))
        case ast.Call(func=ast.Name(id=name), args=[], keywords=[]) if name in _COLLECTIONS:
            return _COLLECTIONS[name]()
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(f"{where}: {ast.unparse(node)!r} is no plain data such as 4, 'a' or [1, (2, 3)]") from error
