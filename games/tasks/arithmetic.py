"""Arithmetic task: sums, differences and products of whole numbers."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import partial
from math import prod
from typing import Annotated, Literal

from pydantic import Field

from games.tasks.base import Draft, GeneratedTask, within, wrong_answers
from marl.seeds import seed_of
from marl.types import Problem

Operator = Literal["+", "-", "*"]
Style = Literal["plain", "expanded", "digits"]


def spell(number: int, style: Style) -> str:
    """Return a number as text: `plain` 105; `digits` 1 0 5; `expanded` 100 5, each digit a word with its place."""
    digits = str(number)
    if style == "plain":
        return digits
    if style == "digits":
        return " ".join(digits)
    places = range(len(digits) - 1, -1, -1)
    return " ".join([d + "0" * place for d, place in zip(digits, places, strict=True) if d != "0"]) or "0"


def parse_number(words: Sequence[str], style: Style) -> int | None:
    """Return the number that `words` spell; None unless they are spelled as `spell` would."""
    if not 0 < len(words) < 20 or not all(word.isascii() and word.isdecimal() and len(word) < 20 for word in words):
        return None
    number = sum(map(int, words)) if style == "expanded" else int("".join(words))
    return number if spell(number, style) == " ".join(words) else None


class ArithmeticTask(GeneratedTask):
    """Arithmetic on whole numbers without negative results: `47 + 38` -> `85`.

    The style `expanded` is made for language models with a small vocabulary: `40 7 + 30 8` -> `80 5`.
    """

    kind: str = "arithmetic"
    operators: tuple[Operator, ...] = Field(("+",), min_length=1)
    """Operators of the problems, all equally likely."""
    digits: Annotated[tuple[int, int], within(1, 9)] | None = None
    """Fewest and most digits of a number. Default: 1 to 2, which is 0 to 99."""
    numbers: Annotated[tuple[int, int], within(0, 10**9 - 1)] | None = None
    """Smallest and largest number, instead of `digits`."""
    terms: int = Field(2, ge=2, le=8)
    """Numbers in a problem."""
    style: Style = "plain"
    """Spelling of a number: `plain` 105; `digits` 1 0 5; `expanded` 100 5, each digit a word with its place."""

    @property
    def range(self) -> tuple[int, int]:
        """Smallest and largest number."""
        fewest, most = self.digits or (1, 2)
        return self.numbers or (10 ** (fewest - 1) if fewest > 1 else 0, 10**most - 1)

    @property
    def secret_facts(self) -> frozenset[str]:
        return frozenset({"value", "steps"})

    @property
    def posing(self) -> str:
        low, high = self.range
        example = f" {self.operators[0]} ".join(spell(n, self.style) for n in (high, *[low] * (self.terms - 1)))
        return (
            f"{self.terms} numbers from {low} to {high} with {' or '.join(self.operators)} between them and nothing "
            f"else, such as {example!r}; the answer is worked out"
        )

    def draw(self, rng: random.Random) -> Draft:
        while True:
            numbers = [rng.randint(*self.range) for _ in range(self.terms)]
            problem = ArithmeticProblem(numbers, [rng.choice(self.operators) for _ in numbers[1:]])
            if problem.value >= 0:
                return self._draft(problem)

    def read(self, text: str) -> Draft | None:
        operands: list[list[str]] = [[]]
        operators: list[str] = []
        for word in text.split():
            if word in self.operators:
                operators.append(word)
                operands.append([])
            else:
                operands[-1].append(word)
        numbers = [number for words in operands if (number := parse_number(words, self.style)) is not None]
        low, high = self.range
        if not len(numbers) == len(operands) == self.terms or not all(low <= n <= high for n in numbers):
            return None
        problem = ArithmeticProblem(numbers, operators)
        return self._draft(problem) if problem.value >= 0 else None

    def _draft(self, problem: ArithmeticProblem) -> Draft:
        digits = sum(d != "0" for number in problem.numbers for d in str(number))
        return Draft(problem.key, digits + problem.carries, partial(self._write, problem))

    def _write(self, problem: ArithmeticProblem) -> Problem:
        say = partial(spell, style=self.style)
        spelled = [say(number) for number in problem.numbers]
        question = " ".join([spelled[0], *(f"{o} {n}" for o, n in zip(problem.operators, spelled[1:], strict=True))])
        facts = {
            "value": problem.value,
            "numbers": problem.numbers,
            "operators": problem.operators,
            "left": problem.numbers[0],
            "right": problem.numbers[-1],
            "carry": problem.carries > 0,
            "steps": [say(step) for step in problem.steps],
        }
        answer = say(problem.value)
        wrong = wrong_answers(map(say, problem.plausible_errors()), answer)
        return Problem(problem.key, question, answer, wrong, facts)


class ArithmeticProblem:
    """Numbers with operators between them; products bind first."""

    def __init__(self, numbers: list[int], operators: list[str]) -> None:
        self.numbers, self.operators = numbers, operators
        self._terms: list[tuple[str, list[int]]] = [("+", [numbers[0]])]
        """(sign, factors) of each term."""
        for operator, number in zip(operators, numbers[1:], strict=True):
            if operator == "*":
                self._terms[-1][1].append(number)
            else:
                self._terms.append((operator, [number]))
        self.value = sum(prod(factors) if sign == "+" else -prod(factors) for sign, factors in self._terms)

    @property
    def key(self) -> str:
        """Name of the problem, the same for every order of factors and terms."""
        terms = sorted((sign, sorted(factors)) for sign, factors in self._terms)
        return "".join([sign + "*".join(map(str, factors)) for sign, factors in terms]).removeprefix("+")

    @property
    def carries(self) -> int:
        """Number of places that carry, borrow or multiply past nine, from left to right."""
        result, count = self.numbers[0], 0
        for operator, number in zip(self.operators, self.numbers[1:], strict=True):
            count += _carries(result, operator, number)
            result = {"+": result + number, "-": result - number, "*": result * number}[operator]
        return count

    @property
    def steps(self) -> list[int]:
        """Intermediate results: sums by place from the units up, differences by place from the top down, products by
        place of the last number; for mixed operators, the terms."""
        kinds = set(self.operators)
        if kinds == {"+"}:
            return self._sums_by_place()
        if len(self.operators) == 1:
            left, right = self.numbers
            parts = _split_places(right)
            if kinds == {"*"}:
                return [left * part for part in parts]
            return [left - sum(parts[i:]) for i in range(len(parts) - 1, -1, -1)]
        return [prod(factors) for _, factors in self._terms]

    def plausible_errors(self) -> Iterator[int]:
        """Yield plausible wrong values: a forgotten carry first, then others in an order that depends on the key."""
        value = self.value
        if set(self.operators) == {"+"}:
            yield sum(total % (10 * 10**place) for place, total in enumerate(self._sums_by_place()))
        text = str(value)
        near = [value + 10, value - 10, value + 1, value - 1, int(text[:-2] + text[:-3:-1])]
        random.Random(seed_of("slips", self.key)).shuffle(near)
        # The values from 2 up add enough of them where the result is 0.
        yield from (n for n in (*near, value + 2, value + 3, value + 4) if n >= 0)

    def _sums_by_place(self) -> list[int]:
        """Return the sum of the numbers' units, of their tens, ..."""
        parts = [_split_places(number) for number in self.numbers]
        return [sum(p[place] for p in parts if place < len(p)) for place in range(max(map(len, parts)))]


def _carries(left: int, operator: str, right: int) -> int:
    if operator == "*":
        return sum(int(a) * int(b) > 9 for a in str(abs(left)) for b in str(right))
    bounds = [10**place for place in range(1, len(str(max(abs(left), right))) + 1)]
    if operator == "+":
        return sum(left % bound + right % bound >= bound for bound in bounds)
    return sum(left % bound < right % bound for bound in bounds)


def _split_places(number: int) -> list[int]:
    """Return the value of each digit, units first: 47 -> [7, 40]."""
    return [int(d) * 10**place for place, d in enumerate(reversed(str(number)))]
