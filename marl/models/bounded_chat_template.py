"""Rendering of chat templates, which come with models, in bounded time and memory.

Transformers renders templates in jinja2's sandbox, in which `"x" * 10**10` still takes 10 GB. Here every text and list
that a template makes is counted against a budget of characters ("charged") before it is made.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, wraps
from string import Formatter
from types import BuiltinMethodType, CodeType
from typing import Any

from jinja2 import Template, TemplateError, TemplateSyntaxError, nodes, pass_eval_context
from jinja2.filters import FILTERS
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer
from transformers.utils.chat_template_utils import _compile_jinja_template

from marl.text.template_filters import (
    ITEM_COST,
    TemplateLimitError,
    charge_characters_to_rendering_budget,
    charge_size_to_rendering_budget,
    nested_size_in_characters,
    rendering_budget,
)
from marl.text.template_nodes import check_source_length

CHAT_BUDGET = 100_000_000
"""Maximum number of characters that one rendering may make, including intermediate texts. A template may copy a long
chat many times."""
_MAX_BITS = 4096
"""Maximum size of an integer result in bits."""
_REFUSED_FILTERS = ("batch", "pprint", "slice", "urlize", "wordwrap", "xmlattr")
"""Filters of jinja2 that no chat needs, and whose result can be far larger than their input."""
_REFUSED_METHODS = ("encode", "expandtabs", "format_map", "from_bytes", "maketrans", "to_bytes", "translate")
_LONG_WIDTH = re.compile(r"\d{4}|\{|\*")
"""Field width that is refused in a format: four digits or more, or set by a value."""
_FAILURES = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    NameError,
    RecursionError,
    TypeError,
    ValueError,
)
"""Errors of Python that a template can raise."""


def render_chat_template(
    tokenizer: Any,
    messages: Sequence[Mapping[str, Any]],
    tool_schemas: list[Any] | None = None,
    *,
    ends_with_answer: bool = False,
) -> str:
    """Return the text of `messages` by the tokenizer's chat template, as `apply_chat_template` returns it.

    Args:
        tokenizer: tokenizer of Transformers with a chat template.
        messages: messages with `role` and `content`.
        tool_schemas: JSON schemas of tools, if there are any.
        ends_with_answer: True to leave out the markup that begins another answer.

    Raises:
        ValueError: if the template refuses the messages, fails, or exceeds its budget.
    """
    source = tokenizer.get_chat_template(tools=tool_schemas or None)
    facts = {
        "messages": messages,
        "tools": tool_schemas or None,
        "documents": None,
        "add_generation_prompt": not ends_with_answer,
    }
    try:
        with rendering_budget(CHAT_BUDGET):
            return _compile(source).render({**tokenizer.special_tokens_map, **facts})
    except (TemplateError, *_FAILURES) as error:
        roles = [message["role"] for message in messages]
        reason = error if isinstance(error, TemplateError) else f"{type(error).__name__}: {error}"
        raise ValueError(f"the chat template refuses messages with roles {roles}: {reason}") from error


@lru_cache(64)
def _compile(source: str) -> Template:
    return _chat_environment().from_string(source)


@lru_cache(1)
def _chat_environment() -> BoundedChatEnvironment:
    return BoundedChatEnvironment(_compile_jinja_template("").environment)


class BoundedChatEnvironment(ImmutableSandboxedEnvironment):
    """Environment of chat templates with the filters, globals and tags of Transformers' environment `model`."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, model: Any) -> None:
        extensions = list(map(type, model.extensions.values()))
        super().__init__(trim_blocks=True, lstrip_blocks=True, finalize=_charge_size_of_output, extensions=extensions)
        # jinja2 joins the outputs of templates, blocks, macros and `set` blocks by the function `concat`.
        self.concat = _bounded_concatenate_outputs
        for name, function in model.filters.items():
            if name not in _REFUSED_FILTERS:
                self.filters[name] = _metered_filter(function)
            else:
                del self.filters[name]
        self.filters |= {
            "center": _bounded_center,
            "format": _bounded_format,
            "indent": _bounded_indent,
            "join": _bounded_join,
            "replace": _bounded_replace,
        }
        self.filters |= {
            "tojson": _bounded_to_json,
            "_charge": charge_size_to_rendering_budget,
            "_bounded_concatenate": _bounded_concatenate,
        }
        self.filters["_charge_loop_items"] = _charge_loop_items
        self.globals.update({name: value for name, value in model.globals.items() if name not in ("lipsum", "range")})
        del self.globals["lipsum"]

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        check_source_length(source)
        try:
            return _BudgetTransformer().visit(super()._parse(source, name, filename))
        except RecursionError as error:
            raise TemplateSyntaxError("nested too deeply", 1, name, filename) from error

    def _compile(self, source: str, filename: str) -> CodeType:
        try:
            return super()._compile(source, filename)
        except (SyntaxError, RecursionError, MemoryError) as error:
            raise TemplateSyntaxError("nested too deeply", 1) from error

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        match operator, left, right:
            case "**", int(), int() if right * left.bit_length() > _MAX_BITS:
                raise TemplateLimitError(f"a whole number of more than {_MAX_BITS} bits")
            case "*", int(), int() if left.bit_length() + right.bit_length() > _MAX_BITS:
                raise TemplateLimitError(f"a whole number of more than {_MAX_BITS} bits")
            case "*", int(), str() | list() | tuple():
                charge_characters_to_rendering_budget(nested_size_in_characters(right) * max(left, 0))
            case "*", str() | list() | tuple(), int():
                charge_characters_to_rendering_budget(nested_size_in_characters(left) * max(right, 0))
            case "+", str() | list() | tuple(), _:
                charge_characters_to_rendering_budget(
                    nested_size_in_characters(left) + nested_size_in_characters(right)
                )
            case "%", str(), _:
                _charge_size_of_formatted_text(left, left.count("%"), left, right)
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 (as jinja2)
        charge_characters_to_rendering_budget(ITEM_COST + nested_size_in_characters((args, kwargs)))
        if isinstance(__obj, BuiltinMethodType) and isinstance(text := __obj.__self__, str):
            match __obj.__name__, args:
                case (("center" | "ljust" | "rjust" | "zfill"), (int() as width, *_)):
                    charge_characters_to_rendering_budget(width)
                case "join", (values,):
                    args = (charge_size_to_rendering_budget(list(values)),)
                    charge_characters_to_rendering_budget(len(args[0]) * len(text))
                case "replace", (str() as old, str() as new, *_):
                    charge_characters_to_rendering_budget(len(text) + text.count(old) * len(new))
        return charge_size_to_rendering_budget(super().call(__context, __obj, *args, **kwargs))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return attr not in _REFUSED_METHODS and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        function = super().wrap_str_format(value)
        if function is None:
            return None

        @wraps(function)
        def charge_and_format(*args: Any, **kwargs: Any) -> str:
            fields = list(Formatter().parse(value.__self__))
            _charge_size_of_formatted_text(
                "".join([spec or "" for _, _, spec, _ in fields]), len(fields), value.__self__, args, kwargs
            )
            return function(*args, **kwargs)

        return charge_and_format


