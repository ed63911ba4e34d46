"""Countdown: reach a target with the four operations, using each given number at most once."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator
from functools import partial

from pydantic import field_validator

from games.tasks.base import Draft, Generated, distinct, ordered
from marl.types import Problem

_QUESTION = "Make {target} from the numbers {numbers} with + - * / and brackets, each number at most once."
_ASKED = re.compile(r"Make (\d{1,6}) from the numbers (\d{1,6}(?: \d{1,6})*)(?: with .*)?", re.ASCII)
Made = tuple[int, str, str]
"""A value, an expression of it and the expression's outermost operator."""


class Countdown(Generated):
    """Countdown problems that have a solution, since they are made from one: `3 5 7` make 22 by `3 * 5 + 7`.

    `facts`: `numbers`, `target`. There are many right answers, so the verifier `countdown` looks at the value.
    """

    kind: str = "countdown"
    count: tuple[int, int] = (3, 4)
    """Fewest and most numbers given."""
    numbers: tuple[int, int] = (1, 25)
    """Smallest and largest number given."""
    targets: tuple[int, int] = (1, 100)
    """Smallest and largest number to be reached."""

    @field_validator("count")
    @classmethod
    def _some(cls, count: tuple[int, int]) -> tuple[int, int]:
        return ordered(count, "count", 2, 6)

    @field_validator("numbers", "targets")
    @classmethod
    def _positive(cls, values: tuple[int, int]) -> tuple[int, int]:
        return ordered(values, "numbers and targets", 1, 10**6 - 1)

    def draw(self, rng: random.Random) -> Draft:
        for _ in range(10_000):
            numbers = [rng.randint(*self.numbers) for _ in range(rng.randint(*self.count))]
            value, solution, _ = _combined(rng, numbers)
            if self.targets[0] <= value <= self.targets[1] and value not in numbers:
                return _draft(numbers, value, solution)
        raise ValueError(f"targets: {list(self.targets)} is out of reach of numbers within {list(self.numbers)}")

    def read(self, text: str) -> Draft | None:
        asked = _ASKED.fullmatch(text.strip())
        if asked is None:
            return None
        target, numbers = int(asked[1]), [int(number) for number in asked[2].split()]
        within = all(self.numbers[0] <= number <= self.numbers[1] for number in numbers)
        fits = self.count[0] <= len(numbers) <= self.count[1]
        if not (within and fits and self.targets[0] <= target <= self.targets[1]) or target in numbers:
            return None
        solution = solve(numbers, target)
        return None if solution is None else _draft(numbers, target, solution)


def _draft(numbers: list[int], target: int, solution: str) -> Draft:
    key = f"{' '.join(map(str, sorted(numbers)))} -> {target}"
    # Numbers first: each one more than doubles what can be tried. Then the steps that a solution takes.
    difficulty = 10 * len(numbers) + sum(solution.count(operator) for operator in "*/-") / 10
    return Draft(key, difficulty, partial(_write, key, numbers, target, solution))


def _write(key: str, numbers: list[int], target: int, solution: str) -> Problem:
    question = _QUESTION.format(target=target, numbers=" ".join(map(str, numbers)))
    total = [" + ".join(map(str, numbers))] if sum(numbers) != target else []
    # The target itself has the right value, but is no number given.
    wrong = distinct([*total, str(target), f"{solution} + {numbers[0]}", f"{solution} - {numbers[-1]}"], solution)
    return Problem(key, question, solution, wrong, {"numbers": numbers, "target": target})


def _combined(rng: random.Random, numbers: list[int]) -> Made:
    """All the numbers, combined two by two at random."""
    left: list[Made] = [(number, str(number), "") for number in numbers]
    while len(left) > 1:
        rng.shuffle(left)
        left.append(rng.choice(list(_results(left.pop(), left.pop()))))
    return left[0]


def _results(one: Made, other: Made) -> Iterator[Made]:
    """What one operation makes of two values; whole and positive, as in the game on television."""
    big, small = (one, other) if one[0] >= other[0] else (other, one)
    yield big[0] + small[0], _written(big, "+", small), "+"
    yield big[0] * small[0], _written(big, "*", small), "*"
    if big[0] > small[0]:
        yield big[0] - small[0], _written(big, "-", small), "-"
    if big[0] % small[0] == 0:
        yield big[0] // small[0], _written(big, "/", small), "/"


def _written(left: Made, operator: str, right: Made) -> str:
    """With brackets where the order of operations asks for them."""
    loose = {"+": (), "-": (), "*": ("+", "-"), "/": ("+", "-")}[operator]
    tight = {"+": (), "-": ("+", "-"), "*": ("+", "-"), "/": ("+", "-", "*", "/")}[operator]
    first = f"({left[1]})" if left[2] in loose else left[1]
    second = f"({right[1]})" if right[2] in tight else right[1]
    return f"{first} {operator} {second}"


def solve(numbers: list[int], target: int) -> str | None:
    """An expression that makes `target` of some of the numbers, or None; tries everything, few numbers first."""
    if target in numbers:
        return str(target)
    reached: dict[int, dict[int, Made]] = {1 << i: {n: (n, str(n), "")} for i, n in enumerate(numbers)}
    for chosen in sorted(range(1, 1 << len(numbers)), key=int.bit_count):
        values = reached.setdefault(chosen, {})
        for made in _pairs(reached, chosen):
            if made[0] == target:
                return made[1]
            values.setdefault(made[0], made)
    return None


def _pairs(reached: dict[int, dict[int, Made]], chosen: int) -> Iterable[Made]:
    """What one operation makes of the values of two halves of `chosen`, a set of numbers written as bits."""
    part = (chosen - 1) & chosen
    while part:
        rest = chosen ^ part
        if part > rest:
            for one in reached[part].values():
                for other in reached[rest].values():
                    yield from _results(one, other)
        part = (part - 1) & chosen
