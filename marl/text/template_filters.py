"""Filters that compiled templates call. They count characters against a rendering's budget, and keep the marks that say
from which turn a piece of text comes.

`marl/text/template_nodes.py` inserts the filters whose names begin with an underscore into the syntax tree. A filter
with `pass_context` is never evaluated by jinja2 at compile time, when the facts are unknown.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from threading import local
from typing import Any

from jinja2 import pass_context
from jinja2.exceptions import SecurityError, TemplateRuntimeError
from jinja2.runtime import Context, Undefined

from marl.text.origins import (
    NO_ORIGINS,
    Origins,
    TemplateAssignmentEnd,
    TemplateBranchEnd,
    TextWithOrigins,
    add_origins,
    apply_cached_with_origins,
    join_texts_with_origins,
    origins_of,
    record_origins,
    take_recorded_origins,
    to_marked_text,
)

BUDGET = 10_000_000
"""Maximum number of characters that one rendering of a scenario's template may make, including intermediate texts."""
ITEM_COST = 100
"""Cost of a list item, a call or a round of a loop, in characters of the budget."""
_CONTAINERS = (dict, list, tuple, set, frozenset, range)
"""Types of the values whose items are counted against the budget."""


class TemplateLimitError(SecurityError):
    """A template or an expression exceeds a limit of time or memory."""


class _RenderingState(local):
    """State of the current rendering in this thread."""

    used_characters = 0
    """Number of characters of the budget that the rendering has used."""
    budget = BUDGET
    """Maximum number of characters that the rendering may make, including intermediate texts."""
    branches: list[Origins]
    """Origins of the full template, followed by the origins of each open `if`'s conditions and `for`'s items."""
    assigned: Origins
    """Origins of unmarkable values that were assigned to variables since the last boundary."""
    result: Any = None
    """Value of a compiled expression, set by the filter `_result`."""


rendering = _RenderingState()
_END = TemplateBranchEnd()


# --- costs in characters, charged to the budget of a rendering --------------------------------------------------------


def charge_characters_to_rendering_budget(character_count: int) -> None:
    """Count `character_count` characters against the budget of the current rendering.

    Raises:
        TemplateLimitError: if the rendering exceeds its budget.
    """
    state = rendering
    state.used_characters = spent = state.used_characters + character_count
    if spent > state.budget:
        raise TemplateLimitError(
            f"it makes more than {state.budget:,} characters "
            f"(an item, a call or a round of a loop counts as {ITEM_COST})"
        )


@contextmanager
def rendering_budget(max_characters: int) -> Iterator[None]:
    """Give the rendering in the body a budget of its own, in characters."""
    state, before = rendering, (rendering.used_characters, rendering.budget)
    state.used_characters, state.budget = 0, max_characters
    try:
        yield
    finally:
        state.used_characters, state.budget = before


def nested_size_in_characters(value: Any) -> int:
    """Return the cost of `value` with all nested items, in characters; counting stops above the budget."""
    if isinstance(value, str):
        return str.__len__(value)
    size, budget = 0, rendering.budget
    stack = [value] if isinstance(value, _CONTAINERS) else []
    while stack and size <= budget:
        container = stack.pop()
        # Base-class methods are called, because those of recording lists and dicts would record a use of the origins.
        if isinstance(container, dict):
            size += ITEM_COST * dict.__len__(container)
            items: Iterable[Any] = [*dict.keys(container), *dict.values(container)]
        elif isinstance(container, list):
            size += ITEM_COST * list.__len__(container)
            items = list.__iter__(container)
        else:
            size += ITEM_COST * len(container)
            items = () if isinstance(container, range) else container
        # Every call in a template is measured, so plain texts, the most common items, are counted fast.
        for item in items:
            if type(item) is str:
                size += len(item)
            elif isinstance(item, str):
                size += str.__len__(item)
            elif isinstance(item, _CONTAINERS):
                stack.append(item)
    return size


