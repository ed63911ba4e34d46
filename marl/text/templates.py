"""Jinja2 templates and expressions that are rendered many thousand times a step, in bounded time and memory.

Scenario files are shared between people, so their templates run in a sandbox: they read nothing but their facts, an
unknown name is an error, and the size of all intermediate texts and lists is charged to a budget.

Values keep the marks of the turns that they were made from (`marl/text/origins.py`): an output is marked with the
origins of its expression, and the text of an `if` or `for` with the origins of its conditions and items.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
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
)
from jinja2.exceptions import SecurityError
from jinja2.filters import FILTERS
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from marl.text import template_filters
from marl.text.origins import (
    NO_ORIGINS,
    Origins,
    TemplateBranchBegin,
    add_origins,
    join_texts_with_origins,
    origins_of,
    swap_recorded_origins,
    take_recorded_origins,
)
from marl.text.template_filters import (
    ITEM_COST,
    TemplateLimitError,
    charge_characters_to_rendering_budget,
    charge_size_to_rendering_budget,
    nested_size_in_characters,
    rendering,
    size_of_arguments,
    sum_of_numbers_only,
)
from marl.text.template_nodes import (
    FACT_ATTRIBUTES,
    TOO_DEEP,
    BudgetTransformer,
    MarkedTextCodeGenerator,
    check_source_length,
    check_tree_limits,
    expression_template,
)

MAX_BITS = 4096
"""Maximum size of an integer result in bits: 1,233 decimal digits."""
_FILTERS = (
    *("abs", "count", "d", "default", "dictsort", "first", "float", "groupby", "int", "items", "last", "length"),
    *("list", "map", "max", "min", "reject", "rejectattr", "reverse", "select", "selectattr", "sort", "truncate"),
    "unique",
)
"""Filters of jinja2 that templates may use: their time and the size of their result are linear in their input.

