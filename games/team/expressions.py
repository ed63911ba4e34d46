"""Expressions and templates of team workflows: sandboxed jinja2 over the facts of an episode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from statistics import fmean
from typing import Any

from jinja2 import StrictUndefined, TemplateSyntaxError, UndefinedError, meta
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from marl.templating import CompiledTemplate


def majority(moves: Sequence[str]) -> str:
    """Return the most common move, the first of equally common ones; "" if all are empty."""
    counts = Counter(move for move in moves if move)
    return counts.most_common(1)[0][0] if counts else ""


def agreement(moves: Sequence[str]) -> float:
    """Return the share of all moves that equal the majority's; 0 if all are empty."""
    most = majority(moves)
    return sum(move == most for move in moves) / len(moves) if most else 0.0


def voted(moves: Sequence[str], values: Sequence[float]) -> float:
    """Return the value that belongs to the majority's move, such as its correctness; 0 if all moves are empty."""
    most = majority(moves)
    return values[list(moves).index(most)] if most else 0.0


def best(values: Sequence[float]) -> int:
    """Return the index of the largest value, the first of equal ones."""
    return max(range(len(values)), key=values.__getitem__)


def clip(value: float, low: float, high: float) -> float:
    """Return `value` clipped to [low, high]."""
    return min(max(value, low), high)


FUNCTIONS = {
    **{"mean": fmean, "min": min, "max": max, "sum": sum, "abs": abs, "len": len, "clip": clip},
    **{"majority": majority, "agreement": agreement, "voted": voted, "best": best},
}
_EVALUATION_ERRORS = (UndefinedError, SecurityError, TypeError, IndexError, OverflowError)
# Scenario files are shared, so their expressions run in a sandbox; an unknown name is an error, not an empty string.
_environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined)
_environment.globals = {**FUNCTIONS}


@lru_cache(maxsize=2048)
def _compile(source: str) -> CompiledTemplate:
    return CompiledTemplate(_environment.from_string(source))


@lru_cache(maxsize=1024)
def names_in(source: str, *, template: bool = False) -> frozenset[str]:
    """Return the names of facts that an expression (or a template) uses; raise ValueError if it is not valid jinja2."""
    try:
        tree = _environment.parse(source if template else "{{ " + source + " }}")
    except TemplateSyntaxError as error:
        kind = "template" if template else "expression"
        raise ValueError(f"{source!r} is not a valid jinja2 {kind}: {error.message}") from error
    return frozenset(meta.find_undeclared_variables(tree) - FUNCTIONS.keys())


def evaluate(source: str, facts: Mapping[str, Any]) -> Any:
    """Return the value of an expression; raise ValueError if it cannot be evaluated."""
    try:
        value = _compile("{% set value = (" + source + ") %}").run(facts)[1].vars["value"]
    except _EVALUATION_ERRORS as error:
        raise ValueError(f"{source!r} cannot be evaluated: {error}") from error
    if isinstance(value, StrictUndefined):
        raise ValueError(f"{source!r} cannot be evaluated: it has no value")
    return value


def evaluate_number(source: str, facts: Mapping[str, Any]) -> float:
    """Return the value of an expression (true counts as 1); raise ValueError if it is not a number."""
    value = evaluate(source, facts)
    if not isinstance(value, bool | int | float):
        raise ValueError(f"{source!r} is {value!r}, which is not a number")
    return float(value)


def render(source: str, facts: Mapping[str, Any]) -> str:
    """Return a template with its facts filled in; raise ValueError if it cannot be rendered."""
    if "{" not in source:
        return source
    try:
        return _compile(source).render(facts)
    except _EVALUATION_ERRORS as error:
        raise ValueError(f"{source!r} cannot be rendered: {error}") from error
