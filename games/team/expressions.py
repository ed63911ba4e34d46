"""Expressions and templates of team workflows: sandboxed jinja2, with bounded resources, over an episode's facts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from statistics import fmean
from typing import Any

from jinja2 import StrictUndefined, TemplateError, TemplateSyntaxError, meta, nodes

from marl.core.config import choices_hint
from marl.text.origins import Origins
from marl.text.templates import BoundedEnvironment, CompiledTemplate, sum_of_numbers_only

_MAX_SHOWN = 200
"""Maximum number of characters that an error message shows of an expression or value."""
_MAX_NUMBER = 1e300
"""Largest absolute value of an expression, since an integer can be too large for a float."""


class ScoreOfUnreadableMove(float):
    """Score of an unreadable or missing move: a 0 that the function `best` of expressions ignores."""


def majority_move(moves: Sequence[str]) -> str:
    """Return the most common move (the first of equally common moves), or "" if all moves are empty (unreadable)."""
    counts = Counter(move for move in moves if move)
    return counts.most_common(1)[0][0] if counts else ""


def majority_fraction(moves: Sequence[str]) -> float:
    """Return the fraction of `moves` that equal the majority's move, or 0 if all moves are empty (unreadable)."""
    winner = majority_move(moves)
    return sum(move == winner for move in moves) / len(moves) if winner else 0.0


def first_value_of_majority_move(moves: Sequence[str], values: Sequence[float]) -> float:
    """Return the item of `values` at the index of the majority's move, or 0 if all `moves` are empty (unreadable)."""
    winner = majority_move(moves)
    return values[list(moves).index(winner)] if winner else 0.0


def index_of_first_maximum(values: Sequence[float]) -> int:
    """Return the index of the first largest value. Unreadable scores count only if all are unreadable."""
    readable = [index for index, value in enumerate(values) if not isinstance(value, ScoreOfUnreadableMove)]
    return max(readable or range(len(values)), key=values.__getitem__)


def clip(value: float, low: float, high: float) -> float:
    """Return `value` clipped to [low, high]."""
    return min(max(value, low), high)


FUNCTIONS = {
    **{"mean": fmean, "min": min, "max": max, "sum": sum_of_numbers_only, "abs": abs, "len": len, "clip": clip},
    **{"majority": majority_move, "agreement": majority_fraction},
    **{"voted": first_value_of_majority_move, "best": index_of_first_maximum},
}
_environment = BoundedEnvironment()
_environment.globals = {**FUNCTIONS}


class DivisionByZeroError(ValueError):
    """Error of an expression that divides by zero with the current facts."""


@lru_cache(maxsize=2048)
def _compile_jinja_source(source: str, *, is_template: bool) -> CompiledTemplate:
    """Return the compiled expression or template; raise ValueError if its jinja2 is invalid."""
    try:
        if is_template:
            return CompiledTemplate(_environment.from_string(source))
        return _environment.compile_value_expression(source)
    except TemplateSyntaxError as error:
        kind = "template" if is_template else "expression"
        raise ValueError(f"{shortened_repr(source)} is not a valid jinja2 {kind}: {error.message}") from error


@lru_cache(maxsize=1024)
def parse_jinja_source(source: str, *, is_template: bool = False) -> nodes.Node:
    """Return the syntax tree of an expression (or template); raise ValueError if its jinja2 is invalid."""
    # Unknown filters are errors of jinja2's compiler, not of its parser, so the source is compiled first.
    _compile_jinja_source(source, is_template=is_template)
    return _environment.parse(source) if is_template else _environment.parse_expression(source)


def attribute_nodes_in(source: str, *, is_template: bool = False) -> Iterator[nodes.Getattr]:
    """Yield each access to an attribute, such as `solver.move`, in an expression (or template)."""
    tree = parse_jinja_source(source, is_template=is_template)
    # jinja2's `find_all` visits only the descendants of a node, so the root node is checked here.
    if isinstance(tree, nodes.Getattr):
        yield tree
    yield from tree.find_all(nodes.Getattr)


@lru_cache(maxsize=1024)
def fact_names_in(source: str, *, is_template: bool = False) -> frozenset[str]:
    """Return the names that an expression (or template) reads from its facts, without those of functions.

    Raises ValueError if its jinja2 is invalid.
    """
    tree = parse_jinja_source(source, is_template=is_template)
    if isinstance(tree, nodes.Expr):
        tree = nodes.Template([nodes.Output([tree])]).set_environment(_environment)
    assert isinstance(tree, nodes.Template)
    return frozenset(meta.find_undeclared_variables(tree) - FUNCTIONS.keys())


def evaluate_expression(source: str, facts: Mapping[str, Any]) -> tuple[Any, Origins]:
    """Return the value of an expression, and the origins of the facts that the expression used.

    Raises:
        ValueError: if evaluation fails.
        DivisionByZeroError: if the expression divides by zero with `facts`; other facts may give a value.
    """
    try:
        value, origins = _compile_jinja_source(source, is_template=False).evaluate(facts)
    except TemplateError as error:
        kind = DivisionByZeroError if isinstance(error.__cause__, ZeroDivisionError) else ValueError
        reason = _missing_fact_error(source, facts) or error.message
        raise kind(f"{shortened_repr(source)} cannot be evaluated: {reason}") from error
    if isinstance(value, StrictUndefined):
        reason = _missing_fact_error(source, facts) or "it has no value"
        raise ValueError(f"{shortened_repr(source)} cannot be evaluated: {reason}")
    return value, origins


def _missing_fact_error(source: str, facts: Mapping[str, Any]) -> str:
    """Return an error message for the first attribute in an expression that its object lacks, or "" if none does."""
    for access in attribute_nodes_in(source):
        owner = access.node.name if isinstance(access.node, nodes.Name) else ""
        attributes = facts.get(owner)
        if isinstance(attributes, Mapping) and access.attr not in attributes:
            return f"{owner} has no {access.attr!r}; {choices_hint(access.attr, map(str, attributes))}"
    return ""


def evaluate_as_number(source: str, facts: Mapping[str, Any]) -> float:
    """Return the value of an expression as a float (true is 1); raise ValueError if the value is not finite."""
    value, _ = evaluate_expression(source, facts)
    if not isinstance(value, bool | int | float) or not -_MAX_NUMBER < value < _MAX_NUMBER:
        raise ValueError(f"{shortened_repr(source)} is {shortened_repr(value)}, which is not a finite number")
    return float(value)


def render_template(source: str, facts: Mapping[str, Any]) -> str:
    """Return the text of a template with `facts` filled in; raise ValueError if rendering fails."""
    if "{" not in source:
        return source
    try:
        return _compile_jinja_source(source, is_template=True).render(facts)
    except TemplateError as error:
        raise ValueError(f"{shortened_repr(source)} cannot be rendered: {error.message}") from error


def shortened_repr(value: Any) -> str:
    """Return the `repr` of `value`, cut to at most 200 characters."""
    shown = repr(value)
    return shown if len(shown) <= _MAX_SHOWN else f"{shown[: _MAX_SHOWN - 3]}..."
