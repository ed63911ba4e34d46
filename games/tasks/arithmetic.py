"""Arithmetic task: sums, differences and products of whole numbers."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product, zip_longest
from math import prod
from typing import Annotated, Literal

from pydantic import Field

from marl.core.seeds import seed_of
from marl.core.types import Problem
from marl.games.tasks.base import GeneratedTask, ProblemDraft, range_within, wrong_answers

Operator = Literal["+", "-", "*"]
Style = Literal["plain", "expanded", "digits"]


def spell(number: int, style: Style) -> str:
    """Return `number` as text: `plain` 105; `digits` 1 0 5; `expanded` 100 5, one word for each digit but 0."""
    digits = str(number)
    if style == "plain":
        return digits
    if style == "digits":
        return " ".join(digits)
    zeros = range(len(digits) - 1, -1, -1)
    return " ".join([digit + "0" * count for digit, count in zip(digits, zeros, strict=True) if digit != "0"]) or "0"


def parse_number(words: Sequence[str], style: Style) -> int | None:
    """Return the number spelled by `words`, or None unless `spell` writes it in the same way."""
    # Bounded, since models write the words, and int() raises ValueError for more than 4300 digits.
    if not 0 < len(words) < 20 or not all(word.isascii() and word.isdecimal() and len(word) < 20 for word in words):
        return None
    number = sum(map(int, words)) if style == "expanded" else int("".join(words))
    return number if spell(number, style) == " ".join(words) else None


class ArithmeticTask(GeneratedTask):
    """Arithmetic on whole numbers without negative results: `47 + 38` -> `85`.

    The style `expanded` is for language models with a small vocabulary: `40 7 + 30 8` -> `80 5`.
    """

    kind: str = "arithmetic"
    operators: tuple[Operator, ...] = Field(("+",), min_length=1)
    """Operators of the problems, each drawn with the same probability."""
    digits: Annotated[tuple[int, int], range_within(1, 9)] | None = None
    """Minimum and maximum number of digits of a number (default: 1 to 2, which is 0 to 99)."""
    numbers: Annotated[tuple[int, int], range_within(0, 10**9 - 1)] | None = None
    """Smallest and largest number; replaces `digits`."""
    terms: int = Field(2, ge=2, le=8)
    """Number of terms in a problem."""
    style: Style = "plain"
    """Spelling of a number: `plain` 105; `digits` 1 0 5; `expanded` 100 5, one word for each digit but 0."""

    @property
    def range(self) -> tuple[int, int]:
        """Smallest and largest number."""
        if self.numbers:
            return self.numbers
        low, high = self.digits or (1, 2)
        return 10 ** (low - 1) if low > 1 else 0, 10**high - 1

    @property
    def secret_facts(self) -> frozenset[str]:
        return frozenset({"value", "steps"})

    @property
    def posing_instructions(self) -> str:
        low, high = self.range
        example = f" {self.operators[0]} ".join(spell(n, self.style) for n in (high, *[low] * (self.terms - 1)))
        return (
            f"{self.terms} numbers from {low} to {high} with {' or '.join(self.operators)} between them and nothing "
            f"else, such as {example!r}; the answer is worked out"
        )

    def draw(self, rng: random.Random) -> ProblemDraft:
        while True:
            numbers = [rng.randint(*self.range) for _ in range(self.terms)]
            problem = ArithmeticProblem(numbers, [rng.choice(self.operators) for _ in numbers[1:]])
            if problem.value >= 0:
                return self._draft(problem)

    def parse_problem(self, text: str) -> ProblemDraft | None:
        operands: list[list[str]] = [[]]
        operators: list[str] = []
        for word in text.split():
            if word in self.operators:
                operators.append(word)
                operands.append([])
            else:
                operands[-1].append(word)
        if len(operands) != self.terms:
            return None
        low, high = self.range
        numbers = list[int]()
        for words in operands:
            number = parse_number(words, self.style)
            if number is None or not low <= number <= high:
                return None
            numbers.append(number)
        problem = ArithmeticProblem(numbers, operators)
        return self._draft(problem) if problem.value >= 0 else None

    def _draft(self, problem: ArithmeticProblem) -> ProblemDraft:
        digits = "".join(map(str, problem.numbers)).replace("0", "")
        # Zeros cost nothing; every carry is one more step.
        return ProblemDraft(problem.key, len(digits) + problem.carries, partial(self._write, problem))

    def _write(self, problem: ArithmeticProblem) -> Problem:
        say = partial(spell, style=self.style)
        question = say(problem.numbers[0])
        for operator, number in zip(problem.operators, problem.numbers[1:], strict=True):
            question += f" {operator} {say(number)}"
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
    """Numbers with operators between them; products bind more strongly."""

    def __init__(self, numbers: list[int], operators: list[str]) -> None:
        self.numbers, self.operators = numbers, operators
        self._terms: list[tuple[str, list[int]]] = [("+", [numbers[0]])]
        # (sign, factors) of each term.
        for operator, number in zip(operators, numbers[1:], strict=True):
            if operator == "*":
                self._terms[-1][1].append(number)
            else:
                self._terms.append((operator, [number]))
        self.value = sum(prod(factors) if sign == "+" else -prod(factors) for sign, factors in self._terms)

    @property
    def key(self) -> str:
        """Canonical name of the problem, equal for every order of factors and terms."""
        terms = sorted((sign, sorted(factors)) for sign, factors in self._terms)
        return "".join([sign + "*".join(map(str, factors)) for sign, factors in terms]).removeprefix("+")

    @property
    def carries(self) -> int:
        """Number of carries, borrows and products of digits past nine, evaluated from left to right."""
        result, count = self.numbers[0], 0
        for operator, number in zip(self.operators, self.numbers[1:], strict=True):
            count += _carries(result, operator, number)
            result = {"+": result + number, "-": result - number, "*": result * number}[operator]
        return count

    @property
    def steps(self) -> list[int]:
        """Intermediate results. Sums: the sum of each decimal position, units first; differences: the result after each
        position, the highest first; products: the products with each position of the last number; mixed: the terms."""
        kinds = set(self.operators)
        if kinds == {"+"}:
            return self._position_sums()
        if len(self.operators) == 1:
            left, right = self.numbers
            parts = _digit_values(right)
            if kinds == {"*"}:
                return [left * part for part in parts]
            return [left - sum(parts[i:]) for i in range(len(parts) - 1, -1, -1)]
        return [prod(factors) for _, factors in self._terms]

    def plausible_errors(self) -> Iterator[int]:
        """Yield plausible wrong values: first a sum without its carries, then others in an order seeded by the key."""
        value = self.value
        if set(self.operators) == {"+"}:
            yield sum(total % (10 * 10**position) for position, total in enumerate(self._position_sums()))
        text = str(value)
        swapped_digits = int(text[:-2] + text[:-3:-1])
        errors = [value + 10, value - 10, value + 1, value - 1, swapped_digits]
        random.Random(seed_of("slips", self.key)).shuffle(errors)
        # The last three provide enough values where the result is 0.
        yield from filter(lambda error: error >= 0, (*errors, value + 2, value + 3, value + 4))

    def _position_sums(self) -> list[int]:
        """Return the sum of the numbers' units, of their tens, ..."""
        return list(map(sum, zip_longest(*map(_digit_values, self.numbers), fillvalue=0)))


def _carries(left: int, operator: str, right: int) -> int:
    """Return the number of carries, borrows or products past nine of one operation."""
    if operator == "*":
        digit_pairs = product(map(int, str(abs(left))), map(int, str(right)))
        return sum(a * b > 9 for a, b in digit_pairs)
    bounds = [10**position for position in range(1, len(str(max(abs(left), right))) + 1)]
    if operator == "+":
        return sum(left % bound + right % bound >= bound for bound in bounds)
    return sum(left % bound < right % bound for bound in bounds)


def _digit_values(number: int) -> list[int]:
    """Return the value of each digit, units first: 47 -> [7, 40]."""
    return [int(digit) * 10**position for position, digit in enumerate(reversed(str(number)))]
