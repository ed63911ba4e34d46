"""Jinja2 templates and expressions that are filled in many thousand times a step, in bounded time and memory.

Scenario files are shared, so their templates run in a sandbox: they reach nothing outside their facts, an unknown name
is an error and not an empty string, and what a rendering makes is charged to a budget.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from math import isfinite
from threading import local
from types import BuiltinMethodType, CodeType, MethodType
from typing import Any

from jinja2 import StrictUndefined, Template, TemplateError, TemplateRuntimeError, TemplateSyntaxError, Undefined, nodes
from jinja2.exceptions import SecurityError
from jinja2.filters import FILTERS
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

BUDGET = 10_000_000
"""Characters that one rendering may make; an item of a list, a call and a round of a loop count as `ITEM`."""
ITEM = 100
MAX_SOURCE = 100_000
"""Characters of a template or an expression."""
MAX_DEPTH = 100
"""Nesting of a template or an expression. Python's compiler gives up at about 200 brackets."""
MAX_BITS = 4096
"""Size of a whole number that is made: 1,233 digits."""
_FILTERS = (
    *("abs", "capitalize", "count", "d", "default", "dictsort", "first", "float", "groupby", "int", "items", "last"),
    *("length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "reverse", "select", "selectattr"),
    *("sort", "string", "title", "trim", "truncate", "unique", "upper", "wordcount"),
)
"""Filters of jinja2 whose work and result grow no faster than their input. `join`, `replace`, `round`, `sum` and
`tojson` are our own; there is no `format`, `indent`, `center` and the like, nor chance (`random`)."""
_METHODS: Mapping[type, tuple[str, ...]] = {
    str: (
        *("capitalize", "casefold", "count", "endswith", "find", "isalnum", "isalpha", "isascii", "isdecimal"),
        *("isdigit", "islower", "isnumeric", "isspace", "istitle", "isupper", "lower", "lstrip", "partition"),
        *("removeprefix", "removesuffix", "rfind", "rpartition", "rsplit", "rstrip", "split", "splitlines"),
        *("startswith", "strip", "swapcase", "title", "upper"),
    ),
    Mapping: ("get", "items", "keys", "values"),
    list: ("count", "index"),
    tuple: ("count", "index"),
    LoopContext: ("changed", "cycle"),
}
"""Methods that may be called, chosen likewise."""
_FAILURES = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Errors of Python that an expression can bring about."""


class LimitError(SecurityError):
    """A template or an expression would take too much time or memory."""


class _Spent(local):
    """Characters that the rendering in this thread has made so far."""

    units = 0


_spent = _Spent()


def _spend(units: int) -> None:
    _spent.units += units
    if _spent.units > BUDGET:
        raise LimitError(
            f"it makes more than {BUDGET:,} characters (an item, a call or a round of a loop counts as {ITEM})"
        )


def _size(value: Any) -> int:
    """Return the characters in a value, items within items included; not much more than `BUDGET` if it has more."""
    total, left = 0, [value]
    while left and total <= BUDGET:
        match left.pop():
            case str() as text:
                total += len(text)
            case dict() as mapping:
                total += ITEM * len(mapping)
                left += [*mapping.keys(), *mapping.values()]
            case list() | tuple() | set() | frozenset() as items:
                total += ITEM * len(items)
                left += items
            case range() as numbers:
                total += ITEM * len(numbers)
    return total


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Environment of templates that come from scenario files. Fill its templates in by `CompiledTemplate`.

    Beyond jinja2's sandbox, it bounds the source (`MAX_SOURCE`, `MAX_DEPTH`), whole numbers (`MAX_BITS`) and what a
    rendering makes (`BUDGET`), and offers only filters and methods whose result cannot be far larger than their input.
    """

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, filters: Mapping[str, Callable[..., Any]] | None = None, **options: Any) -> None:
        super().__init__(undefined=StrictUndefined, finalize=_charge, **options)
        known = {name: FILTERS[name] for name in _FILTERS} | (dict(filters) if filters else {})
        self.filters = {name: _metered(function) for name, function in known.items()}
        self.filters |= {"join": _join, "replace": _replace, "round": round, "sum": total, "tojson": _to_json}
        self.filters |= {"_charge": _charge, "_count": _count, "_concatenate": _concatenate}
        self.globals = {"range": range, "dict": dict}

    def parse_expression(self, source: str) -> nodes.Expr:
        """Return the tree of an expression.

        Raises:
            TemplateSyntaxError: if it is none, or too long or too deep.
        """
        _check_length(source)
        try:
            parser = Parser(self, source, state="variable")
            tree = parser.parse_expression()
        except RecursionError as error:
            raise TemplateSyntaxError(_too_deep(), 1) from error
        if not parser.stream.eos:
            raise TemplateSyntaxError(f"unexpected {parser.stream.current.value!r}", parser.stream.current.lineno)
        _check_tree(tree)
        tree.set_environment(self)
        return tree

    def compile_to_value(self, source: str) -> CompiledTemplate:
        """Return an expression as a template that sets the variable `value`; raises as `parse_expression`."""
        assignment = nodes.Assign(nodes.Name("value", "store"), self.parse_expression(source), lineno=1)
        return CompiledTemplate(self.from_string(nodes.Template([assignment], lineno=1)))

    # --- bounds of the source: hooks of jinja2 -----------------------------------------------------------------------

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        _check_length(source)
        try:
            tree = super()._parse(source, name, filename)
        except RecursionError as error:
            raise TemplateSyntaxError(_too_deep(), 1, name, filename) from error
        _check_tree(tree)
        return tree

    def _generate(self, source: nodes.Template, *place: Any, **options: Any) -> str:
        _Meter().visit(source)
        source.set_environment(self)
        return super()._generate(source, *place, **options)

    def _compile(self, source: str, filename: str) -> CodeType:
        try:
            return super()._compile(source, filename)
        except (SyntaxError, RecursionError, MemoryError) as error:
            # Python's own bounds, such as 20 loops within each other.
            raise TemplateSyntaxError(_too_deep(), 1) from error

    # --- bounds of what is made: hooks of jinja2's sandbox -----------------------------------------------------------

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        match operator, left, right:
            case "**", int(), int() if right * left.bit_length() > MAX_BITS:
                raise LimitError(f"a whole number of more than {MAX_BITS} bits")
            case "*", int(), int() if left.bit_length() + right.bit_length() > MAX_BITS:
                raise LimitError(f"a whole number of more than {MAX_BITS} bits")
            case "*", int(), str() | list() | tuple():
                _spend(_size(right) * max(left, 0))
            case "*" | "+", str() | list() | tuple(), _:
                _spend(_size(left) * (max(right, 0) if isinstance(right, int) else 1) + _size(right))
            case "%", str(), _:
                raise SecurityError("text % values is not available; join texts by ~")
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 (as jinja2)
        _spend(ITEM + _size((args, kwargs)))
        return _charge(super().call(__context, __obj, *args, **kwargs))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if not super().is_safe_attribute(obj, attr, value):
            return False
        return not isinstance(value, MethodType | BuiltinMethodType) or attr in _methods(obj)

    def wrap_str_format(self, value: Any) -> None:
        """Return None: `format` is no method that may be called."""

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        methods = ", ".join(_methods(obj)) or "none"
        message = f"{attribute!r} of {type(obj).__name__!r} is not available; methods: {methods}; filters: |join, ..."
        return self.undefined(message, name=attribute, obj=obj, exc=SecurityError)


