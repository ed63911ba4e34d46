"""Countdown task: reach a target with the four operations, using each number at most once."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import product
from typing import Annotated

from marl.core.types import Problem
from marl.games.tasks.base import GeneratedTask, ProblemDraft, range_within, wrong_answers

_QUESTION = "Make {target} from the numbers {numbers} with + - * / and brackets, each number at most once."
_QUESTION_PATTERN = re.compile(r"Make (\d{1,6}) from the numbers (\d{1,6}(?: \d{1,6})*)(?: with .*)?", re.ASCII)
Combined = tuple[int, str, str]
"""(value, expression, outermost operator of the expression; "" for a single number)"""


class CountdownTask(GeneratedTask):
    """Countdown problems with a known solution: `3 5 7` make 22 by `3 * 5 + 7`.

    `facts`: `numbers`, `target`. A problem has many right answers, so that the verifier
    `countdown_expression` checks the value.
    """

    kind: str = "countdown"
    count: Annotated[tuple[int, int], range_within(2, 6)] = (3, 4)
    """Minimum and maximum count of numbers in a problem."""
    numbers: Annotated[tuple[int, int], range_within(1, 10**6 - 1)] = (1, 25)
    """Smallest and largest number."""
    targets: Annotated[tuple[int, int], range_within(1, 10**6 - 1)] = (1, 100)
    """Smallest and largest target."""

    @property
    def posing_instructions(self) -> str:
        low, high = self.count
        return (
            f"'Make T from the numbers A B C': {low} to {high} numbers from {self.numbers[0]} to {self.numbers[1]}, "
            f"and a target from {self.targets[0]} to {self.targets[1]} that can be reached; the solution is worked out"
        )

    def draw(self, rng: random.Random) -> ProblemDraft:
        for _ in range(10_000):
            numbers = [rng.randint(*self.numbers) for _ in range(rng.randint(*self.count))]
            value, solution, _ = _combine_all(rng, numbers)
            if self.targets[0] <= value <= self.targets[1] and value not in numbers:
                return _draft(numbers, value, solution)
        raise ValueError(f"targets: {list(self.targets)} is out of reach of numbers within {list(self.numbers)}")

    def parse_problem(self, text: str) -> ProblemDraft | None:
        match = _QUESTION_PATTERN.fullmatch(text.strip())
        if match is None:
            return None
        target, numbers = int(match[1]), list(map(int, match[2].split()))
        within = all(self.numbers[0] <= number <= self.numbers[1] for number in numbers)
        fits = self.count[0] <= len(numbers) <= self.count[1]
        if not (within and fits and self.targets[0] <= target <= self.targets[1]) or target in numbers:
            return None
        solution = solve(numbers, target)
        return None if solution is None else _draft(numbers, target, solution)


def _draft(numbers: list[int], target: int, solution: str) -> ProblemDraft:
    key = f"{' '.join(map(str, sorted(numbers)))} -> {target}"
    # The count of numbers dominates: each one more than doubles the search. The solution's operators break ties.
    difficulty = 10 * len(numbers) + sum(solution.count(operator) for operator in "*/-") / 10
    return ProblemDraft(key, difficulty, partial(_write, key, numbers, target, solution))


def _write(key: str, numbers: list[int], target: int, solution: str) -> Problem:
    question = _QUESTION.format(target=target, numbers=" ".join(map(str, numbers)))
    total = [" + ".join(map(str, numbers))] if sum(numbers) != target else []
    # The target itself has the right value, but is not one of the numbers.
    candidates = [*total, str(target), f"{solution} + {numbers[0]}", f"{solution} - {numbers[-1]}"]
    wrong = wrong_answers(candidates, solution)
    return Problem(key, question, solution, wrong, {"numbers": numbers, "target": target})


def _combine_all(rng: random.Random, numbers: list[int]) -> Combined:
    """Return one value from all numbers: random pairs are combined by random operations."""
    remaining: list[Combined] = [(number, str(number), "") for number in numbers]
    while len(remaining) > 1:
        rng.shuffle(remaining)
        remaining.append(rng.choice(list(_results(remaining.pop(), remaining.pop()))))
    return remaining[0]


def _results(one: Combined, other: Combined) -> Iterator[Combined]:
    """Yield the results of one operation on two values: positive integers only, as in the television game."""
    big, small = (one, other) if one[0] >= other[0] else (other, one)
    yield big[0] + small[0], _join(big, "+", small), "+"
    yield big[0] * small[0], _join(big, "*", small), "*"
    if big[0] > small[0]:
        yield big[0] - small[0], _join(big, "-", small), "-"
    if big[0] % small[0] == 0:
        yield big[0] // small[0], _join(big, "/", small), "/"


def _join(left: Combined, operator: str, right: Combined) -> str:
    """Return the expression of an operation, with brackets where the order of operations needs them."""
    # Subtraction and division are not associative, so that their right operand needs more brackets.
    loose = {"+": (), "-": (), "*": ("+", "-"), "/": ("+", "-")}[operator]
    tight = {"+": (), "-": ("+", "-"), "*": ("+", "-"), "/": ("+", "-", "*", "/")}[operator]
    first = f"({left[1]})" if left[2] in loose else left[1]
    second = f"({right[1]})" if right[2] in tight else right[1]
    return f"{first} {operator} {second}"


def solve(numbers: list[int], target: int) -> str | None:
    """Return an expression of some numbers with the value `target`, or None. Searched in full, small subsets first."""
    if target in numbers:
        return str(target)
    # Subset of the numbers (as a bit mask) -> value -> expression with this value.
    reached: dict[int, dict[int, Combined]] = {1 << i: {n: (n, str(n), "")} for i, n in enumerate(numbers)}
    for subset in sorted(range(1, 1 << len(numbers)), key=int.bit_count):
        values = reached.setdefault(subset, {})
        for combined in _combine_halves(reached, subset):
            if combined[0] == target:
                return combined[1]
            values.setdefault(combined[0], combined)
    return None


def _combine_halves(reached: dict[int, dict[int, Combined]], subset: int) -> Iterable[Combined]:
    """Yield the results of one operation on values of two disjoint parts of `subset`, a bit mask of numbers."""
    half = (subset - 1) & subset
    while half:
        complement = subset ^ half
        if half > complement:  # each split once
            for one, other in product(reached[half].values(), reached[complement].values()):
                yield from _results(one, other)
        half = (half - 1) & subset
