"""Templates of scenario files: what they may do, and that nothing in them takes long or takes much memory."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import TemplateError

from marl.text.origins import (
    OriginRecordingList,
    TextOrigin,
    TextWithOrigins,
    add_origins,
    origin_spans_of_text,
    origins_of,
)
from marl.text.templates import BoundedEnvironment, CompiledTemplate, TemplateLimitError

ENVIRONMENT = BoundedEnvironment({"shout": lambda text: text.upper()}, trim_blocks=True)
FACTS = {"big": "b" * 100_000, "items": list(range(1000)), "x": {"y": 1}}


def render(source: str, **facts: Any) -> str:
    return CompiledTemplate(ENVIRONMENT.from_string(source)).render(FACTS | facts)


def evaluate(source: str, **facts: Any) -> Any:
    return ENVIRONMENT.compile_value_expression(source).evaluate(FACTS | facts)[0]


def refusal(compile_source: Callable[[str], object], source: str) -> str:
    """The message with which a source is refused; "" if it is compiled."""
    try:
        compile_source(source)
    except TemplateError as error:
        return str(error)
    return ""


@contextmanager
def within(seconds: float, megabytes: float) -> Iterator[None]:
    """Bounds on processor time, and on how far the greatest memory of the process may rise."""
    begun, peak = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert time.process_time() - begun < seconds
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < megabytes * 1000


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ 2 ** 10 }} {{ 'ab' * 3 }} {{ [1, 2] + [3] }}", "1024 ababab [1, 2, 3]"),
        ("{% for i in range(3) %}{{ loop.index }}/{{ loop.length }} {% endfor %}", "1/3 2/3 3/3 "),
        ("{% for k, v in x.items() %}{{ k ~ '=' ~ v }}{% endfor %}", "y=1"),
        ("{% macro twice(a) %}{{ a }}{{ a }}{% endmacro %}{{ twice('ho') }}", "hoho"),
        ("{% set a %}{{ 1 + 1 }}{% endset %}{{ a }}", "2"),
        ("{{ ['b', 'a'] | sort | join('-') }} {{ 'aXa' | replace('X', '--') }} {{ 2.345 | round(1) }}", "a-b a--a 2.3"),
        ("{{ {'a': [1, 'ß']} | tojson }} {{ [1, 2.5] | sum }} {{ 'loud' | shout }}", '{"a": [1, "ß"]} 3.5 LOUD'),
        ("{{ 'a,b'.split(',')[1] }} {{ ' c '.strip() }} {{ 'd' in 'bd' }}", "b c True"),
        ("{{ items | map('string') | select('eq', '7') | list }}", "['7']"),
    ],
)
def test_ordinary_templates_are_filled_in_as_jinja2_does(source: str, text: str) -> None:
    assert render(source) == text


@pytest.mark.parametrize(
    "source",
    [
        *("10 ** (10 ** 10)", "(10 ** 300) ** 10 ** 9", "(10 ** 1000) * (10 ** 1000)", "2.0 ** (10 ** 6)", "0 ** -1"),
        *("'a' * 10 ** 10", "10 ** 10 * 'a'", "[1] * 10 ** 10", "(1,) * 10 ** 10", "[[1] * 1000] * 1000 * 1000"),
        *("range(10 ** 9)", "range(10 ** 9) | sum", "range(10 ** 30)", "(range(90000) | list) * 100", "10 ** 9 in 5"),
        *("'%1000000000d' % 1", "'{:1000000000}'.format(1)", "'{0:1000000000}'.format_map({'a': 1})"),
        *("'a'.center(10 ** 9)", "'a'.ljust(10 ** 9)", "'a'.zfill(10 ** 9)", "'\t'.expandtabs(10 ** 9)"),
        *("(1).to_bytes(10 ** 10, 'big')", "big.replace('b', big)", "big.join(big)", "'a'.encode()", "x.clear()"),
        *("big | replace('b', big)", "big | list | join(big)", "2.5 | round(10 ** 9, 'ceil')"),
        "big | truncate(2)",
        *("big | map('list') | sum(start=[])", "big | map('list') | list | sum"),
        *("x.y.z.w", "x.__class__.__mro__", "1 / 0", "{}['a'] + 1", "'a' + 1", "x | items | first | int * 'a'.b"),
    ],
)
def test_no_expression_takes_long_or_takes_much_memory_and_every_error_is_one_of_templates(source: str) -> None:
    with within(seconds=2, megabytes=200), pytest.raises(TemplateError):
        evaluate(source) + 0  # an undefined value is one when it is used


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
        "{% for i in items %}{% for j in items %}{% for k in items if false %}{% endfor %}{% endfor %}{% endfor %}",
        "{% for i in range(90000) %}" + "t" * 1000 + "{% endfor %}",
        "{% set a %}{% for i in range(50000) %}{{ big }}{% endfor %}{% endset %}",
        "{% filter upper %}{% for i in range(50000) %}" + "t" * 9000 + "{% endfor %}{% endfilter %}",
        "{% macro f(n) %}{{ f(n + 1) }}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
        "{% macro f(n) %}{% if n < 40 %}{{ f(n + 1) }}{{ f(n + 1) }}{% endif %}{% endmacro %}{{ f(0) }}",
        "{% set a = [1, 1, 1, 1] %}" + "{% set a = [a, a, a, a] %}" * 20 + "{{ a }}",
        "{% set a = {'b': 1} %}" + "{% set a = {'b': a, 'c': a} %}" * 40 + "{{ a }}",
        "{% set a = 'aaaa' %}" + "{% set a = a ~ a ~ a ~ a %}" * 20,
        "{% set a = 'aaaa' %}" + "{% set a = a + a %}" * 40,
        "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
        "{% for i in range(99000) %}{{ big | shout }}{% endfor %}",
    ],
)
def test_no_template_takes_long_or_takes_much_memory(source: str) -> None:
    with within(seconds=4, megabytes=200), pytest.raises(TemplateError):
        render(source)


def test_a_limit_is_named_with_its_size() -> None:
    with pytest.raises(TemplateLimitError, match=r"more than 10,000,000 characters \(an item, a call or a round"):
        render("{{ 'a' * 10 ** 10 }}")
    with pytest.raises(TemplateLimitError, match="a whole number of more than 4096 bits"):
        render("{{ 10 ** (10 ** 4) }}")


@pytest.mark.parametrize("many", [99, 150, 1000, 30_000])
@pytest.mark.parametrize(
    ("before", "middle", "after"),
    [
        *(("(", "1", ")"), ("[", "1", "]"), ("{1: ", "1", "}"), ("mean(", "1", ")"), ("not ", "1", ""), ("-", "1", "")),
        *(("", "1", "+1"), ("", "1", " and 1"), ("", "1", "|abs"), ("", "x", ".y"), ("1 if 1 else ", "1", "")),
        *(("1 ~ ", "1", ""), ("x[", "1", "]"), ("1 < ", "1", "")),
    ],
)
def test_deep_and_long_sources_are_compiled_or_refused_by_name(before: str, middle: str, after: str, many: int) -> None:
    source = before * many + middle + after * many
    for compile_source in (
        ENVIRONMENT.compile_value_expression,
        lambda text: ENVIRONMENT.from_string("{{ " + text + " }}"),
    ):
        assert "the limit is 100" in (refusal(compile_source, source) or "the limit is 100")


@pytest.mark.parametrize("many", [5, 15, 21, 60, 200, 3000])
@pytest.mark.parametrize("block", ["for a in items", "if x", "with a = 1", "block b{}", "set a", "filter upper"])
def test_deep_blocks_are_compiled_or_refused_by_name(block: str, many: int) -> None:
    end = block.split()[0]
    opened = "".join("{% " + block.format(i) + " %}" for i in range(many))
    source = opened + "a" + f"{{% end{end} %}}" * many
    assert "the limit is 100" in (refusal(ENVIRONMENT.from_string, source) or "the limit is 100")


@pytest.mark.parametrize(
    "source", ["1 }}{{ 2", "1) %}{% set b = (2", "1, 2 %}", "", "1 +", "a b", "{% if x %}", "1e999 * 0", "x and -1e400"]
)
def test_an_expression_is_one_expression(source: str) -> None:
    with pytest.raises(TemplateError):
        evaluate(source)


MARKED = TextWithOrigins("5", ((0, 1, TextOrigin(("e", 0), "heard")),))
"""What an earlier turn said."""


@pytest.mark.parametrize(
    "source",
    [
        *("question.count(said)", "question.startswith(said)", "question.endswith(said)", "question.find(said)"),
        *("question.rfind(said)", "question.strip(said)", "question.partition(said)", "question.removeprefix(said)"),
        *(
            "'1,2'.split(said[0])",
            "'1,2'.split(said)[0]",
            "[said] | string",
            "{'a': [said]} | string",
            "said in question",
        ),
        *(
            "said in question",
            "question | replace(said, '')",
            "'yes' if question.startswith(said) else 'no'",
            "[[said]] | first | string",
        ),
    ],
)
def test_a_plain_text_that_is_asked_about_a_turn_keeps_the_edge_to_this_turn(source: str) -> None:
    text = render("{{ " + source + " }}", question="2 + 5 is", said=MARKED)
    assert [(origin.source, origin.kind) for origin in origins_of(text)] == [(("e", 0), "heard")]
    plain = render("{{ " + source + " }}", question="2 + 5 is", said="5")
    assert plain == text
    assert not origins_of(plain)


@pytest.mark.parametrize("source", ["x.keys", "x.keys | string", "x.keys ~ ''", "[x.keys]", "[x.keys] | join"])
def test_a_function_is_not_printed(source: str) -> None:
    with pytest.raises(TemplateError, match="it prints a function, not a text; call the function"):
        render("{{ " + source + " }}")


@pytest.mark.parametrize("source", ["items | map('abs')", "items | select | title", "[items | map('abs')]"])
def test_an_iterator_is_not_printed_since_its_text_is_a_memory_address(source: str) -> None:
    with pytest.raises(TemplateError, match="it prints an iterator, such as the result of map or select, not its"):
        render("{{ " + source + " }}")
    assert render("{{ items | map('abs') | first }}{{ items | map('abs') | join | length }}") == "02890"


EMPTY = TextWithOrigins("", ((0, 0, TextOrigin(("e", 0), "heard")),))
NOTHING_READ = OriginRecordingList([], [], frozenset([TextOrigin(("e", 0), "heard")]))


@pytest.mark.parametrize(
    "source", ["said[1:] | join", "said[0] | default('none')", "'yes' if said[-1] is defined else 'no'", "[said[0]]"]
)
@pytest.mark.parametrize("said", [EMPTY, NOTHING_READ], ids=["text", "list"])
def test_an_index_that_a_turn_does_not_have_keeps_the_edge_to_this_turn(source: str, said: Any) -> None:
    text = render("{{ " + source + " }}", said=said)
    assert {origin.source for origin in origins_of(text)} == {("e", 0)}


def test_origins_over_a_full_text_are_added_once() -> None:
    told = TextOrigin(("e", 1), "told")
    both = add_origins(MARKED, frozenset([*origins_of(MARKED), told]))
    assert sorted(origin_spans_of_text(both)) == [*origin_spans_of_text(MARKED), (0, 1, told)]
    assert add_origins(both, origins_of(both)) is both


@pytest.mark.parametrize("name", ["lipsum", "cycler", "joiner", "namespace", "self.x", "[] | random"])
def test_there_is_no_chance_and_nothing_that_keeps_state(name: str) -> None:
    with pytest.raises(TemplateError):
        render("{{ " + name + " + '' }}")


def test_one_rendering_does_not_pay_for_the_last_one() -> None:
    source = "{% for i in range(40000) %}{% endfor %}done"
    assert [render(source) for _ in range(3)] == ["done"] * 3


_PIECES = st.sampled_from(
    [
        *("{{", "}}", "{%", "%}", "(", ")", "[", "]", "for i in range(9)", "endfor", "if", "endif", "set a =", "x"),
        *("big", "items", "*", "**", "~", "+", "|", "join", "replace", "list", ",", "'a'", "9", "99999", ".y", "not"),
    ]
)


@settings(max_examples=300, deadline=5000)
@given(st.lists(_PIECES, max_size=30).map(" ".join))
def test_any_source_is_filled_in_or_refused_with_an_error_of_templates(source: str) -> None:
    for attempt in (render, evaluate):
        try:
            attempt(source, a="a" * 1000)
        except TemplateError:
            continue