def size_of_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Return `nested_size_in_characters((args, kwargs))`, computed faster for calls without keyword arguments."""
    return 2 * ITEM_COST + nested_size_in_characters(args) + (nested_size_in_characters(kwargs) if kwargs else 0)


def charge_size_to_rendering_budget(value: Any) -> Any:
    """Return `value` unchanged, after counting its size against the rendering's budget."""
    charge_characters_to_rendering_budget(
        str.__len__(value) if isinstance(value, str) else nested_size_in_characters(value)
    )
    return value


def list_loop_items_within_budget(items: Iterable[Any], cost_per_item: int) -> list[Any]:
    """Return the items of a `for` loop, after charging `cost_per_item` characters for each to the rendering's budget.

    Origins that were recorded while the items were computed become the origins of the loop's text.
    """
    counted = []
    for item in items:
        # Items are counted one by one, so that an endless iterable exceeds the budget.
        charge_characters_to_rendering_budget(cost_per_item)
        counted.append(item)
    rendering.branches.append(take_recorded_origins())
    return counted


def concatenate_within_budget(values: list[Any]) -> str:
    """Return the joined `values`, as the operator `~` does, after counting their size against the budget."""
    charge_characters_to_rendering_budget(nested_size_in_characters(values))
    return join_texts_with_origins(map(to_printed_text, values))


def to_printed_text(value: Any) -> str:
    """Return `value` as a text, marked with the origins of `value` and of all nested values.

    Raises:
        TemplateRuntimeError: if `value` or a nested value is a function or an iterator. Their texts tell nothing of
            their content, and hold memory addresses, which differ between runs.
    """
    if isinstance(value, str):
        return value
    stack = [value]
    while stack:
        match stack.pop():
            case Undefined():
                pass  # raises when its text is made
            case dict() as mapping:
                stack += dict.values(mapping)
            case list() as items:
                stack += list.__iter__(items)
            case tuple() as items:
                stack += items
            case inner if callable(inner):
                raise TemplateRuntimeError("it prints a function, not a text; call the function: name()")
            case Iterator():
                raise TemplateRuntimeError(
                    "it prints an iterator, such as the result of map or select, not its items; write | list or | join"
                )
    return to_marked_text(value)


# --- origins of a template's conditions and assignments ---------------------------------------------------------------


@pass_context
def boundary_after_branch(_context: Context, _: None, sets_variables: bool = False) -> str:
    """Return the marker text behind the body of an `if` or `for`, which ends the text that depends on its condition.

    `sets_variables` is True if the body may set variables.
    """
    origins = rendering.branches.pop()
    if sets_variables:
        rendering.assigned |= origins
    return TemplateBranchEnd(origins) if origins else _END


def evaluate_branch_condition(condition: Any, opens_branch: bool = False) -> bool:
    """Return the truth value of `condition`, and store its origins as origins of the branch's text.

    `opens_branch` is True for the condition of the `if` itself, and False for an `elif` or the filter of a loop.
    """
    holds = bool(condition)
    if opens_branch:
        rendering.branches.append(take_recorded_origins())
    elif origins := take_recorded_origins():
        rendering.branches[-1] |= origins
    return holds


def mark_assigned_value(value: Any, has_no_boundary: bool = False) -> Any:
    """Return `value`, which is assigned to a variable, marked with the origins of its expression.

    With `has_no_boundary`, no boundary follows, so that origins of an unmarkable value apply to the full template.
    """
    origins = take_recorded_origins()
    if origins and isinstance(value, str):
        return add_origins(value, origins)
    if has_no_boundary:
        rendering.branches[0] |= origins
    else:
        rendering.assigned |= origins
    return value


@pass_context
def store_expression_value(_context: Context, value: Any) -> None:
    """Store the value of an expression for `CompiledTemplate.evaluate`."""
    rendering.result = value


@pass_context
def boundary_after_assignment(_context: Context, _: None) -> str:
    """Return the boundary after an assignment, with origins of the assigned values for all following text."""
    origins, rendering.assigned = rendering.assigned, NO_ORIGINS
    return TemplateAssignmentEnd(origins) if origins else ""


