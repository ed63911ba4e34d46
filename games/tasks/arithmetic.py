"""Sums, differences and products of whole numbers."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import partial
from math import prod
from typing import Literal

from pydantic import Field, field_validator

from games.tasks.base import Draft, Generated, distinct, ordered
from marl.seeds import seed_of
from marl.types import Problem

Operator = Literal["+", "-", "*"]
Style = Literal["plain", "expanded", "digits"]


def spell(number: int, style: Style) -> str:
    """`plain`: 105; `digits`: 1 0 5; `expanded`: 100 5, each digit a word that carries its place."""
    digits = str(number)
    if style == "plain":
        return digits
    if style == "digits":
        return " ".join(digits)
    places = range(len(digits) - 1, -1, -1)
    return " ".join([d + "0" * place for d, place in zip(digits, places, strict=True) if d != "0"]) or "0"


def unspell(words: Sequence[str], style: Style) -> int | None:
    """The number that `words` spell; None unless they are spelled as `spell` would."""
    if not 0 < len(words) < 20 or not all(word.isascii() and word.isdecimal() and len(word) < 20 for word in words):
        return None
    number = sum(map(int, words)) if style == "expanded" else int("".join(words))
    return number if spell(number, style) == " ".join(words) else None


class Arithmetic(Generated):
    """Arithmetic on whole numbers that are never negative, nor is a result: `47 + 38` -> `85`.

    The style `expanded` is made for language models of a few words: `40 7 + 30 8` -> `80 5`.
    """

    kind: str = "arithmetic"
    operators: tuple[Operator, ...] = Field(("+",), min_length=1)
    digits: tuple[int, int] | None = None
    """Fewest and most digits of a number. Default: 1 to 2, which is 0 to 99."""
    numbers: tuple[int, int] | None = None
    """Smallest and largest number, instead of `digits`."""
    terms: int = Field(2, ge=2, le=8)
    """Numbers in a problem."""
    style: Style = "plain"

    @field_validator("digits")
    @classmethod
    def _some_digits(cls, digits: tuple[int, int] | None) -> tuple[int, int] | None:
        return digits and ordered(digits, "digits", 1, 9)

    @field_validator("numbers")
    @classmethod
    def _some_numbers(cls, numbers: tuple[int, int] | None) -> tuple[int, int] | None:
        return numbers and ordered(numbers, "numbers", 0, 10**9 - 1)

    @property
    def range(self) -> tuple[int, int]:
        """Smallest and largest number."""
        fewest, most = self.digits or (1, 2)
        return self.numbers or (10 ** (fewest - 1) if fewest > 1 else 0, 10**most - 1)

    def draw(self, rng: random.Random) -> Draft:
        while True:
            numbers = [rng.randint(*self.range) for _ in range(self.terms)]
            sum_ = Sum(numbers, [rng.choice(self.operators) for _ in numbers[1:]])
            if sum_.value >= 0:
                return self._draft(sum_)

    def read(self, text: str) -> Draft | None:
        sides: list[list[str]] = [[]]
        operators: list[str] = []
        for word in text.split():
            if word in self.operators:
                operators.append(word)
                sides.append([])
            else:
                sides[-1].append(word)
        numbers = [number for side in sides if (number := unspell(side, self.style)) is not None]
        low, high = self.range
        if not len(numbers) == len(sides) == self.terms or not all(low <= n <= high for n in numbers):
            return None
        posed = Sum(numbers, operators)
        return self._draft(posed) if posed.value >= 0 else None

    def _draft(self, posed: Sum) -> Draft:
        digits = sum(d != "0" for number in posed.numbers for d in str(number))
        return Draft(posed.key, digits + posed.carries, partial(self._write, posed))

    def _write(self, posed: Sum) -> Problem:
        say = partial(spell, style=self.style)
        spelled = [say(number) for number in posed.numbers]
        question = " ".join([spelled[0], *(f"{o} {n}" for o, n in zip(posed.operators, spelled[1:], strict=True))])
        facts = {
            "value": posed.value,
            "numbers": posed.numbers,
            "operators": posed.operators,
            "left": posed.numbers[0],
            "right": posed.numbers[-1],
            "carry": posed.carries > 0,
            "steps": [say(step) for step in posed.steps],
        }
        answer = say(posed.value)
        return Problem(posed.key, question, answer, distinct(map(say, posed.slips()), answer), facts)


class Sum:
    """Numbers with operators between them; products bind first."""

    def __init__(self, numbers: list[int], operators: list[str]) -> None:
        self.numbers, self.operators = numbers, operators
        self._terms: list[tuple[str, list[int]]] = [("+", [numbers[0]])]
        """Sign and factors."""
        for operator, number in zip(operators, numbers[1:], strict=True):
            if operator == "*":
                self._terms[-1][1].append(number)
            else:
                self._terms.append((operator, [number]))
        self.value = sum(prod(factors) if sign == "+" else -prod(factors) for sign, factors in self._terms)

    @property
    def key(self) -> str:
        """The same for every order of factors and terms."""
        terms = sorted((sign, sorted(factors)) for sign, factors in self._terms)
        return "".join([sign + "*".join(map(str, factors)) for sign, factors in terms]).removeprefix("+")

    @property
    def carries(self) -> int:
        """How often a place carries, borrows or multiplies past nine, working from left to right."""
        running, count = self.numbers[0], 0
        for operator, number in zip(self.operators, self.numbers[1:], strict=True):
            count += _carries(running, operator, number)
            running = {"+": running + number, "-": running - number, "*": running * number}[operator]
        return count

    @property
    def steps(self) -> list[int]:
        """What one works out on the way: sums by place from the units up, differences by place from the top down,
        products by place of the last number; for anything mixed, the terms."""
        kinds = set(self.operators)
        if kinds == {"+"}:
            return self._by_place()
        if len(self.operators) == 1:
            left, right = self.numbers
            parts = _parts(right)
            if kinds == {"*"}:
                return [left * part for part in parts]
            return [left - sum(parts[i:]) for i in range(len(parts) - 1, -1, -1)]
        return [prod(factors) for _, factors in self._terms]

    def slips(self) -> Iterator[int]:
        """Plausible wrong values: a forgotten carry first, then others in an order of this problem's own."""
        value = self.value
        if set(self.operators) == {"+"}:
            yield sum(total % (10 * 10**place) for place, total in enumerate(self._by_place()))
        text = str(value)
        near = [value + 10, value - 10, value + 1, value - 1, int(text[:-2] + text[:-3:-1])]
        random.Random(seed_of("slips", self.key)).shuffle(near)
        # From 2 up there is always another, also where the result is 0.
        yield from (n for n in (*near, value + 2, value + 3, value + 4) if n >= 0)

    def _by_place(self) -> list[int]:
        """The sum of the numbers' units, of their tens, ..."""
        parts = [_parts(number) for number in self.numbers]
        return [sum(p[place] for p in parts if place < len(p)) for place in range(max(map(len, parts)))]


def _carries(left: int, operator: str, right: int) -> int:
    if operator == "*":
        return sum(int(a) * int(b) > 9 for a in str(abs(left)) for b in str(right))
    bounds = [10**place for place in range(1, len(str(max(abs(left), right))) + 1)]
    if operator == "+":
        return sum(left % bound + right % bound >= bound for bound in bounds)
    return sum(left % bound < right % bound for bound in bounds)


def _parts(number: int) -> list[int]:
    """47 -> [7, 40]"""
    return [int(d) * 10**place for place, d in enumerate(reversed(str(number)))]
