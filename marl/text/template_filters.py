"""Filters that compiled templates call: they charge a rendering for its work, and keep the origins of marked texts.

`marl/text/template_nodes.py` inserts the filters whose names begin with an underscore into the syntax tree. A filter
with `pass_context` is never evaluated by jinja2 at compile time, when the facts are unknown.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import wraps
from threading import local
from typing import Any

from jinja2 import pass_context
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context

from marl.text.origins import (
    NO_ORIGINS,
    AssignmentBoundary,
    BranchEnd,
    MarkedText,
    Origins,
    add_origins,
    apply_cached,
    join_texts,
    origins_of,
    record_origins,
    take_recorded_origins,
    text_of,
)

BUDGET = 10_000_000
"""Maximum number of characters that one rendering may make. A list item, a call and a loop round cost `ITEM_COST`."""
ITEM_COST = 100


class LimitError(SecurityError):
    """A template or an expression would take too much time or memory."""


class _Rendering(local):
    """State of the current rendering in this thread."""

    units = 0
    """Number of characters charged so far."""
    branches: list[Origins]
    """Origins of the conditions and items of each open `if` and `for`. The first entry belongs to the whole
    template."""
    assigned: Origins
    """Origins of variables set since the last boundary whose values cannot carry marks."""
    result: Any = None
    """Value of the expression, set by the filter `_result`."""


rendering = _Rendering()
_END = BranchEnd()


# --- costs -----------------------------------------------------------------------------------------------------------


def spend(units: int) -> None:
    """Charge the current rendering for `units` characters.

    Raises:
        LimitError: if the rendering exceeds its budget.
    """
    state = rendering
    state.units = spent = state.units + units
    if spent > BUDGET:
        raise LimitError(
            f"it makes more than {BUDGET:,} characters (an item, a call or a round of a loop counts as {ITEM_COST})"
        )


def size_of(value: Any) -> int:
    """Return the cost of `value` with all nested items. Counting stops soon after `BUDGET`."""
    # Methods of `str`, `list` and `dict` are called by class: those of marked values would record a look at the value.
    if isinstance(value, str):
        return str.__len__(value)
    size, stack = 0, [value]
    while stack and size <= BUDGET:
        match stack.pop():
            case str() as text:
                size += str.__len__(text)
            case dict() as mapping:
                size += ITEM_COST * dict.__len__(mapping)
                stack += [*dict.keys(mapping), *dict.values(mapping)]
            case list() as items:
                size += ITEM_COST * list.__len__(items)
                stack += list.__iter__(items)
            case tuple() | set() | frozenset() as items:
                size += ITEM_COST * len(items)
                stack += items
            case range() as numbers:
                size += ITEM_COST * len(numbers)
    return size


def charge(value: Any) -> Any:
    """Return `value` after charging for its size."""
    spend(str.__len__(value) if isinstance(value, str) else size_of(value))
    return value


def count_items(items: Iterable[Any], cost: int) -> list[Any]:
    """Return the items of a `for` loop, each charged with `cost`, and open the loop's branch with their origins."""
    counted = []
    for item in items:
        # Charged one by one, so that an endless iterable runs into the budget.
        spend(cost)
        counted.append(item)
    rendering.branches.append(take_recorded_origins())
    return counted


def concatenate(values: list[Any]) -> str:
    """Return the values joined by the operator `~`."""
    spend(size_of(values))
    return join_texts(map(text_of, values))


# --- marks -----------------------------------------------------------------------------------------------------------


@pass_context
def end_branch(_context: Context, _: None, sets: bool = False) -> str:
    """Return the boundary at the end of an `if` or `for`. `sets` is True if its body may set variables."""
    origins = rendering.branches.pop()
    if sets:
        rendering.assigned |= origins
    return BranchEnd(origins) if origins else _END


def decide(condition: Any, first: bool = False) -> bool:
    """Return the truth value of a condition, whose origins become origins of everything in the branch.

    `first` is True for the condition of the `if` itself, which opens the branch, and False for an `elif` or a loop
    filter.
    """
    holds = bool(condition)
    if first:
        rendering.branches.append(take_recorded_origins())
    elif origins := take_recorded_origins():
        rendering.branches[-1] |= origins
    return holds


def assign(value: Any, silent: bool = False) -> Any:
    """Return the value of a variable, marked with the origins of its expression.

    `silent` is True if no boundary can follow. The origins then apply to the whole template.
    """
    origins = take_recorded_origins()
    if origins and isinstance(value, str):
        return add_origins(value, origins)
    if silent:
        rendering.branches[0] |= origins
    else:
        rendering.assigned |= origins
    return value


@pass_context
def keep_result(_context: Context, value: Any) -> None:
    """Store the value of an expression for `CompiledTemplate.evaluate`."""
    rendering.result = value


@pass_context
def end_assignment(_context: Context, _: None) -> str:
    """Return the boundary after an assignment, which marks all following text with the origins of the variables."""
    origins, rendering.assigned = rendering.assigned, NO_ORIGINS
    return AssignmentBoundary(origins) if origins else ""


def look(value: Any) -> Any:
    """Return `value` after recording its origins."""
    if type(value) is MarkedText:
        record_origins(origins_of(value))
    return value


def recording_test(test: Callable[..., Any]) -> Callable[..., Any]:
    """Return a jinja2 test (`is upper`) that records the origins of its arguments."""

    @wraps(test)
    def recording(*args: Any) -> Any:
        for value in args:
            look(value)
        return test(*args)

    return recording


def output(value: Any) -> str:
    """Return the text of an output statement, marked with the origins recorded by its expression."""
    text = value if isinstance(value, str) else text_of(value)
    spend(str.__len__(text))
    return add_origins(text, origins) if (origins := take_recorded_origins()) else text


# --- filters for template authors ------------------------------------------------------------------------------------


def metered(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter that is charged for its arguments, and whose result carries the marks of marked arguments."""

    @wraps(function)
    def filter_value(*args: Any, **kwargs: Any) -> Any:
        spend(size_of((args, kwargs)))
        result = function(*args, **kwargs)
        if type(result) is MarkedText:
            return result
        texts = tuple([value for value in args if type(value) is MarkedText])
        return add_origins(result, origins_of(texts)) if texts else result

    return filter_value


def text_filter(function: Callable[[str], str]) -> Callable[[str], str]:
    """Return a function of a text as a filter. It is charged for the text, and its result carries the text's marks."""

    def filter_text(text: str) -> str:
        spend(3 * ITEM_COST + size_of(text))
        return apply_cached(text, function)

    return filter_text


def join(values: Iterable[Any], separator: str = "") -> str:
    """Return the texts of `values` joined by `separator`; jinja2's own filter would lose the marks."""
    texts = list(map(text_of, charge(list(values))))
    spend(size_of(texts) + len(texts) * len(separator))
    pieces = [separator] * max(2 * len(texts) - 1, 0)
    pieces[::2] = texts
    return join_texts(pieces)


def replace(text: str, old: str, new: str) -> str:
    """Return `text` with `old` replaced by `new`, charged for the size of the result before it is made."""
    text, old, new = map(text_of, (text, old, new))
    spend(str.__len__(text) + str.count(text, old) * str.__len__(new))
    return add_origins(str.replace(text, old, new), origins_of((text, old, new)))


def total(values: Iterable[Any]) -> Any:
    """Return the sum of numbers, without the start value of `sum`, which could add up lists in quadratic time."""
    return sum(values)


def to_json(value: Any) -> str:
    """Return `value` as JSON, marked with all origins of `value`."""
    return add_origins(json.dumps(charge(value), ensure_ascii=False), origins_of(value))
