"""Expressions and templates of scenarios: whatever they are, a value or a ValueError, soon and without much memory."""

from __future__ import annotations

import tracemalloc
from contextlib import suppress
from typing import Any

import pytest
from hostile_text import CHARACTERS, tried, within
from hypothesis import strategies as st
from pydantic import ValidationError

from marl.core.types import Info, Observation
from marl.games.team import expressions
from marl.protocols import PromptContext
from marl.roles.answering import SolverRole

FACTS: dict[str, Any] = {
    "solver": {"move": "4", "score": 0.5, "readable": True, "text": "it is 4 " * 50},
    "moves": ["1", "2", "2", "", "x" * 200],
    "values": [0.0, 1.0, -0.5, 1e300, 0.25],
    "split": "train",
    "n": 7,
    "empty": [],
}
_NAMES = (
    *("solver", "solver.move", "solver.score", "solver.text", "moves", "values", "split", "n", "empty", "loop"),
    *("self", "nothing"),
)
_LITERALS = (
    *("0", "1", "-1", "3.5", "1e308", "10**9", "10**10", "'a'", "''", "[]", "()", "{}", "true", "none", "'%s'"),
    *("range(9)", "[1, 2]", "range(10**9)", "'\\ud800'", "{'a': 1}", "99999999999999999999", "0x10"),
    *("'{0.__class__}'", "1 if 0 else 2", "namespace()"),
)
_BINARY = (
    *("+", "-", "*", "/", "//", "%", "**", "~", "==", "<", " in ", " and ", " or ", " is ", "|", ",", ".", "["),
    " not in ",
)
_CALLS = (
    *("mean({})", "min({})", "max({})", "sum({})", "abs({})", "len({})", "majority({})", "agreement({})"),
    *("voted({}, values)", "best({})", "clip({}, 0, 1)", "({})", "[{}]", "not {}", "-{}", "{}[0]", "{}[-1]"),
    *("{}[{}:{}]", "{}.__class__", "{}.__class__.__mro__", "{}()", "{}|length", "{}|join", "{}|join({})", "{}|list"),
    *("{}|sum", "{}|replace('', {})", "{}|int", "{}|float", "{}|string", "{}|tojson", "{}|center(10**9)"),
    *("{}|indent(10**9)", "{}|format({})", "{}|attr('__class__')", "{}|map('upper')|list", "{}|batch(1)|list"),
    *("{}.format({})", "{}.upper()", "{}.split({})", "{}.zfill(10**9)", "{}.ljust(10**9)", "{} * 10**9", "{} * {}"),
    *("{} ** {}", "{} ~ {}", "{}|round({})", "{}|random", "{}|pprint", "{}|wordwrap(1)", "{}|truncate({})", "{}|sort"),
    *("{}|groupby({})", "{}|dictsort", "{} if {} else {}", "{}|default({})", "{}|select|list"),
    *("{}|selectattr({})|list", "range({})", "range({})|sum", "{}.encode()", "dict(a={})", "lipsum({})", "cycler({})"),
    *("joiner({})", "{}|xmlattr", "{}|urlize", "{}|filesizeformat", "{}.index({})"),
)
ATOMS = st.sampled_from([*_NAMES, *_NAMES, *_LITERALS])