def _methods(owner: Any) -> tuple[str, ...]:
    return next((methods for kind, methods in _METHODS.items() if isinstance(owner, kind)), ())


def _too_deep() -> str:
    return f"nested too deeply; the limit is {MAX_DEPTH}"


def _check_length(source: str) -> None:
    if len(source) > MAX_SOURCE:
        raise TemplateSyntaxError(f"{len(source):,} characters are too many; the limit is {MAX_SOURCE:,}", 1)


def _check_tree(tree: nodes.Node) -> None:
    level, depth = [tree], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise TemplateSyntaxError(_too_deep(), level[0].lineno or 1)
        for node in level:
            # Infinity has no literal in the code that jinja2 makes.
            if isinstance(node, nodes.Const) and isinstance(node.value, float) and not isfinite(node.value):
                raise TemplateSyntaxError("a number is too large", node.lineno)
        level = [child for node in level for child in node.iter_child_nodes()]


class _Meter(NodeTransformer):
    """Makes a template charge rounds of loops, and the values that jinja2's sandbox cannot intercept."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 (jinja2 names it)
        self.generic_visit(node)
        cost = ITEM + sum(len(text.data) for text in node.find_all(nodes.TemplateData))
        node.iter = _filtered(node.iter, "_count", nodes.Const(cost))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), "_concatenate")

    def visit_List(self, node: nodes.List | nodes.Tuple | nodes.Dict) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        target = isinstance(node, nodes.Tuple) and node.ctx == "store"
        return node if target else _filtered(node, "_charge")

    visit_Tuple = visit_Dict = visit_List  # noqa: N815


def _filtered(node: nodes.Node, name: str, *args: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, list(args), [], None, None, lineno=node.lineno)


def _charge(value: Any) -> Any:
    _spend(len(value) if isinstance(value, str) else _size(value))
    return value


def _count(items: Iterable[Any], cost: int) -> list[Any]:
    """Return the items of a loop, each of which is charged `cost`."""
    counted = []
    for item in items:
        _spend(cost)
        counted.append(item)
    return counted


def _concatenate(values: list[Any]) -> str:
    _spend(_size(values))
    return "".join(map(str, values))


def _metered(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter that is charged for what it is given."""

    @wraps(function)
    def metered(*args: Any, **kwargs: Any) -> Any:
        _spend(_size((args, kwargs)))
        return function(*args, **kwargs)

    return metered


def _join(values: Iterable[Any], separator: str = "") -> str:
    texts = list(map(str, _charge(list(values))))
    _spend(_size(texts) + len(texts) * len(separator))
    return separator.join(texts)


def _replace(text: str, old: str, new: str) -> str:
    _spend(len(text) + text.count(old) * len(new))
    return text.replace(old, new)


def total(values: Iterable[Any]) -> Any:
    """Return the sum of numbers; lists, which `sum` would copy again and again, are no numbers."""
    return sum(values)


def _to_json(value: Any) -> str:
    return json.dumps(_charge(value), ensure_ascii=False)


class CompiledTemplate:
    """A template that is filled in fast.

    `Template.render` copies the environment's globals for every call, which costs more than most of our templates do;
    here they are copied once.
    """

    def __init__(self, template: Template) -> None:
        self._template, self._globals = template, dict(template.globals)

    def render(self, facts: Mapping[str, Any]) -> str:
        """Return the text, like `Template.render`.

        Raises:
            jinja2.TemplateError: for names that are undefined or not allowed, for values that do not fit (the cause is
                Python's own error), and for what exceeds a limit (`LimitError`).
        """
        return self.run(facts)[0]

    def run(self, facts: Mapping[str, Any]) -> tuple[str, Context]:
        """Return the text, and the context with the variables that the template has set; raises as `render`."""
        context = self._template.new_context({**self._globals, **facts}, shared=True)
        _spent.units = 0
        try:
            return "".join(self._template.root_render_func(context)), context
        except TemplateError:
            raise
        except _FAILURES as error:
            raise TemplateRuntimeError(f"{type(error).__name__}: {error}") from error
