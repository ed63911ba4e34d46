"""Code task: small functions to be written in Python, with unit tests.

Each family computes its expected results without the source of its solution, so that results and solution check each
other.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import lcm
from string import ascii_lowercase
from typing import Any, Literal

from pydantic import Field

from marl.core.config import DistinctValues
from marl.core.seeds import hash_to_seed
from marl.core.types import Problem
from marl.games.tasks.base import GeneratedTask, LazyProblem, json_hash

FamilyName = Literal[
    "between", "letters", "multiples", "every", "select", "mask", "digits", "shift", "steps", "window", "recurrence"
]
Parameters = Mapping[str, Any]
_SHOWN_TEST_COUNT = 2
"""Number of tests that the question shows; code that only passes these fails the other tests."""
_TEXTS = (
    "",
    "Banana",
    "zebra crossing",
    "Hello, World!",
    "queue",
    "xyz",
    "Mississippi",
    "A rather long text, isn't it?",
)


@dataclass(frozen=True, slots=True)
class ParametrizedFunction:
    """Python functions that differ in their parameters, such as the two numbers whose multiples are added up.

    `{name}` in the texts is replaced by a parameter.
    """

    description: str
    """End of the sentence "Write a Python function f that ..."."""
    source: str
    """Python source of the right solution."""
    mistakes: tuple[tuple[str, str], ...]
    """(piece of the source, replacement) of each plausible wrong solution."""
    draw: Callable[[random.Random], dict[str, Any]]
    """Function that draws the parameters."""
    edge_cases: Callable[[Parameters], list[Any]]
    """Function that returns arguments with different results for the mistakes and the solution."""
    inputs: Callable[[random.Random], list[Any]]
    """Function that draws arguments of the tests other than edge cases."""
    expected: Callable[[Any, Parameters], Any]
    """Function of an argument and the parameters that returns the right result."""
    difficulty: float
    """Number by which problems are sorted, easiest first."""


def _fill_template(template: str, parameters: Parameters) -> str:
    """Return `template` with each `{name}` replaced by its parameter."""
    # `str.format` is not used, because it would read the braces of the Python source as fields.
    for name, value in parameters.items():
        template = template.replace("{" + name + "}", str(value))
    return template


def _random_numbers(rng: random.Random, count: int, low: int = -20, high: int = 60) -> list[int]:
    return [rng.randint(low, high) for _ in range(count)]


def _random_list_arguments(rng: random.Random) -> list[Any]:
    lists = [_random_numbers(rng, 20), [], _random_numbers(rng, 12), [7]]
    for _ in range(12):
        lists.append(_random_numbers(rng, rng.randint(2, 9)))
    return lists


def _random_text_arguments(rng: random.Random) -> list[Any]:
    texts = list[Any](_TEXTS)
    for _ in range(8):
        # Letters are drawn one by one, because rng.choices would change every problem of earlier seeds.
        texts.append("".join([rng.choice(ascii_lowercase) for _ in range(rng.randint(4, 12))]))
    return texts


def _text_arguments_covering_alphabet(_parameters: Parameters) -> list[Any]:
    return ["The quick brown fox jumps over the lazy DOG", ascii_lowercase]


def _sum_of_multiples(limit: int, parameters: Parameters) -> int:
    """Return the sum of the multiples of a or b below `limit`, by inclusion and exclusion."""
    a, b = parameters["a"], parameters["b"]
    total = 0
    for sign, step in ((1, a), (1, b), (-1, lcm(a, b))):
        count = max(0, limit - 1) // step
        total += sign * step * count * (count + 1) // 2
    return total


def _term_of_recurrence(index: int, parameters: Parameters) -> int:
    terms = [parameters["p"], parameters["q"]]
    while len(terms) <= index:
        terms.append(parameters["a"] * terms[-1] + parameters["b"] * terms[-2])
    return terms[index]


def _sum_of_digit_powers(number: int, parameters: Parameters) -> int:
    base = parameters["base"]
    return 0 if number == 0 else (number % base) ** parameters["k"] + _sum_of_digit_powers(number // base, parameters)


def _count_collatz_steps(number: int, parameters: Parameters) -> int:
    divisor = parameters["k"]
    if number == 1:
        return 0
    return 1 + _count_collatz_steps(number // divisor if number % divisor == 0 else number - 1, parameters)


def _random_ascending_pair(rng: random.Random, low: int, high: int) -> list[int]:
    return sorted(rng.sample(range(low, high + 1), 2))


FUNCTION_FAMILIES: Mapping[str, ParametrizedFunction] = {
    "between": ParametrizedFunction(
        "takes a list of whole numbers and returns how many of them are greater than {a} and less than {b}.",
        "def f(items):\n    return sum({a} < item < {b} for item in items)\n",
        (("{a} < item < {b}", "{a} <= item <= {b}"), ("{a} < item < {b}", "item < {b}")),
        lambda rng: {"a": (a := rng.randint(-15, 35)), "b": a + rng.randint(3, 25)},
        lambda p: [[p["a"], p["b"], p["a"] - 1, p["a"] + 1]],
        _random_list_arguments,
        lambda items, p: len([item for item in items if item in range(p["a"] + 1, p["b"])]),
        1,
    ),
    "letters": ParametrizedFunction(
        "takes a text and returns how many of its characters are among '{letters}', capital letters included.",
        "def f(text):\n    return sum(c in '{letters}' for c in text.lower())\n",
        ((".lower()", ""), ("c in '{letters}'", "c not in '{letters}'")),
        lambda rng: {"letters": "".join(sorted(rng.sample(ascii_lowercase, rng.randint(2, 5))))},
        lambda p: [p["letters"].upper() + "!", *_text_arguments_covering_alphabet(p)],
        _random_text_arguments,
        lambda text, p: sum([text.count(c) + text.count(c.upper()) for c in p["letters"]]),
        1,
    ),
    "multiples": ParametrizedFunction(
        "takes a whole number n and returns the sum of all positive whole numbers below n that are multiples of {a} or "
        "of {b}.",
        "def f(n):\n    return sum(i for i in range(1, n) if i % {a} == 0 or i % {b} == 0)\n",
        (("range(1, n)", "range(1, n + 1)"), (" or ", " and ")),
        lambda rng: dict(zip("ab", _random_ascending_pair(rng, 2, 12), strict=True)),
        lambda p: [p["b"], p["a"] * p["b"], 1, p["b"] + 1],
        lambda rng: _random_numbers(rng, 12, 20, 120),
        _sum_of_multiples,
        2,
    ),
    "every": ParametrizedFunction(
        "takes a list and returns a list of its items at the positions {s}, {s} + {k}, {s} + 2 * {k} and so on "
        "(the first position is 0), the last of them first.",
        "def f(items):\n    return items[{s}::{k}][::-1]\n",
        (("[::-1]", ""), ("{s}::", "{s} + 1::")),
        lambda rng: {"s": rng.randint(0, 6), "k": rng.randint(2, 7)},
        lambda _p: [[*range(30)], []],
        _random_list_arguments,
        lambda items, p: [items[i] for i in reversed(range(p["s"], len(items), p["k"]))],
        2,
    ),
    "select": ParametrizedFunction(
        "takes a list of whole numbers that are not negative and returns a list of those that leave the remainder {r} "
        "when divided by {m}, each multiplied by {a}, in the same order.",
        "def f(items):\n    return [{a} * item for item in items if item % {m} == {r}]\n",
        (("{a} * item for", "{a} + item for"), ("== {r}", "!= {r}")),
        lambda rng: {"m": (m := rng.randint(2, 7)), "r": rng.randrange(m), "a": rng.randint(3, 9)},
        lambda p: [[*range(p["m"] * 2 + 1)], []],
        lambda rng: [_random_numbers(rng, 8, 0, 99) for _ in range(16)],
        lambda items, p: list(map(p["a"].__mul__, filter(lambda item: (item - p["r"]) % p["m"] == 0, items))),
        2,
    ),
    "mask": ParametrizedFunction(
        "takes a text and returns it with every character at a position that is a multiple of {n} (the first position "
        "is 1) replaced by '{c}'.",
        "def f(text):\n    return ''.join('{c}' if i % {n} == 0 else c for i, c in enumerate(text, 1))\n",
        (("enumerate(text, 1)", "enumerate(text)"), ("'{c}' if", "'' if")),
        lambda rng: {"n": rng.randint(2, 7), "c": rng.choice("*#_?" + ascii_lowercase)},
        _text_arguments_covering_alphabet,
        _random_text_arguments,
        lambda text, p: "".join([p["c"] if i % p["n"] == p["n"] - 1 else text[i] for i in range(len(text))]),
        2,
    ),
    "digits": ParametrizedFunction(
        "takes a whole number that is not negative, writes it in base {base}, raises each digit to the power {k} and "
        "returns the sum.",
        "def f(n):\n    total = 0\n    while n:\n        n, digit = divmod(n, {base})\n        total += digit ** {k}\n"
        "    return total\n",
        (("divmod(n, {base})", "divmod(n, {base} + 1)"), ("total += digit", "total = digit")),
        lambda rng: {"base": rng.randint(2, 16), "k": rng.randint(1, 4)},
        lambda _p: [10**6 - 1, 0, 1],
        lambda rng: _random_numbers(rng, 13, 20, 5000),
        _sum_of_digit_powers,
        3,
    ),
    "shift": ParametrizedFunction(
        "takes a text and returns it with every letter from a to z moved {k} places on in the alphabet, where a comes "
        "after z. Everything else, capital letters included, stays as it is.",
        "def f(text):\n"
        "    return ''.join(chr((ord(c) - 97 + {k}) % 26 + 97) if 'a' <= c <= 'z' else c for c in text)\n",
        ((" % 26", ""), (" if 'a' <= c <= 'z' else c", "")),
        lambda rng: {"k": rng.randint(1, 25)},
        _text_arguments_covering_alphabet,
        _random_text_arguments,
        lambda text, p: text.translate(
            str.maketrans(ascii_lowercase, ascii_lowercase[p["k"] :] + ascii_lowercase[: p["k"]])
        ),
        3,
    ),
    "steps": ParametrizedFunction(
        "takes a positive whole number and returns how many steps it takes to come down to 1, where a step divides "
        "the number by {k} if that leaves no remainder, and otherwise takes 1 away.",
        "def f(n):\n    count = 0\n    while n > 1:\n"
        "        n = n // {k} if n % {k} == 0 else n - 1\n        count += 1\n    return count\n",
        (("count = 0", "count = 1"), (" if n % {k} == 0 else n - 1", "")),
        lambda rng: {"k": rng.randint(2, 12)},
        lambda p: [p["k"] * 3 + 2, 1, 2],
        lambda rng: _random_numbers(rng, 13, 20, 900),
        _count_collatz_steps,
        3,
    ),
    "window": ParametrizedFunction(
        "takes a list of whole numbers and returns the largest sum of {k} neighbouring items, or {d} if there are "
        "fewer than {k} items.",
        "def f(items):\n    sums = [sum(items[i:i + {k}]) for i in range(len(items) - {k} + 1)]\n"
        "    return max(sums) if sums else {d}\n",
        (("max(sums) if", "min(sums) if"), ("- {k} + 1)", "- {k})")),
        lambda rng: {"k": rng.randint(2, 7), "d": rng.randint(-3, 3)},
        lambda p: [[*range(10)], [3] * p["k"]],
        _random_list_arguments,
        lambda items, p: max((sum(items[i : i + p["k"]]) for i in range(len(items) - p["k"] + 1)), default=p["d"]),
        4,
    ),
    "recurrence": ParametrizedFunction(
        "takes a whole number n that is not negative and returns the term number n of the sequence in which term 0 is "
        "{p}, term 1 is {q}, and every later term is {a} times the term before it plus {b} times the one before that.",
        "def f(n):\n    x, y = {p}, {q}\n    for _ in range(n):\n        x, y = y, {a} * y + {b} * x\n    return x\n",
        (("range(n)", "range(n + 1)"), ("{a} * y + {b} * x", "{b} * y + {a} * x")),
        lambda rng: {
            "p": rng.randint(0, 5),
            "q": rng.randint(6, 9),
            **dict(zip("ab", _random_ascending_pair(rng, 1, 5), strict=True)),
        },
        lambda _p: [5, 2, 0, 1],
        lambda _rng: [*range(3, 14)],
        _term_of_recurrence,
        4,
    ),
}


class CodeTask(GeneratedTask):
    """Functions of one argument to be written in Python; the answer is source code.

    `facts`: `entry`, the function's name; `tests`, each a `call` and the `repr` of its result (`expect`); `shown`, the
    number of tests in the question.
    """

    kind: str = "code"
    families: DistinctValues[FamilyName] = Field(default=tuple(FUNCTION_FAMILIES), min_length=1)  # type: ignore[assignment]
    """Families of functions from which problems are drawn."""
    tests: int = Field(default=8, ge=4, le=12)
    """Number of tests per problem."""

    @property
    def secret_fact_names(self) -> frozenset[str]:
        return frozenset({"tests"})

    def draw_problem(self, rng: random.Random) -> LazyProblem | None:
        name = rng.choice(self.families)
        parameters = FUNCTION_FAMILIES[name].draw(rng)
        key = f"{name} {json_hash(parameters)}"
        return LazyProblem(
            key,
            FUNCTION_FAMILIES[name].difficulty,
            partial(self._build_problem, key, FUNCTION_FAMILIES[name], parameters),
        )

    def _build_problem(self, key: str, family: ParametrizedFunction, parameters: Parameters) -> Problem:
        inputs = [*family.edge_cases(parameters), *family.inputs(random.Random(hash_to_seed("tests", key)))]
        # The dict drops repeated arguments, and the edge cases where mistakes are common come first.
        results = {repr(argument): family.expected(argument, parameters) for argument in inputs}
        tests = list[Mapping[str, Any]]()
        for argument, result in list(results.items())[: self.tests]:
            tests.append({"call": f"f({argument})", "expect": repr(result)})
        question = f"Write a Python function f that {_fill_template(family.description, parameters)}\nExamples:"
        for test in tests[:_SHOWN_TEST_COUNT]:
            question += f"\n{test['call']} == {test['expect']}"
        wrong = list[str]()
        for piece, mistake in family.mistakes:
            wrong.append(_fill_template(family.source.replace(piece, mistake), parameters))
        facts = {"entry": "f", "tests": tests, "shown": _SHOWN_TEST_COUNT}
        solution = _fill_template(family.source, parameters)
        return Problem(key, question, solution, (*wrong, "def f(x):\n    return None\n"), facts)