def _extend(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    binary = st.tuples(inner, st.sampled_from(_BINARY), inner).map("".join)
    call = st.tuples(st.sampled_from(_CALLS), inner, inner, inner).map(lambda parts: parts[0].format(*parts[1:]))
    deep = st.tuples(st.sampled_from("([{-~"), st.integers(1, 3000), inner).map(
        lambda parts: parts[0] * parts[1] + parts[2]
    )
    return st.one_of(binary, call, call, call, deep)


EXPRESSIONS = st.one_of(st.recursive(ATOMS, _extend, max_leaves=8), st.text(CHARACTERS, max_size=20))
_STATEMENTS = (
    *("{{{{ {} }}}}", "{{% if {} %}}x{{% endif %}}", "{{% for i in {} %}}{{{{ i }}}}{{% endfor %}}"),
    "{{% set x = {} %}}{{{{ x * 9 }}}}",
    *("{{% for i in range(999) %}}{{% for j in range(999) %}}{} {{% endfor %}}{{% endfor %}}", "{{# {} #}}", "{}"),
    *("{{{{ {}", "{{% macro m() %}}{{{{ m() }}}}{} {{% endmacro %}}{{{{ m() }}}}", "{{% include {} %}}"),
    *("{{% extends {} %}}", "{{% import {} as y %}}", "{{% filter upper %}}{{{{ {} }}}}{{% endfilter %}}"),
    *("{{% raw %}}{}", "{{% block b %}}{{{{ self.b() }}}}{} {{% endblock %}}", "{{% call(x) {} %}}{{% endcall %}}"),
    *("{{% with a = {} %}}{{{{ a }}}}{{% endwith %}}", "{{% set x %}}{} {{% endset %}}{{{{ x * 9 }}}}"),
)
TEMPLATES = st.lists(
    st.tuples(st.sampled_from(_STATEMENTS), EXPRESSIONS).map(
        lambda parts: parts[0].replace("{}", parts[1], 1).replace("{{", "{").replace("}}", "}")
    ),
    min_size=1,
    max_size=3,
).map("\n".join)
SECONDS = 2.0


def test_every_expression_has_a_value_or_is_refused(factor: int) -> None:
    @tried(factor * 200, EXPRESSIONS)
    def _(source: str) -> None:
        message, value = "", 0.0
        with within(20.0, SECONDS):
            try:
                expressions.fact_names_in(source)
                value = expressions.evaluate_as_number(source, FACTS)
            except ValueError as error:
                message = str(error)
        assert len(message) < 5000
        assert -1e301 < value < 1e301


def test_every_template_gives_a_bounded_text_or_is_refused(factor: int) -> None:
    @tried(factor * 100, TEMPLATES)
    def _(source: str) -> None:
        with within(20.0, SECONDS):
            try:
                expressions.fact_names_in(source, is_template=True)
                text = expressions.render_template(source, FACTS)
            except ValueError:
                return
            assert len(text) <= 2 * 10**7


def test_every_template_of_a_role_gives_a_bounded_prompt_or_is_refused(factor: int) -> None:
    info: Info = {"legal": None, "hears": (), "together": (), "state": "", "attempt": 0}
    view = PromptContext("a", Observation(text="2 + 2 " * 20), info, (), (), ())

    @tried(factor * 60, TEMPLATES)
    def _(source: str) -> None:
        with within(20.0, SECONDS):
            try:
                role = SolverRole.model_validate({"kind": "solver", "policy": "p", "prompt": source})
                messages = role.messages(view)
            except (ValidationError, ValueError):
                return
            assert sum(len(message.content) for message in messages) <= 2 * 10**7


@pytest.mark.parametrize(
    "source",
    [
        *("'a' * 10**10", "[0] * 10**9", "range(10**9)|list", "range(10**12)|sum", "10**(10**10)", "9**9**9**9"),
        *("2**4096 * 2**4096", "'a'|center(10**9)", "'%1000000000d' % 7", "('x' * 10**6)|replace('x', 'x' * 10**6)"),
        "('ab' * 10**6).split('a')|join('y' * 999)",
        *(
            *("[[0] * 999] * 999", "{1: 'x' * 9999999}", "'x'.ljust(10**9)"),
            "(" * 5000,
            "-" * 50000 + "1",
            "~".join(["'" + "a" * 99 + "'"] * 900),
        ),
        *("moves|map('upper')|join('x' * 10**7)", "(moves * 10**5)|sum(start=[])", "('a,' * 10**6).split(',') * 50"),
        "'a'.zfill(10**9)",
    ],
    ids=lambda source: source[:40],
)
def test_a_hungry_expression_takes_little_memory(source: str) -> None:
    tracemalloc.start()
    try:
        with within(30.0), suppress(ValueError):
            expressions.evaluate_expression(source, FACTS)
        assert tracemalloc.get_traced_memory()[1] < 300 * 2**20
    finally:
        tracemalloc.stop()
