"""Jinja2 templates and expressions that are filled in many thousand times a step, in bounded time and memory.

Scenario files are shared, so their templates run in a sandbox: they reach nothing outside their facts, an unknown name
is an error and not an empty string, and what a rendering makes is charged to a budget.

Values that are marked with the turns that they were made from (`marl/provenance.py`) keep their marks: an output is
marked by what its expression looked at, and the whole of an `if` or a `for` by what its conditions and items depend on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import wraps
from threading import local
from types import BuiltinMethodType, CodeType, MethodType
from typing import Any

from jinja2 import (
    StrictUndefined,
    Template,
    TemplateError,
    TemplateRuntimeError,
    TemplateSyntaxError,
    Undefined,
    nodes,
    pass_context,
)
from jinja2.exceptions import SecurityError
from jinja2.filters import FILTERS
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from marl.provenance import (
    NO_ORIGINS,
    Begin,
    End,
    Marked,
    Origins,
    Rest,
    carry,
    joined,
    note,
    origins_of,
    remade,
    swap_notes,
    taken,
    text_of,
)
from marl.template_nodes import OF_FACTS, BoundaryGenerator, Meter, check_length, check_tree, statement_of, too_deep

BUDGET = 10_000_000
"""Characters that one rendering may make; an item of a list, a call and a round of a loop count as `ITEM`."""
ITEM = 100
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


class _Rendering(local):
    """State of the rendering in this thread."""

    units = 0
    """Characters that it has made so far."""
    branches: list[Origins]
    """Origins of the conditions and items of each `if` and `for` that is open; first, of the whole template."""
    assigned: Origins
    """Origins of variables that were set just now and cannot be marked."""
    result: Any = None
    """The value of the expression."""


_rendering = _Rendering()


def _spend(units: int) -> None:
    state = _rendering
    state.units = spent = state.units + units
    if spent > BUDGET:
        raise LimitError(
            f"it makes more than {BUDGET:,} characters (an item, a call or a round of a loop counts as {ITEM})"
        )


def _size(value: Any) -> int:
    """Return the characters in a value, items within items included; not much more than `BUDGET` if it has more."""
    if isinstance(value, str):
        return str.__len__(value)
    total, left = 0, [value]
    while left and total <= BUDGET:
        match left.pop():
            case str() as text:
                total += str.__len__(text)
            case dict() as mapping:
                total += ITEM * dict.__len__(mapping)
                left += [*dict.keys(mapping), *dict.values(mapping)]
            case list() as items:
                total += ITEM * list.__len__(items)
                left += list.__iter__(items)
            case tuple() | set() | frozenset() as items:
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
    code_generator_class = BoundaryGenerator
    concat = staticmethod(joined)  # of all that a template, block, macro or `set` block puts out

    def __init__(
        self,
        filters: Mapping[str, Callable[[str], str]] | None = None,
        marked: Collection[str] | None = None,
        **options: Any,
    ) -> None:
        """`filters`: functions of a text. `marked`: names of all facts that may be marked. Default: any may."""
        super().__init__(undefined=StrictUndefined, finalize=_output, **options)
        self.filters = {name: _metered(FILTERS[name]) for name in _FILTERS}
        self.filters |= {name: _of_text(function) for name, function in (filters or {}).items()}
        self.marked, self.begin = marked, Begin()
        self.filters |= {"join": _join, "replace": _replace, "round": round, "sum": total, "tojson": _to_json}
        self.filters |= {"_charge": _charge, "_count": _count, "_concatenate": _concatenate, "_look": _look}
        self.filters |= {"_decide": _decide, "_end": _end, "_assign": _assign, "_rest": _rest, "_result": _result}
        self.tests = {name: test if name in _OF_NAMES else _looking(test) for name, test in self.tests.items()}
        self.globals = {"range": range, "dict": dict}

    def parse_expression(self, source: str) -> nodes.Expr:
        """Return the tree of an expression.

        Raises:
            TemplateSyntaxError: if it is none, or too long or too deep.
        """
        check_length(source)
        try:
            parser = Parser(self, source, state="variable")
            tree = parser.parse_expression()
        except RecursionError as error:
            raise TemplateSyntaxError(too_deep(), 1) from error
        if not parser.stream.eos:
            raise TemplateSyntaxError(f"unexpected {parser.stream.current.value!r}", parser.stream.current.lineno)
        check_tree(tree)
        tree.set_environment(self)
        return tree

    def compile_to_value(self, source: str) -> CompiledTemplate:
        """Return an expression as a template that puts out nothing; raises as `parse_expression`."""
        return CompiledTemplate(self.from_string(statement_of(self.parse_expression(source))))

    # --- bounds of the source: hooks of jinja2 -----------------------------------------------------------------------

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        check_length(source)
        try:
            tree = super()._parse(source, name, filename)
        except RecursionError as error:
            raise TemplateSyntaxError(too_deep(), 1, name, filename) from error
        check_tree(tree)
        return tree

    def _generate(self, source: nodes.Template, *place: Any, **options: Any) -> str:
        Meter(ITEM, source, self.marked).visit(source)
        source.set_environment(self)
        # A template may be compiled while another one is rendered that includes it.
        notes = swap_notes(None)
        try:
            return super()._generate(source, *place, **options)
        finally:
            swap_notes(notes)

    def _compile(self, source: str, filename: str) -> CodeType:
        try:
            return super()._compile(source, filename)
        except (SyntaxError, RecursionError, MemoryError) as error:
            # Python's own bounds, such as 20 loops within each other.
            raise TemplateSyntaxError(too_deep(), 1) from error

    def getattr(self, obj: Any, attribute: str) -> Any:
        # Facts are most of what templates look at: they need no detour over an AttributeError.
        is_fact = isinstance(obj, dict) and attribute not in OF_FACTS and dict.__contains__(obj, attribute)
        return obj[attribute] if is_fact else super().getattr(obj, attribute)

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
        # What the arguments depend on is part of the result, not of what a macro happens to put out first.
        origins = taken()
        return carry(_charge(super().call(__context, __obj, *args, **kwargs)), origins)

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


# --- marks: filters that `Meter` puts in. Those with a context are not worked out before the facts are known ---------


@pass_context
def _end(_context: Context, _: None, sets: bool = False) -> str:
    """Return the end of an `if` or a `for`; `sets`: it may set variables."""
    origins = _rendering.branches.pop()
    if sets:
        _rendering.assigned |= origins
    return End(origins) if origins else _END


def _decide(condition: Any, first: bool = False) -> bool:
    """Return whether a condition holds; all of the `if` or `for` that is open depends on what it looked at.

    `first`: an `if` opens with it.
    """
    holds = bool(condition)
    if first:
        _rendering.branches.append(taken())
    elif origins := taken():
        _rendering.branches[-1] |= origins
    return holds


def _assign(value: Any, silent: bool = False) -> Any:
    """Return the value of a variable, marked by what was looked at for it; `silent`: all the rest may use it."""
    origins = taken()
    if origins and isinstance(value, str):
        return carry(value, origins)
    if silent:
        _rendering.branches[0] |= origins
    else:
        _rendering.assigned |= origins
    return value


@pass_context
def _result(_context: Context, value: Any) -> None:
    """Keep the value of an expression."""
    _rendering.result = value


@pass_context
def _rest(_context: Context, _: None) -> str:
    """Return the boundary after variables were set."""
    origins, _rendering.assigned = _rendering.assigned, NO_ORIGINS
    return Rest(origins) if origins else ""


def _look(value: Any) -> Any:
    """Return a value, with a note that it was looked at."""
    if type(value) is Marked:
        note(origins_of(value))
    return value


def _looking(test: Callable[..., Any]) -> Callable[..., Any]:
    """Return a test (`is upper`) that notes what it looks at."""

    @wraps(test)
    def looking(*args: Any) -> Any:
        for value in args:
            _look(value)
        return test(*args)

    return looking


_END = End()
_OF_NAMES = ("defined", "undefined", "filter", "test")
"""Tests that look at names and not at values."""


# --- costs, and filters of our own ------------------------------------------------------------------------------------


def _output(value: Any) -> str:
    """Return what an output statement puts out, marked by what its expression looked at."""
    text = value if isinstance(value, str) else text_of(value)
    _spend(str.__len__(text))
    return carry(text, origins) if (origins := taken()) else text


def _charge(value: Any) -> Any:
    _spend(str.__len__(value) if isinstance(value, str) else _size(value))
    return value


def _count(items: Iterable[Any], cost: int) -> list[Any]:
    """Return the items of a loop that opens with them, each of which is charged `cost`."""
    counted = []
    for item in items:
        _spend(cost)
        counted.append(item)
    _rendering.branches.append(taken())
    return counted


def _concatenate(values: list[Any]) -> str:
    _spend(_size(values))
    return joined(map(text_of, values))


def _metered(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter that is charged for what it is given; what it makes of a marked text is marked."""

    @wraps(function)
    def metered(*args: Any, **kwargs: Any) -> Any:
        _spend(_size((args, kwargs)))
        result = function(*args, **kwargs)
        texts = tuple([value for value in args if type(value) is Marked]) if type(result) is not Marked else ()
        return carry(result, origins_of(texts)) if texts else result

    return metered


