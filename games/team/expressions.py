"""Expressions and templates of team workflows: sandboxed and bounded jinja2 over the facts of an episode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from statistics import fmean
from typing import Any

from jinja2 import StrictUndefined, TemplateError, TemplateSyntaxError, meta, nodes

from marl.provenance import Origins
from marl.templating import BoundedEnvironment, CompiledTemplate, total

_SHOWN = 200
"""Characters of an expression, or of its value, that a message shows."""
_LARGEST = 1e300
"""Bound on numbers; a whole number may be too large for a float."""


class Unscored(float):
    """Score of a move that could not be read, or was not made: 0, but not for `best`."""


def majority(moves: Sequence[str]) -> str:
    """Return the most common move, the first of equally common ones; "" if all are empty (unreadable)."""
    counts = Counter(move for move in moves if move)
    return counts.most_common(1)[0][0] if counts else ""


def agreement(moves: Sequence[str]) -> float:
    """Return the share of all moves that equal the majority's, which an empty one never does; 0 if all are empty."""
    most = majority(moves)
    return sum(move == most for move in moves) / len(moves) if most else 0.0


def voted(moves: Sequence[str], values: Sequence[float]) -> float:
    """Return the value that belongs to the majority's move, such as its correctness; 0 if all moves are empty."""
    most = majority(moves)
    return values[list(moves).index(most)] if most else 0.0


def best(values: Sequence[float]) -> int:
    """Return the index of the largest value, the first of equal ones; unreadable scores count only if all are."""
    scored = [index for index, value in enumerate(values) if not isinstance(value, Unscored)]
    return max(scored or range(len(values)), key=values.__getitem__)


def clip(value: float, low: float, high: float) -> float:
    """Return `value` clipped to [low, high]."""
    return min(max(value, low), high)


FUNCTIONS = {
    **{"mean": fmean, "min": min, "max": max, "sum": total, "abs": abs, "len": len, "clip": clip},
    **{"majority": majority, "agreement": agreement, "voted": voted, "best": best},
}
_environment = BoundedEnvironment()
_environment.globals = {**FUNCTIONS}


class DivisionError(ValueError):
    """An expression divides by zero, with the facts that there are now."""


@lru_cache(maxsize=2048)
def _compile(source: str, *, template: bool) -> CompiledTemplate:
    try:
        if template:
            return CompiledTemplate(_environment.from_string(source))
        return _environment.compile_to_value(source)
    except TemplateSyntaxError as error:
        kind = "template" if template else "expression"
        raise ValueError(f"{shorten(source)} is not a valid jinja2 {kind}: {error.message}") from error


@lru_cache(maxsize=1024)
def tree_of(source: str, *, template: bool = False) -> nodes.Node:
    """Return the syntax tree of an expression (or a template); raise ValueError if it is not valid jinja2."""
    _compile(source, template=template)  # finds what the parser does not, such as a filter that there is not
    return _environment.parse(source) if template else _environment.parse_expression(source)


@lru_cache(maxsize=1024)
def names_in(source: str, *, template: bool = False) -> frozenset[str]:
    """Return the names of facts that an expression (or a template) uses; raise ValueError if it is not valid jinja2."""
    tree = tree_of(source, template=template)
    if isinstance(tree, nodes.Expr):
        tree = nodes.Template([nodes.Output([tree])]).set_environment(_environment)
    assert isinstance(tree, nodes.Template)
    return frozenset(meta.find_undeclared_variables(tree) - FUNCTIONS.keys())


def evaluate(source: str, facts: Mapping[str, Any]) -> Any:
    """Return the value of an expression.

    Raises:
        ValueError: if it cannot be evaluated; DivisionError if that may be due to the facts.
    """
    return trace(source, facts)[0]


def trace(source: str, facts: Mapping[str, Any]) -> tuple[Any, Origins]:
    """Return the value of an expression, and what it depends on; raises as `evaluate`."""
    try:
        value, origins = _compile(source, template=False).evaluate(facts)
    except TemplateError as error:
        kind = DivisionError if isinstance(error.__cause__, ZeroDivisionError) else ValueError
        raise kind(f"{shorten(source)} cannot be evaluated: {error.message}") from error
    if isinstance(value, StrictUndefined):
        raise ValueError(f"{shorten(source)} cannot be evaluated: it has no value")
    return value, origins


def evaluate_number(source: str, facts: Mapping[str, Any]) -> float:
    """Return the value of an expression (true counts as 1); raise ValueError if it is not a finite number."""
    value = evaluate(source, facts)
    if not isinstance(value, bool | int | float) or not -_LARGEST < value < _LARGEST:
        raise ValueError(f"{shorten(source)} is {shorten(value)}, which is not a finite number")
    return float(value)


def render(source: str, facts: Mapping[str, Any]) -> str:
    """Return a template with its facts filled in; raise ValueError if it cannot be rendered."""
    if "{" not in source:
        return source
    try:
        return _compile(source, template=True).render(facts)
    except TemplateError as error:
        raise ValueError(f"{shorten(source)} cannot be rendered: {error.message}") from error


def shorten(value: Any) -> str:
    """Return a text or another value as Python writes it, cut if it is long."""
    shown = repr(value)
    return shown if len(shown) <= _SHOWN else f"{shown[: _SHOWN - 3]}..."
