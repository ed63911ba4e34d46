"""Families of small functions to be written: the question, a solution, plausible mistakes, and what is right.

Each family works its results out apart from its solution's source, so that either can be checked by the other.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from string import ascii_lowercase
from typing import Any

Parameters = Mapping[str, Any]
_WORDS = (
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
class Family:
    """Functions that differ in parameters; `{name}` in the texts stands for one."""

    asks: str
    source: str
    slips: tuple[tuple[str, str], ...]
    """What a wrong solution has instead of a piece of the source."""
    draw: Callable[[random.Random], dict[str, Any]]
    edges: Callable[[Parameters], list[Any]]
    """Arguments that tell a slip from the solution."""
    inputs: Callable[[random.Random], list[Any]]
    """Further arguments."""
    right: Callable[[Any, Parameters], Any]
    """The result that is right for an argument."""
    difficulty: float


def _filled(text: str, parameters: Parameters) -> str:
    for name, value in parameters.items():
        text = text.replace("{" + name + "}", str(value))
    return text


def written(family: Family, parameters: Parameters) -> tuple[str, str, list[str]]:
    """(what is asked, a solution, wrong ones)"""
    wrong = [family.source.replace(old, new) for old, new in family.slips]
    return _filled(family.asks, parameters), _filled(family.source, parameters), [_filled(w, parameters) for w in wrong]


def _numbers(rng: random.Random, many: int, low: int = -20, high: int = 60) -> list[int]:
    return [rng.randint(low, high) for _ in range(many)]


def _lists(rng: random.Random) -> list[Any]:
    return [_numbers(rng, 20), [], _numbers(rng, 12), [7], *(_numbers(rng, rng.randint(2, 9)) for _ in range(12))]


def _texts(rng: random.Random) -> list[Any]:
    made = ["".join([rng.choice(ascii_lowercase) for _ in range(rng.randint(4, 12))]) for _ in range(8)]
    return [*_WORDS, *made]


def _alphabet(_p: Parameters) -> list[Any]:
    return ["The quick brown fox jumps over the lazy DOG", ascii_lowercase]


def _multiples(n: int, p: Parameters) -> int:
    """By inclusion and exclusion."""

    def below(step: int) -> int:
        many = max(0, n - 1) // step
        return step * many * (many + 1) // 2

    a, b = p["a"], p["b"]
    both = next(m for m in range(a, a * b + 1, a) if m % b == 0)
    return below(a) + below(b) - below(both)


def _recurrence(n: int, p: Parameters) -> int:
    @cache
    def term(i: int) -> int:
        return (p["p"], p["q"])[i] if i < 2 else p["a"] * term(i - 1) + p["b"] * term(i - 2)

    return term(n)


def _digits(n: int, p: Parameters) -> int:
    return 0 if n == 0 else (n % p["base"]) ** p["k"] + _digits(n // p["base"], p)


def _shifted(text: str, p: Parameters) -> str:
    turned = ascii_lowercase[p["k"] :] + ascii_lowercase[: p["k"]]
    return text.translate(str.maketrans(ascii_lowercase, turned))


def _window(items: list[int], p: Parameters) -> int:
    k = p["k"]
    best = None
    for start in range(len(items) - k + 1):
        total = sum(items[start : start + k])
        best = total if best is None else max(best, total)
    return p["d"] if best is None else best


def _down(n: int, p: Parameters) -> int:
    return 0 if n == 1 else 1 + _down(n // p["k"] if n % p["k"] == 0 else n - 1, p)


def _pair(rng: random.Random, low: int, high: int) -> tuple[int, int]:
    a, b = sorted(rng.sample(range(low, high + 1), 2))
    return a, b


FAMILIES: Mapping[str, Family] = {
    "between": Family(
        "takes a list of whole numbers and returns how many of them are greater than {a} and less than {b}.",
        "def f(items):\n    return sum({a} < item < {b} for item in items)\n",
        (("{a} < item < {b}", "{a} <= item <= {b}"), ("{a} < item < {b}", "item < {b}")),
        lambda rng: {"a": (a := rng.randint(-15, 35)), "b": a + rng.randint(3, 25)},
        lambda p: [[p["a"], p["b"], p["a"] - 1, p["a"] + 1]],
        _lists,
        lambda items, p: len([item for item in items if item in range(p["a"] + 1, p["b"])]),
        1,
    ),
    "letters": Family(
        "takes a text and returns how many of its characters are among '{letters}', capital letters included.",
        "def f(text):\n    return sum(c in '{letters}' for c in text.lower())\n",
        ((".lower()", ""), ("c in '{letters}'", "c not in '{letters}'")),
        lambda rng: {"letters": "".join(sorted(rng.sample(ascii_lowercase, rng.randint(2, 5))))},
        lambda p: [p["letters"].upper() + "!", *_alphabet(p)],
        _texts,
        lambda text, p: sum([text.count(c) + text.count(c.upper()) for c in p["letters"]]),
        1,
    ),
    "multiples": Family(
        "takes a whole number n and returns the sum of all positive whole numbers below n that are multiples of {a} or "
        "of {b}.",
        "def f(n):\n    return sum(i for i in range(1, n) if i % {a} == 0 or i % {b} == 0)\n",
        (("range(1, n)", "range(1, n + 1)"), (" or ", " and ")),
        lambda rng: dict(zip("ab", _pair(rng, 2, 12), strict=True)),
        lambda p: [p["b"], p["a"] * p["b"], 1, p["b"] + 1],
        lambda rng: _numbers(rng, 12, 20, 120),
        _multiples,
        2,
    ),
    "every": Family(
        "takes a list and returns a list of its items at the positions {s}, {s} + {k}, {s} + 2 * {k} and so on "
        "(the first position is 0), the last of them first.",
        "def f(items):\n    return items[{s}::{k}][::-1]\n",
        (("[::-1]", ""), ("{s}::", "{s} + 1::")),
        lambda rng: {"s": rng.randint(0, 6), "k": rng.randint(2, 7)},
        lambda _p: [[*range(30)], []],
        _lists,
        lambda items, p: [items[i] for i in reversed(range(p["s"], len(items), p["k"]))],
        2,
    ),
    "select": Family(
        "takes a list of whole numbers that are not negative and returns a list of those that leave the remainder {r} "
        "when divided by {m}, each multiplied by {a}, in the same order.",
        "def f(items):\n    return [{a} * item for item in items if item % {m} == {r}]\n",
        (("{a} * item for", "{a} + item for"), ("== {r}", "!= {r}")),
        lambda rng: {"m": (m := rng.randint(2, 7)), "r": rng.randrange(m), "a": rng.randint(3, 9)},
        lambda p: [[*range(p["m"] * 2 + 1)], []],
        lambda rng: [_numbers(rng, 8, 0, 99) for _ in range(16)],
        lambda items, p: list(map(p["a"].__mul__, filter(lambda n: (n - p["r"]) % p["m"] == 0, items))),
        2,
    ),
    "mask": Family(
        "takes a text and returns it with every character at a position that is a multiple of {n} (the first position "
        "is 1) replaced by '{c}'.",
        "def f(text):\n    return ''.join('{c}' if i % {n} == 0 else c for i, c in enumerate(text, 1))\n",
        (("enumerate(text, 1)", "enumerate(text)"), ("'{c}' if", "'' if")),
        lambda rng: {"n": rng.randint(2, 7), "c": rng.choice("*#_?" + ascii_lowercase)},
        _alphabet,
        _texts,
        lambda text, p: "".join([p["c"] if i % p["n"] == p["n"] - 1 else text[i] for i in range(len(text))]),
        2,
    ),
    "digits": Family(
        "takes a whole number that is not negative, writes it in base {base}, raises each digit to the power {k} and "
        "returns the sum.",
        "def f(n):\n    total = 0\n    while n:\n        n, digit = divmod(n, {base})\n        total += digit ** {k}\n"
        "    return total\n",
        (("divmod(n, {base})", "divmod(n, {base} + 1)"), ("total += digit", "total = digit")),
        lambda rng: {"base": rng.randint(2, 16), "k": rng.randint(1, 4)},
        lambda _p: [10**6 - 1, 0, 1],
        lambda rng: _numbers(rng, 13, 20, 5000),
        _digits,
        3,
    ),
    "shift": Family(
        "takes a text and returns it with every letter from a to z moved {k} places on in the alphabet, where a comes "
        "after z. Everything else, capital letters included, stays as it is.",
        "def f(text):\n"
        "    return ''.join(chr((ord(c) - 97 + {k}) % 26 + 97) if 'a' <= c <= 'z' else c for c in text)\n",
        ((" % 26", ""), (" if 'a' <= c <= 'z' else c", "")),
        lambda rng: {"k": rng.randint(1, 25)},
        _alphabet,
        _texts,
        _shifted,
        3,
    ),
    "steps": Family(
        "takes a positive whole number and returns how many steps it takes to come down to 1, where a step divides "
        "the number by {k} if that leaves no remainder, and otherwise takes 1 away.",
        "def f(n):\n    count = 0\n    while n > 1:\n"
        "        n = n // {k} if n % {k} == 0 else n - 1\n        count += 1\n    return count\n",
        (("count = 0", "count = 1"), (" if n % {k} == 0 else n - 1", "")),
        lambda rng: {"k": rng.randint(2, 12)},
        lambda p: [p["k"] * 3 + 2, 1, 2],
        lambda rng: _numbers(rng, 13, 20, 900),
        _down,
        3,
    ),
    "window": Family(
        "takes a list of whole numbers and returns the largest sum of {k} neighbouring items, or {d} if there are "
        "fewer than {k} items.",
        "def f(items):\n    sums = [sum(items[i:i + {k}]) for i in range(len(items) - {k} + 1)]\n"
        "    return max(sums) if sums else {d}\n",
        (("max(sums) if", "min(sums) if"), ("- {k} + 1)", "- {k})")),
        lambda rng: {"k": rng.randint(2, 7), "d": rng.randint(-3, 3)},
        lambda p: [[*range(10)], [3] * p["k"]],
        _lists,
        _window,
        4,
    ),
    "recurrence": Family(
        "takes a whole number n that is not negative and returns the term number n of the sequence in which term 0 is "
        "{p}, term 1 is {q}, and every later term is {a} times the term before it plus {b} times the one before that.",
        "def f(n):\n    x, y = {p}, {q}\n    for _ in range(n):\n        x, y = y, {a} * y + {b} * x\n    return x\n",
        (("range(n)", "range(n + 1)"), ("{a} * y + {b} * x", "{b} * y + {a} * x")),
        lambda rng: {"p": rng.randint(0, 5), "q": rng.randint(6, 9), **dict(zip("ab", _pair(rng, 1, 5), strict=True))},
        lambda _p: [5, 2, 0, 1],
        lambda _rng: [*range(3, 14)],
        _recurrence,
        4,
    ),
}