def record_origins_of(value: Any) -> Any:
    """Return `value` unchanged, after recording its origins as read."""
    if type(value) is TextWithOrigins:
        record_origins(origins_of(value))
    return value


def origin_recording_test(jinja_test: Callable[..., Any]) -> Callable[..., Any]:
    """Return `jinja_test` (such as `upper` of `is upper`), extended to record the origins of its arguments."""

    @wraps(jinja_test)
    def test_and_record_origins(*args: Any) -> Any:
        for value in args:
            record_origins_of(value)
        return jinja_test(*args)

    return test_and_record_origins


def mark_output_text_with_origins(value: Any) -> str:
    """Return the text of an output statement, marked with the origins recorded by its expression."""
    if isinstance(value, Undefined):
        # `str` raises for an unknown name; for an attribute that the sandbox hides, this error is raised.
        raise TemplateRuntimeError(str(value) or "it prints an attribute that is not available")
    text = to_printed_text(value)
    charge_characters_to_rendering_budget(str.__len__(text))
    return add_origins(text, origins) if (origins := take_recorded_origins()) else text


# --- filters that template authors may use ----------------------------------------------------------------------------


def metered_filter(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` as a template filter that keeps the origins of its arguments and counts their size.

    A text made from a list or dict (`| string`) is marked with the origins of all nested values.
    """

    @wraps(function)
    def filter_with_budget_and_origins(*args: Any, **kwargs: Any) -> Any:
        charge_characters_to_rendering_budget(size_of_arguments(args, kwargs))
        result = function(*args, **kwargs)
        if type(result) is TextWithOrigins:
            return result
        texts = tuple([value for value in args if type(value) is TextWithOrigins or isinstance(result, str)])
        return add_origins(result, origins_of(texts)) if texts else result

    return filter_with_budget_and_origins


def metered_filter_of_text(function: Callable[..., str]) -> Callable[..., str]:
    """Return `function`, a filter that reads its first argument as a text, with the same additions."""
    metered = metered_filter(function)

    @wraps(function)
    def filter_of_printed_text(value: Any, *args: Any, **kwargs: Any) -> str:
        return metered(to_printed_text(value), *args, **kwargs)

    return filter_of_printed_text


def metered_text_filter(function: Callable[[str], str]) -> Callable[[str], str]:
    """Return `function` as a template filter that keeps the origins of its text and counts the text's size."""

    def filter_text_with_budget_and_origins(text: str) -> str:
        charge_characters_to_rendering_budget(3 * ITEM_COST + nested_size_in_characters(text))
        return apply_cached_with_origins(text, function)

    return filter_text_with_budget_and_origins


def join_texts_within_budget(values: Iterable[Any], separator: str = "") -> str:
    """Return the texts of `values` joined by `separator`, with marks (which jinja2's own filter would lose)."""
    texts = list(map(to_printed_text, charge_size_to_rendering_budget(list(values))))
    charge_characters_to_rendering_budget(nested_size_in_characters(texts) + len(texts) * len(separator))
    pieces = [separator] * max(2 * len(texts) - 1, 0)
    pieces[::2] = texts
    return join_texts_with_origins(pieces)


def replace_within_budget(text: str, old: str, new: str) -> str:
    """Return `text` with `old` replaced by `new`, after counting the result's size against the budget."""
    text, old, new = map(to_printed_text, (text, old, new))
    charge_characters_to_rendering_budget(str.__len__(text) + str.count(text, old) * str.__len__(new))
    return add_origins(str.replace(text, old, new), origins_of((text, old, new)))


def sum_of_numbers_only(values: Iterable[Any]) -> Any:
    """Return the sum of the numbers `values`. A start value, such as a list, could take quadratic time."""
    return sum(values)


def to_json_with_origins(value: Any) -> str:
    """Return `value` as JSON text, marked with all origins of `value`."""
    return add_origins(json.dumps(charge_size_to_rendering_budget(value), ensure_ascii=False), origins_of(value))
