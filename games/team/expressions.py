"""Conditions, rewards and what an agent is told: jinja2 expressions and templates, in a sandbox, over what was said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from statistics import fmean
from typing import Any

from jinja2 import StrictUndefined, TemplateSyntaxError, UndefinedError, meta
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from marl.config import nearest
from marl.templating import Compiled


def majority(moves: Sequence[str]) -> str:
    """The most common move, the first of equals; "" if nobody said anything."""
    said = Counter(move for move in moves if move)
    return said.most_common(1)[0][0] if said else ""


def agreement(moves: Sequence[str]) -> float:
    """Share of all agents whose move is the majority's; 0 if nobody said anything."""
    most = majority(moves)
    return sum(move == most for move in moves) / len(moves) if most else 0.0


def voted(moves: Sequence[str], values: Sequence[float]) -> float:
    """The value of the majority's move, such as whether it is right; 0 if nobody said anything."""
    most = majority(moves)
    return values[list(moves).index(most)] if most else 0.0


def best(values: Sequence[float]) -> int:
    """Index of the largest value, the first of equals."""
    return max(range(len(values)), key=values.__getitem__)


def clip(value: float, low: float, high: float) -> float:
    """`value`, brought into [low, high]."""
    return min(max(value, low), high)


FUNCTIONS = {
    **{"mean": fmean, "min": min, "max": max, "sum": sum, "abs": abs, "len": len, "clip": clip},
    **{"majority": majority, "agreement": agreement, "voted": voted, "best": best},
}
# Scenario files are shared, so their expressions run in a sandbox; an unknown name is an error, not an empty string.
_environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined)
_environment.globals = {**FUNCTIONS}


@lru_cache(maxsize=1024)
def _expression(source: str) -> Compiled:
    return Compiled(_environment.from_string("{% set value = (" + source + ") %}"))


@lru_cache(maxsize=1024)
def names_in(source: str, *, template: bool = False) -> frozenset[str]:
    """The names of facts that an expression (or a template) uses."""
    try:
        tree = _environment.parse(source if template else "{{ " + source + " }}")
    except TemplateSyntaxError as error:
        what = "template" if template else "expression"
        raise ValueError(f"{source!r} is no jinja2 {what}: {error.message}") from error
    return frozenset(meta.find_undeclared_variables(tree) - FUNCTIONS.keys())


def evaluate(source: str, facts: Mapping[str, Any]) -> Any:
    """The value of an expression.

    Raises:
        ValueError: naming the expression, if it cannot be evaluated.
    """
    try:
        value = _expression(source).run(facts)[1].vars["value"]
    except (UndefinedError, SecurityError, TypeError, IndexError, OverflowError) as error:
        raise ValueError(f"{source!r} cannot be evaluated: {error}") from error
    if isinstance(value, StrictUndefined):
        raise ValueError(f"{source!r} cannot be evaluated: it has no value")
    return value


def number(source: str, facts: Mapping[str, Any]) -> float:
    """The value of an expression that is a number; true is 1.

    Raises:
        ValueError: naming the expression, if it is none.
    """
    value = evaluate(source, facts)
    if not isinstance(value, bool | int | float):
        raise ValueError(f"{source!r} is {value!r}, which is no number")
    return float(value)


@lru_cache(maxsize=1024)
def _template(source: str) -> Compiled:
    return Compiled(_environment.from_string(source))


def render(source: str, facts: Mapping[str, Any]) -> str:
    """A template, filled in.

    Raises:
        ValueError: naming the template, if it cannot be.
    """
    if "{" not in source:
        return source
    try:
        return _template(source).text(facts)
    except (UndefinedError, SecurityError, TypeError, IndexError, OverflowError) as error:
        raise ValueError(f"{source!r} cannot be filled in: {error}") from error


def check_names(source: str, known: frozenset[str], *, template: bool = False) -> frozenset[str]:
    """The names that `source` uses.

    Raises:
        ValueError: naming one that does not exist.
    """
    names = names_in(source, template=template)
    for name in sorted(names - known):
        raise ValueError(f"{source!r} uses {name!r}, which does not exist here; {nearest(name, known)}")
    return names