def _of_text(function: Callable[[str], str]) -> Callable[[str], str]:
    """Return a function of a text as a filter that is charged for the text; what it makes of a marked one is marked."""

    def of_text(text: str) -> str:
        _spend(3 * ITEM + _size(text))
        return remade(text, function)

    return of_text


def _join(values: Iterable[Any], separator: str = "") -> str:
    texts = list(map(text_of, _charge(list(values))))
    _spend(_size(texts) + len(texts) * len(separator))
    between = [separator] * max(2 * len(texts) - 1, 0)
    between[::2] = texts
    return joined(between)


def _replace(text: str, old: str, new: str) -> str:
    text, old, new = map(text_of, (text, old, new))
    _spend(str.__len__(text) + str.count(text, old) * str.__len__(new))
    return carry(str.replace(text, old, new), origins_of((text, old, new)))


def total(values: Iterable[Any]) -> Any:
    """Return the sum of numbers; lists, which `sum` would copy again and again, are no numbers."""
    return sum(values)


def _to_json(value: Any) -> str:
    return carry(json.dumps(_charge(value), ensure_ascii=False), origins_of(value))


class CompiledTemplate:
    """A template that is filled in fast.

    `Template.render` copies the environment's globals for every call, which costs more than most of our templates do;
    here they are copied once.
    """

    def __init__(self, template: Template) -> None:
        self._template, self._globals = template, dict(template.globals)

    def render(self, facts: Mapping[str, Any]) -> str:
        """Return the text, like `Template.render`; `Marked` if it was made from marked values.

        Raises:
            jinja2.TemplateError: for names that are undefined or not allowed, for values that do not fit (the cause is
                Python's own error), and for what exceeds a limit (`LimitError`).
        """
        text, origins = self._run(facts)
        return carry(text, origins)

    def evaluate(self, facts: Mapping[str, Any]) -> tuple[Any, Origins]:
        """Return the value of an expression (`compile_to_value`), and what it depends on; raises as `render`."""
        _, origins = self._run(facts)
        value, _rendering.result = _rendering.result, None
        return value, origins | origins_of(value)

    def _run(self, facts: Mapping[str, Any]) -> tuple[str, Origins]:
        """Return the text, and what all of it depends on."""
        template, environment = self._template, self._template.environment
        context = environment.context_class(environment, {**self._globals, **facts}, template.name, template.blocks)
        state, notes = _rendering, swap_notes(NO_ORIGINS)
        state.units, state.branches, state.assigned = 0, [NO_ORIGINS], NO_ORIGINS
        try:
            text = joined(template.root_render_func(context))
            return text, taken().union(state.assigned, *state.branches)
        except TemplateError:
            raise
        except _FAILURES as error:
            raise TemplateRuntimeError(f"{type(error).__name__}: {error}") from error
        finally:
            swap_notes(notes)
