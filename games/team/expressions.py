"""Expressions and templates of team workflows: sandboxed jinja2 with bounded resources over the facts of an episode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from statistics import fmean
from typing import Any

from jinja2 import StrictUndefined, TemplateError, TemplateSyntaxError, meta, nodes

from marl.text.origins import Origins
from marl.text.templates import BoundedEnvironment, CompiledTemplate, total

_SHOWN = 200
"""Maximum number of characters of an expression or value in a message."""
_LARGEST = 1e300
"""Bound on numbers, as an integer can be too large for a float."""


class UnreadableScore(float):
    """Score of an unreadable or missing move: equal to 0, but ignored by `best`."""


def majority(moves: Sequence[str]) -> str:
    """Return the most common move (the first of equally common moves), or "" if all moves are empty (unreadable)."""
    counts = Counter(move for move in moves if move)
    return counts.most_common(1)[0][0] if counts else ""


def agreement(moves: Sequence[str]) -> float:
    """Return the share of moves equal to the majority's move, out of all moves; 0 if all moves are empty."""
    winner = majority(moves)
    return sum(move == winner for move in moves) / len(moves) if winner else 0.0


def voted(moves: Sequence[str], values: Sequence[float]) -> float:
    """Return the item of `values` at the majority's move, such as its correctness; 0 if all moves are empty."""
    winner = majority(moves)
    return values[list(moves).index(winner)] if winner else 0.0


def best(values: Sequence[float]) -> int:
    """Return the index of the (first) largest value, ignoring unreadable scores unless all scores are unreadable."""
    scored = [index for index, value in enumerate(values) if not isinstance(value, UnreadableScore)]
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
    """Raised if an expression divides by zero on the current facts."""


@lru_cache(maxsize=2048)
def _compile(source: str, *, template: bool) -> CompiledTemplate:
    try:
        if template:
            return CompiledTemplate(_environment.from_string(source))
        return _environment.compile_value(source)
    except TemplateSyntaxError as error:
        kind = "template" if template else "expression"
        raise ValueError(f"{shorten(source)} is not a valid jinja2 {kind}: {error.message}") from error


@lru_cache(maxsize=1024)
def syntax_tree(source: str, *, template: bool = False) -> nodes.Node:
    """Return the syntax tree of an expression (or template); raise ValueError if its jinja2 is invalid."""
    _compile(source, template=template)  # unlike the parser, finds unknown filters
    return _environment.parse(source) if template else _environment.parse_expression(source)


@lru_cache(maxsize=1024)
def names_in(source: str, *, template: bool = False) -> frozenset[str]:
    """Return the names of facts in an expression (or template); raise ValueError if its jinja2 is invalid."""
    tree = syntax_tree(source, template=template)
    if isinstance(tree, nodes.Expr):
        tree = nodes.Template([nodes.Output([tree])]).set_environment(_environment)
    assert isinstance(tree, nodes.Template)
    return frozenset(meta.find_undeclared_variables(tree) - FUNCTIONS.keys())


def evaluate(source: str, facts: Mapping[str, Any]) -> Any:
    """Return the value of an expression.

    Raises:
        ValueError: if evaluation fails; DivisionError after a division by zero, as other facts may avoid it.
    """
    return evaluate_with_origins(source, facts)[0]


def evaluate_with_origins(source: str, facts: Mapping[str, Any]) -> tuple[Any, Origins]:
    """Return the value of an expression and the origins of the facts it used; raises as `evaluate`."""
    try:
        value, origins = _compile(source, template=False).evaluate(facts)
    except TemplateError as error:
        kind = DivisionError if isinstance(error.__cause__, ZeroDivisionError) else ValueError
        raise kind(f"{shorten(source)} cannot be evaluated: {error.message}") from error
    if isinstance(value, StrictUndefined):
        raise ValueError(f"{shorten(source)} cannot be evaluated: it has no value")
    return value, origins


def evaluate_number(source: str, facts: Mapping[str, Any]) -> float:
    """Return the value of an expression as a float (true is 1); raise ValueError unless it is a finite number."""
    value = evaluate(source, facts)
    if not isinstance(value, bool | int | float) or not -_LARGEST < value < _LARGEST:
        raise ValueError(f"{shorten(source)} is {shorten(value)}, which is not a finite number")
    return float(value)


def render(source: str, facts: Mapping[str, Any]) -> str:
    """Return a template with the facts filled in; raise ValueError if rendering fails."""
    if "{" not in source:
        return source
    try:
        return _compile(source, template=True).render(facts)
    except TemplateError as error:
        raise ValueError(f"{shorten(source)} cannot be rendered: {error.message}") from error


def shorten(value: Any) -> str:
    """Return the `repr` of a value, shortened to 200 characters."""
    shown = repr(value)
    return shown if len(shown) <= _SHOWN else f"{shown[: _SHOWN - 3]}..."
