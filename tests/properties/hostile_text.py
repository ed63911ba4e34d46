"""Strategies for hostile text, and bounds on time."""
# ruff: noqa: RUF001 (signs that look like others are what is tried)

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

_MARKS = (
    *("<think>", "</think>", "<answer>", "</answer>", "<tool_call>", "</tool_call>", "<score>", "</score>"),
    *("<verdict>", "</verdict>", r"\boxed{", r"\fbox{", "}", "{", "[", "]", "(", ")", "```", "```python\n", "~~~"),
    *("**", "$", "$$", "#### ", "\n", "\r\n", " ", "\t", ".", ",", ":", ";", "!", "?", '"', "'", "\\", "/", "|", "<"),
    *(">", "=", "+", "-", "*", "^", "_", "%"),
)
_WORDS = (
    *("The answer is ", "Answer: ", "Final answer: ", "Score: ", "rating 7/10", "yes", "no", "tie", "wait, ", "no, "),
    *(
        "actually ",
        "scratch that. ",
        "not ",
        "maybe ",
        "about ",
        " or ",
        " and ",
        "between ",
        "答案是",
        "因此答案为",
        "选",
    ),
    *("第", "一", "百分之", "option ", "(A)", "B.", "C", "x", "x = ", "km", "kg", "m/s", "%", "ft", "°", "€", "half"),
    *("twenty-one", "million", "NaN", "null", "true"),
)
_NUMBERS = (
    *("0", "1", "5", "-7", "42", "3.14", "1e9", "1e999", "10^"),
    "9" * 30,
    *("1,000", "1/3", "٥", "４２", "½", "²", "0.(3)"),
)
_LATEX = (
    *(r"\frac{", r"\sqrt{", r"\binom{", r"\log_", r"\pi", r"\infty", r"\cup", r"\pm", r"\le", r"\ne", r"\text{"),
    *(r"\left(", r"\right)", r"\{", r"\}", r"\begin{pmatrix}", r"\end{pmatrix}", " & ", r"\\", r"\cdot", r"\times"),
    *("^{", "_{", "!", r"\sum_{i=1}^{", r"\int"),
)
_JSON = (
    *('{"a": 1}', '{"a": 1, "a": 2}', '{"scores": {', '"name": "f", "arguments": {', "[1, 2]", '"\\ud800"', '{"n": '),
    *("1e400", "[[[["),
)
_ODD = (
    *("\x00", "\x1b[2J", "\u202e", "\u200b", "\ufeff", "\ud800", "\udfff", "\u2028", "\u0301", "🙂", "ﬀ", "İ", "\x85"),
    *("{{ x }}", "{% raw %}"),
)
FRAGMENTS = st.sampled_from([*_MARKS, *_WORDS, *_NUMBERS, *_LATEX, *_JSON, *_ODD])
CHARACTERS = st.characters(exclude_categories=())
"""All characters, lone surrogates included."""


def texts(fragments: st.SearchStrategy[str] = FRAGMENTS, most: int = 30) -> st.SearchStrategy[str]:
    """Return texts of fragments that mean something to a reader, of any characters, and of long repetitions."""
    pieces = st.one_of(fragments, fragments, fragments, st.text(CHARACTERS, max_size=4))
    joined = st.lists(pieces, max_size=most).map("".join)
    repeated = st.tuples(fragments, fragments, st.integers(1, 400)).map(lambda parts: (parts[0] + parts[1]) * parts[2])
    return st.one_of(joined, joined, joined, repeated, st.tuples(joined, repeated).map("".join))


_WRAPS = (
    *("<answer>{}</answer>", "<verdict>{}</verdict>", "<score>{}</score>", r"\boxed{{{}}}", "[{}]", "```\n{}\n```"),
    *("```python\n{}\n```", "{}", "Score: {}", "**{}**", "The answer is {}.", "<tool_call>{}</tool_call>"),
    *("```json\n{}\n```", "#### {}"),
)
_SHORT = st.sampled_from(
    ["yes", "no", "1", "2", "tie", "7", "0.5", "7/10", "x", "42", " a b ", "a\nb", "None", "{}", "[]", "</think>"]
)
JSON_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(CHARACTERS, max_size=5), _SHORT),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["a", "verdict", "name", "arguments", "scores"]), inner),
    ),
    max_leaves=6,
)


_VERDICTS = st.sampled_from(['{"verdict": "yes"}', '{"verdict": 1}', '{"scores": {"a": 1}}', '{"a": [1, "2"]}'])


def answers(write: Callable[[str], str] = str, likely: Sequence[str] = ("42",)) -> st.SearchStrategy[str]:
    """Return texts that give an answer as `write` writes it, often a `likely` one, or in another form, or nearly so."""
    common = st.sampled_from(likely)
    inner = st.one_of(common, common, common, _SHORT, _VERDICTS, texts(most=3), JSON_VALUES.map(json.dumps))
    given_ = st.one_of(inner.map(write), inner.map(write), st.builds(str.format, st.sampled_from(_WRAPS), inner))
    around = st.one_of(st.just(""), st.just(""), texts(most=2))
    return st.one_of(st.tuples(around, given_, around).map("".join), st.tuples(given_, around, given_).map("".join))


_ALL_CHECKS: Any = list(HealthCheck)


def tried(examples: int, *strategies: st.SearchStrategy) -> Callable[[Callable[..., None]], None]:
    """Return a decorator that tries a property on examples at once, always on the same ones."""
    rules = settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=_ALL_CHECKS,
        phases=(Phase.generate, Phase.shrink),
    )

    def attempt(check: Callable[..., None]) -> None:
        rules(given(*strategies)(check))()

    return attempt


@contextmanager
def within(seconds: float, cpu_seconds: float | None = None) -> Iterator[None]:
    """Fail a block that does not end in `seconds` of wall time, or that took more than `cpu_seconds`."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"not done after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    started = time.process_time()
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    used = time.process_time() - started
    assert used <= (cpu_seconds or seconds), f"took {used:.2f} s of processor time"
