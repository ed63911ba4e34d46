"""Countdown task: reach a target with the four operations, using each number at most once."""

from __future__ import annotations

import random
import re
from functools import partial
from itertools import product, starmap
from typing import Annotated, NamedTuple

from marl.core.types import Problem
from marl.games.tasks.base import GeneratedTask, LazyProblem, first_distinct_wrong_answers, validate_range_within

_QUESTION = "Make {target} from the numbers {numbers} with + - * / and brackets, each number at most once."
_QUESTION_PATTERN = re.compile(r"Make (\d{1,6}) from the numbers (\d{1,6}(?: \d{1,6})*)(?: with .*)?", re.ASCII)


class ValuedExpression(NamedTuple):
    """Arithmetic expression of some of a problem's numbers, with its value."""

    value: int
    expression: str
    operator: str = ""
    """Outermost operator of the expression, or "" for a single number."""


class CountdownTask(GeneratedTask):
    """Countdown problems with a known solution: `3 5 7` make 22 by `3 * 5 + 7`.

    `facts`: `numbers`, `target`. A problem has many right answers, so that the verifier `countdown_expression` computes
    the value of an answer.
    """

    kind: str = "countdown"
    count: Annotated[tuple[int, int], validate_range_within(2, 6)] = (3, 4)
    """Minimum and maximum count of numbers in a problem."""
    numbers: Annotated[tuple[int, int], validate_range_within(1, 10**6 - 1)] = (1, 25)
    """Smallest and largest number."""
    targets: Annotated[tuple[int, int], validate_range_within(1, 10**6 - 1)] = (1, 100)
    """Smallest and largest target."""

    @property
    def problem_posing_instructions(self) -> str:
        low, high = self.count
        return (
            f"'Make T from the numbers A B C': {low} to {high} numbers from {self.numbers[0]} to {self.numbers[1]}, "
            f"and a target from {self.targets[0]} to {self.targets[1]} that can be reached; the solution is worked out"
        )

    @property
    def max_draws(self) -> int:
        return 1_200_000 // self.count[1]

    @property
    def no_problem_fits_message(self) -> str:
        return f"targets: {list(self.targets)} is out of reach of numbers within {list(self.numbers)}"

    def draw_problem(self, rng: random.Random) -> LazyProblem | None:
        numbers = [rng.randint(*self.numbers) for _ in range(rng.randint(*self.count))]
        # The target is reachable: it is computed by combining random pairs with random operations.
        remaining = [ValuedExpression(number, str(number)) for number in numbers]
        while len(remaining) > 1:
            rng.shuffle(remaining)
            big, small = _larger_first(remaining.pop(), remaining.pop())
            operator, value = rng.choice(list(_results_by_operator(big.value, small.value).items()))
            remaining.append(_join_with_operator(value, big, operator, small))
        target, solution, _ = remaining[0]
        if not self.targets[0] <= target <= self.targets[1] or target in numbers:
            return None
        return _make_lazy_problem(numbers, target, solution)

    def read_posed_problem(self, text: str) -> LazyProblem | None:
        match = _QUESTION_PATTERN.fullmatch(text.strip())
        if match is None:
            return None
        target, numbers = int(match[1]), list(map(int, match[2].split()))
        if min(numbers) < self.numbers[0] or max(numbers) > self.numbers[1]:
            return None
        if not self.count[0] <= len(numbers) <= self.count[1]:
            return None
        if not self.targets[0] <= target <= self.targets[1] or target in numbers:
            return None
        solution = find_expression_for_target(numbers, target)
        return None if solution is None else _make_lazy_problem(numbers, target, solution)


def _make_lazy_problem(numbers: list[int], target: int, solution: str) -> LazyProblem:
    key = f"{' '.join(map(str, sorted(numbers)))} -> {target}"
    # Each number more than doubles the search, so the count dominates; operators other than + break ties.
    difficulty = 10 * len(numbers) + sum(solution.count(operator) for operator in "*/-") / 10
    return LazyProblem(key, difficulty, partial(_build_problem, key, numbers, target, solution))


def _build_problem(key: str, numbers: list[int], target: int, solution: str) -> Problem:
    question = _QUESTION.format(target=target, numbers=" ".join(map(str, numbers)))
    # `str(target)` is a wrong answer: it has the right value, but does not use the given numbers.
    candidates = [str(target), f"{solution} + {numbers[0]}", f"{solution} - {numbers[-1]}"]
    if sum(numbers) != target:
        candidates.insert(0, " + ".join(map(str, numbers)))
    wrong = first_distinct_wrong_answers(candidates, solution)
    return Problem(key, question, solution, wrong, {"numbers": numbers, "target": target})


def _larger_first(one: ValuedExpression, other: ValuedExpression) -> tuple[ValuedExpression, ValuedExpression]:
    return (one, other) if one.value >= other.value else (other, one)


def _results_by_operator(big: int, small: int) -> dict[str, int]:
    """Return the results of the operations on two numbers: positive integers only, as in the television game."""
    results = {"+": big + small, "*": big * small}
    if big > small:
        results["-"] = big - small
    if big % small == 0:
        results["/"] = big // small
    return results


def _join_with_operator(value: int, left: ValuedExpression, operator: str, right: ValuedExpression) -> ValuedExpression:
    """Return the combination of `left` and `right`, with brackets where the order of operations needs them."""
    # Subtraction and division are not associative, so that their right operand needs more brackets.
    loose = {"+": (), "-": (), "*": ("+", "-"), "/": ("+", "-")}[operator]
    tight = {"+": (), "-": ("+", "-"), "*": ("+", "-"), "/": ("+", "-", "*", "/")}[operator]
    first = f"({left.expression})" if left.operator in loose else left.expression
    second = f"({right.expression})" if right.operator in tight else right.expression
    return ValuedExpression(value, f"{first} {operator} {second}", operator)


def find_expression_for_target(numbers: list[int], target: int) -> str | None:
    """Return an expression of some of `numbers` with the value `target`, or None if there is none.

    All expressions are searched, those of few numbers first.
    """
    if target in numbers:
        return str(target)
    # All values of a subset of the numbers (a bit mask), each with one expression.
    reached: dict[int, dict[int, ValuedExpression]] = {}
    for index, number in enumerate(numbers):
        reached[1 << index] = {number: ValuedExpression(number, str(number))}
    for subset in sorted(range(1, 1 << len(numbers)), key=int.bit_count):
        values = reached.setdefault(subset, {})
        half = (subset - 1) & subset
        while half:
            complement = subset ^ half
            # (half, complement) and (complement, half) are the same split, so only one of them is searched.
            pairs = product(reached[half].values(), reached[complement].values()) if half > complement else ()
            for big, small in starmap(_larger_first, pairs):
                for operator, value in _results_by_operator(big.value, small.value).items():
                    if value not in values:
                        values[value] = _join_with_operator(value, big, operator, small)
            if target in values:
                return values[target].expression
            half = (half - 1) & subset
    return None