`format`, `indent` and `center` are missing, because their results can be far larger than their input. `random` is
missing, because equal facts must make equal prompts."""
_TEXT_FILTERS = ("capitalize", "lower", "string", "title", "trim", "upper", "wordcount")
"""Further filters of jinja2, which read their argument as a text, whatever it is."""
_OWN_FILTERS: Mapping[str, Callable[..., Any]] = {
    **{
        "join": template_filters.join_texts_within_budget,
        "replace": template_filters.replace_within_budget,
        "round": round,
        "sum": sum_of_numbers_only,
        "tojson": template_filters.to_json_with_origins,
    },
    # Filters that `BudgetTransformer` inserts; template authors do not call them.
    **{
        "_charge": charge_size_to_rendering_budget,
        "_count": template_filters.list_loop_items_within_budget,
        "_concatenate": template_filters.concatenate_within_budget,
        "_look": template_filters.record_origins_of,
    },
    **{
        "_decide": template_filters.evaluate_branch_condition,
        "_end": template_filters.boundary_after_branch,
        "_assign": template_filters.mark_assigned_value,
        "_rest": template_filters.boundary_after_assignment,
    },
    "_result": template_filters.store_expression_value,
}
_NAME_TESTS = ("defined", "undefined", "filter", "test")
"""Tests of jinja2 that check names instead of values, so that they record no origins."""
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
"""Methods that templates may call, by type of the object; like `_FILTERS`, they take linear time."""
_TEXT_METHODS = frozenset(_METHODS[str])
_BOUND_METHODS = (MethodType, BuiltinMethodType)
"""Types of methods looked up on an instance: of classes written in Python, and of built-in ones such as `str`."""
_FAILURES = (ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Errors of Python that an expression can raise (jinja2's filter `truncate` asserts that the length has room for the
dots). `CompiledTemplate` raises template errors in their place."""


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Sandboxed environment for templates from scenario files, to be rendered by `CompiledTemplate`.

    Beyond jinja2's sandbox, it bounds the source (`MAX_SOURCE`, `MAX_DEPTH`), integers (`MAX_BITS`) and the work of a
    rendering (`BUDGET`), and offers only filters and methods whose result cannot be far larger than their input.
    """

    intercepted_binops = frozenset({"+", "*", "**", "%"})
    code_generator_class = MarkedTextCodeGenerator
    # jinja2 joins the outputs of templates, blocks, macros and `set` blocks by the function `concat`.
    concat = staticmethod(join_texts_with_origins)

    def __init__(
        self,
        filters: Mapping[str, Callable[[str], str]] | None = None,
        marked: Collection[str] | None = None,
        **options: Any,
    ) -> None:
        """Create an environment.

        Args:
            filters: name -> additional filter, which takes one text and returns one.
            marked: names of the facts that may have marks of origin (default: all).
            options: options of jinja2's environment.
        """
        super().__init__(undefined=StrictUndefined, finalize=template_filters.mark_output_text_with_origins, **options)
        self.marked, self.begin = marked, TemplateBranchBegin()
        self.filters = {name: template_filters.metered_filter(FILTERS[name]) for name in _FILTERS}
        self.filters |= {name: template_filters.metered_filter_of_text(FILTERS[name]) for name in _TEXT_FILTERS}
        self.filters |= {
            name: template_filters.metered_text_filter(function) for name, function in (filters or {}).items()
        }
        self.filters |= _OWN_FILTERS
        for name, test in self.tests.items():
            if name not in _NAME_TESTS:
                self.tests[name] = template_filters.origin_recording_test(test)
        self.globals = {"range": range, "dict": dict}

    def parse_expression(self, source: str) -> nodes.Expr:
        """Return the syntax tree of an expression.

        Raises:
            TemplateSyntaxError: if `source` is no expression, too long or nested too deeply.
        """
        check_source_length(source)
        try:
            parser = Parser(self, source, state="variable")
            tree = parser.parse_expression()
        except RecursionError as error:
            raise TemplateSyntaxError(TOO_DEEP, 1) from error
        if not parser.stream.eos:
            raise TemplateSyntaxError(f"unexpected {parser.stream.current.value!r}", parser.stream.current.lineno)
        check_tree_limits(tree)
        tree.set_environment(self)
        return tree

    def compile_value_expression(self, source: str) -> CompiledTemplate:
        """Return an expression as a template for `CompiledTemplate.evaluate`. Raises as `parse_expression`."""
        return CompiledTemplate(self.from_string(expression_template(self.parse_expression(source))))

    # --- methods that jinja2 calls: limits on a template's source ----------------------------------------------------

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        check_source_length(source)
        try:
            tree = super()._parse(source, name, filename)
        except RecursionError as error:
            raise TemplateSyntaxError(TOO_DEEP, 1, name, filename) from error
        check_tree_limits(tree)
        return tree

    def _generate(self, source: nodes.Template, *args: Any, **options: Any) -> str:
        BudgetTransformer(ITEM_COST, source, self.marked).visit(source)
        source.set_environment(self)
        # Recording is paused, because a template may be compiled while another one that includes it is rendered.
        recorded = swap_recorded_origins(None)
        try:
            return super()._generate(source, *args, **options)
        finally:
            swap_recorded_origins(recorded)

    def _compile(self, source: str, filename: str) -> CodeType:
        try:
            return super()._compile(source, filename)
        except (SyntaxError, RecursionError, MemoryError) as error:
            # Python's compiler has limits of its own, such as 20 nested loops.
            raise TemplateSyntaxError(TOO_DEEP, 1) from error

    def getattr(self, obj: Any, attribute: str) -> Any:
        # Facts are looked up first: most attributes are facts, and jinja2 would try Python's attributes first.
        if isinstance(obj, dict) and attribute not in FACT_ATTRIBUTES and dict.__contains__(obj, attribute):
            return obj[attribute]
        # Methods of texts are the most common attributes that are no facts; jinja2's checks would let them pass, too.
        if isinstance(obj, str) and attribute in _TEXT_METHODS:
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)

    # --- methods that jinja2's sandbox calls: limits on values of a template -----------------------------------------

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        match operator, left, right:
            case "**", int(), int() if right * left.bit_length() > MAX_BITS:
                raise TemplateLimitError(f"a whole number of more than {MAX_BITS} bits")
            case "*", int(), int() if left.bit_length() + right.bit_length() > MAX_BITS:
                raise TemplateLimitError(f"a whole number of more than {MAX_BITS} bits")
            case "*", int(), str() | list() | tuple():
                charge_characters_to_rendering_budget(nested_size_in_characters(right) * max(left, 0))
            case "*" | "+", str() | list() | tuple(), _:
                charge_characters_to_rendering_budget(
                    nested_size_in_characters(left) * (max(right, 0) if isinstance(right, int) else 1)
                    + nested_size_in_characters(right)
                )
            case "%", str(), _:
                raise SecurityError("text % values is not available; join texts by ~")
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 (as jinja2)
        charge_characters_to_rendering_budget(ITEM_COST + size_of_arguments(args, kwargs))
        # The arguments' origins are kept for the call's result; a macro's first output must not get them.
        origins = take_recorded_origins()
        if isinstance(__obj, BuiltinMethodType):
            # A method of a plain text reads marked arguments without their methods: `question.count(turn.text)`.
            origins |= origins_of((args, kwargs))
        if isinstance(__obj, _BOUND_METHODS) and isinstance(__obj.__self__, str):
            # jinja2 looks for attributes that mark functions made for templates; methods of texts have none.
            kwargs.pop("_loop_vars", None)
            kwargs.pop("_block_vars", None)
            result = __obj(*args, **kwargs)
        else:
            result = super().call(__context, __obj, *args, **kwargs)
        return add_origins(charge_size_to_rendering_budget(result), origins)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if not super().is_safe_attribute(obj, attr, value):
            return False
        return not isinstance(value, _BOUND_METHODS) or attr in _method_names_allowed_in_templates(obj)

    def wrap_str_format(self, value: Any) -> None:
        """Return None, so that `str.format`, whose result has no bounded size, is never called."""

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        methods = ", ".join(_method_names_allowed_in_templates(obj)) or "none"
        message = f"{attribute!r} of {type(obj).__name__!r} is not available; methods: {methods}; filters: |join, ..."
        return self.undefined(message, name=attribute, obj=obj, exc=SecurityError)


def _method_names_allowed_in_templates(instance: Any) -> tuple[str, ...]:
    """Return the names of the methods of `instance` that templates may call."""
    for kind, methods in _METHODS.items():
        if isinstance(instance, kind):
            return methods
    return ()


class CompiledTemplate:
    """Template that renders faster than by `Template.render`.

    `Template.render` copies the environment's globals in every call, which takes longer than most of our templates.
    This class copies them once.
    """

    def __init__(self, template: Template) -> None:
        self._template, self._globals = template, dict(template.globals)

    def render(self, facts: Mapping[str, Any]) -> str:
        """Return the rendered text, a `TextWithOrigins` if it was made from marked values.

        Raises:
            jinja2.TemplateError: for an undefined or forbidden name, for an operation that fails (the cause is Python's
                error), and at a limit (`TemplateLimitError`).
        """
        text, origins = self._render_with_origins(facts)
        return add_origins(text, origins)

    def evaluate(self, facts: Mapping[str, Any]) -> tuple[Any, Origins]:
        """Return the value of an expression (`compile_value_expression`), and the origins of the value. Raises as
        `render`."""
        _, origins = self._render_with_origins(facts)
        value, rendering.result = rendering.result, None
        return value, origins | origins_of(value)

    def _render_with_origins(self, facts: Mapping[str, Any]) -> tuple[str, Origins]:
        """Return the rendered text, and the origins that apply to the whole text."""
        template, environment = self._template, self._template.environment
        context = environment.context_class(environment, {**self._globals, **facts}, template.name, template.blocks)
        state, recorded = rendering, swap_recorded_origins(NO_ORIGINS)
        state.used_characters, state.branches, state.assigned = 0, [NO_ORIGINS], NO_ORIGINS
        try:
            text = join_texts_with_origins(template.root_render_func(context))
            return text, take_recorded_origins().union(state.assigned, *state.branches)
        except TemplateError:
            raise
        except _FAILURES as error:
            raise TemplateRuntimeError(f"{type(error).__name__}: {error}") from error
        finally:
            swap_recorded_origins(recorded)
