"""Arithmetic task: sums, differences and products of whole numbers."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate, product, zip_longest
from math import prod
from operator import sub
from typing import Annotated, Literal

from pydantic import Field

from marl.core.config import DistinctValues
from marl.core.seeds import hash_to_seed
from marl.core.types import Problem
from marl.games.tasks.base import GeneratedTask, LazyProblem, first_distinct_wrong_answers, validate_range_within

Operator = Literal["+", "-", "*"]
NumberStyle = Literal["plain", "expanded", "digits"]


def spell_number(number: int, style: NumberStyle) -> str:
    """Return `number` as text: `plain` 105; `digits` 1 0 5; `expanded` 100 5, one word for each digit but 0."""
    if style == "plain":
        return str(number)
    if style == "digits":
        return " ".join(str(number))
    words = [str(part) for part in reversed(_digit_place_values(number)) if part]
    return " ".join(words) or "0"


def parse_number(words: Sequence[str], style: NumberStyle) -> int | None:
    """Return the number spelled by `words`, or None unless `spell_number` writes the number in the same way."""
    # Models write the words, and int() raises ValueError for more than 4300 digits, so the length is bounded.
    if not 0 < len(words) < 20:
        return None
    for word in words:
        if not (word.isascii() and word.isdecimal() and len(word) < 20):
            return None
    number = sum(map(int, words)) if style == "expanded" else int("".join(words))
    return number if spell_number(number, style) == " ".join(words) else None


class ArithmeticTask(GeneratedTask):
    """Arithmetic on whole numbers without negative results: `47 + 38` -> `85`.

    The style `expanded` is for language models with a small vocabulary: `40 7 + 30 8` -> `80 5`.
    """

    kind: str = "arithmetic"
    operators: DistinctValues[Operator] = Field(default=("+",), min_length=1)
    """Operators of the problems, each drawn with the same probability."""
    digits: Annotated[tuple[int, int], validate_range_within(1, 9)] | None = None
    """Minimum and maximum number of digits of each number in a problem (default: 1 to 2 digits, which is 0 to 99)."""
    numbers: Annotated[tuple[int, int], validate_range_within(0, 10**9 - 1)] | None = None
    """Smallest and largest number in a problem; replaces `digits` (default: given by `digits`)."""
    terms: int = Field(default=2, ge=2, le=8)
    """Number of terms in a problem."""
    style: NumberStyle = "plain"
    """Spelling of a number: `plain` 105; `digits` 1 0 5; `expanded` 100 5, one word for each digit but 0."""

    @property
    def number_range(self) -> tuple[int, int]:
        """Smallest and largest number in a problem, from `numbers` or `digits`."""
        if self.numbers:
            return self.numbers
        low, high = self.digits or (1, 2)
        return 10 ** (low - 1) if low > 1 else 0, 10**high - 1

    @property
    def secret_fact_names(self) -> frozenset[str]:
        return frozenset({"value", "steps"})

    @property
    def problem_posing_instructions(self) -> str:
        low, high = self.number_range
        operands = [spell_number(high, self.style), *[spell_number(low, self.style)] * (self.terms - 1)]
        example = f" {self.operators[0]} ".join(operands)
        return (
            f"{self.terms} numbers from {low} to {high} with {' or '.join(self.operators)} between them and nothing "
            f"else, such as {example!r}; the answer is worked out"
        )

    @property
    def max_draws(self) -> int:
        return 800_000 // self.terms

    @property
    def no_problem_fits_message(self) -> str:
        return (
            f"operators: {list(self.operators)} with terms: {self.terms} make negative results of numbers within "
            f"{list(self.number_range)}; choose others"
        )

    def draw_problem(self, rng: random.Random) -> LazyProblem | None:
        numbers = [rng.randint(*self.number_range) for _ in range(self.terms)]
        problem = ArithmeticProblem(numbers, [rng.choice(self.operators) for _ in numbers[1:]])
        return self._make_lazy_problem(problem) if problem.value >= 0 else None

    def read_posed_problem(self, text: str) -> LazyProblem | None:
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
        low, high = self.number_range
        numbers = list[int]()
        for words in operands:
            number = parse_number(words, self.style)
            if number is None or not low <= number <= high:
                return None
            numbers.append(number)
        problem = ArithmeticProblem(numbers, operators)
        return self._make_lazy_problem(problem) if problem.value >= 0 else None

    def _make_lazy_problem(self, problem: ArithmeticProblem) -> LazyProblem:
        digits = "".join(map(str, problem.numbers)).replace("0", "")
        # The difficulty is the number of calculation steps: one for each digit other than 0, and one for each carry.
        return LazyProblem(
            problem.order_independent_key, len(digits) + problem.carry_count, partial(self._build_problem, problem)
        )

    def _build_problem(self, problem: ArithmeticProblem) -> Problem:
        say = partial(spell_number, style=self.style)
        question = say(problem.numbers[0])
        for operator, number in zip(problem.operators, problem.numbers[1:], strict=True):
            question += f" {operator} {say(number)}"
        facts = {
            "value": problem.value,
            "numbers": problem.numbers,
            "operators": problem.operators,
            "left": problem.numbers[0],
            "right": problem.numbers[-1],
            "carry": problem.carry_count > 0,
            "steps": [say(step) for step in problem.intermediate_results],
        }
        answer = say(problem.value)
        wrong = first_distinct_wrong_answers(map(say, problem.plausible_wrong_answers()), answer)
        return Problem(problem.order_independent_key, question, answer, wrong, facts)


class ArithmeticProblem:
    """Numbers with operators between them; products are evaluated before sums and differences."""

    def __init__(self, numbers: list[int], operators: list[str]) -> None:
        self.numbers, self.operators = numbers, operators
        # The calculation as a sum: a list of terms, each with its sign and its factors.
        self._terms: list[tuple[str, list[int]]] = [("+", [numbers[0]])]
        for operator, number in zip(operators, numbers[1:], strict=True):
            if operator == "*":
                self._terms[-1][1].append(number)
            else:
                self._terms.append((operator, [number]))
        self.value = sum(prod(factors) if sign == "+" else -prod(factors) for sign, factors in self._terms)

    @property
    def order_independent_key(self) -> str:
        """Identifier of the problem, equal for every order of factors and terms."""
        terms = sorted((sign, sorted(factors)) for sign, factors in self._terms)
        key = ""
        for sign, factors in terms:
            key += sign + "*".join(map(str, factors))
        return key.removeprefix("+")

    @property
    def carry_count(self) -> int:
        """Number of carries, borrows and products of digits past nine in a calculation from left to right."""
        result, count = self.numbers[0], 0
        for operator, number in zip(self.operators, self.numbers[1:], strict=True):
            if operator == "*":
                for a, b in product(map(int, str(abs(result))), map(int, str(number))):
                    count += a * b > 9
            else:
                for position in range(1, len(str(max(abs(result), number))) + 1):
                    a, b = result % 10**position, number % 10**position
                    count += a + b >= 10**position if operator == "+" else a < b
            result = {"+": result + number, "-": result - number, "*": result * number}[operator]
        return count

    @property
    def intermediate_results(self) -> list[int]:
        """Intermediate results.

        Sums: the sum of the digits at each decimal position, units first. Differences: the result after subtracting
        each digit of the second number, highest first: [43, 36] for 83 - 47. Products: the product of the first number
        with each digit of the second, units first: [21, 60] for 3 * 27. Mixed: the value of each term.
        """
        if set(self.operators) == {"+"}:
            return self._sums_by_decimal_position()
        if len(self.operators) > 1:
            return [prod(factors) for _, factors in self._terms]
        left, right = self.numbers
        if self.operators == ["*"]:
            return [left * part for part in _digit_place_values(right)]
        return list(accumulate(reversed(_digit_place_values(right)), sub, initial=left))[1:]

    def plausible_wrong_answers(self) -> Iterator[int]:
        """Yield plausible wrong answers: first a sum without its carries, then others in an order seeded by the key."""
        value = self.value
        if set(self.operators) == {"+"}:
            yield sum(total % (10 * 10**position) for position, total in enumerate(self._sums_by_decimal_position()))
        text = str(value)
        swapped_digits = int(text[:-2] + text[:-3:-1])
        errors = [value + 10, value - 10, value + 1, value - 1, swapped_digits]
        random.Random(hash_to_seed("slips", self.order_independent_key)).shuffle(errors)
        # Negative errors are dropped, so three more positive errors follow in case the right result is near 0.
        yield from filter(lambda error: error >= 0, (*errors, value + 2, value + 3, value + 4))

    def _sums_by_decimal_position(self) -> list[int]:
        """Return the sums of the numbers' units, of their tens and so on: [12, 60] for 47 + 25."""
        return list(map(sum, zip_longest(*map(_digit_place_values, self.numbers), fillvalue=0)))


def _digit_place_values(number: int) -> list[int]:
    """Return the value of each digit of `number`, units first: [7, 40] for 47."""
    return [int(digit) * 10**position for position, digit in enumerate(reversed(str(number)))]