class _BudgetTransformer(NodeTransformer):
    """Syntax-tree transformer that inserts filters to charge loops, lists and `~`, which jinja2's sandbox ignores."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 (jinja2 names it)
        self.generic_visit(node)
        node.iter = _filter_node(node.iter, "_charge_loop_items")  # type: ignore[arg-type]  # jinja2 declares a node
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filter_node(nodes.List(node.nodes, lineno=node.lineno), "_bounded_concatenate")

    def visit_List(self, node: nodes.List | nodes.Tuple | nodes.Dict) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        is_target = isinstance(node, nodes.Tuple) and node.ctx == "store"
        return node if is_target else _filter_node(node, "_charge")

    visit_Tuple = visit_Dict = visit_List


def _filter_node(node: nodes.Expr, filter_name: str) -> nodes.Filter:
    return nodes.Filter(node, filter_name, [], [], None, None, lineno=node.lineno)


def _charge_loop_items(items: Iterable[Any]) -> list[Any]:
    """Return the items of a loop, after charging `ITEM_COST` characters for each item."""
    counted: list[Any] = []
    for item in items:
        charge_characters_to_rendering_budget(ITEM_COST)
        counted.append(item)
    return counted


def _charge_size_of_output(value: Any) -> Any:
    """Return `value` unchanged, after charging its text, which can be endless even for a short list of lists."""
    return charge_size_to_rendering_budget(value)


def _bounded_concatenate_outputs(outputs: Iterable[str]) -> str:
    return "".join(charge_size_to_rendering_budget(list(outputs)))


def _bounded_concatenate(values: list[Any]) -> str:
    charge_size_to_rendering_budget(values)
    return "".join(map(str, values))


def _metered_filter(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the template filter `function`, extended to charge its arguments and its result to the budget."""

    @wraps(function)
    def charge_and_call(*args: Any, **kwargs: Any) -> Any:
        charge_characters_to_rendering_budget(ITEM_COST + nested_size_in_characters((args, kwargs)))
        return charge_size_to_rendering_budget(function(*args, **kwargs))

    return charge_and_call


def _charge_size_of_formatted_text(widths: str, field_count: int, *values: Any) -> None:
    """Charge the result of formatting `values` into `field_count` fields with the format specifications `widths`."""
    if _LONG_WIDTH.search(widths):
        raise TemplateLimitError("a format with a width of four digits, or with a width that a value sets")
    charge_characters_to_rendering_budget((1 + field_count) * (1000 + nested_size_in_characters(values)))


def _bounded_format(value: Any, *args: Any, **kwargs: Any) -> str:
    text = str(charge_size_to_rendering_budget(value))
    _charge_size_of_formatted_text(text, text.count("%"), text, args, kwargs)
    return text % (kwargs or args)


def _bounded_center(value: Any, width: int = 80) -> str:
    charge_characters_to_rendering_budget(width)
    return FILTERS["center"](value, width)


def _bounded_indent(value: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    text = str(charge_size_to_rendering_budget(value))
    charge_characters_to_rendering_budget(
        (1 + len(text.splitlines())) * (len(width) if isinstance(width, str) else width)
    )
    return FILTERS["indent"](text, width, first, blank)


@pass_eval_context
def _bounded_join(context: Any, values: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
    """Return the joined `values`. The separator is called `d`, as in jinja2."""
    items = charge_size_to_rendering_budget(list(values))
    charge_characters_to_rendering_budget(len(items) * len(d))
    return FILTERS["join"](context, items, d, attribute)


@pass_eval_context
def _bounded_replace(context: Any, value: Any, old: str, new: str, count: int | None = None) -> str:
    text = str(charge_size_to_rendering_budget(value))
    charge_characters_to_rendering_budget(len(text) + text.count(old) * len(new))
    return FILTERS["replace"](context, text, old, new, count)


def _bounded_to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return `value` as JSON, with the options of Transformers' filter."""
    if isinstance(indent, int):
        charge_characters_to_rendering_budget(indent)
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    # Each piece is charged to the budget, because indents and separators can exceed the value's size many times.
    return "".join(map(charge_size_to_rendering_budget, encoder.iterencode(charge_size_to_rendering_budget(value))))
