"""Small zebra puzzles: who lives where, from clues that leave one possibility."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import lru_cache, partial
from itertools import combinations, permutations, product
from math import factorial
from typing import NamedTuple

import numpy as np
from pydantic import Field, model_validator

from games.tasks.base import Draft, Generated, digest, distinct
from marl.types import Problem

_MOST = 400_000
"""Arrangements of a puzzle that are looked through at once."""


class Attribute(NamedTuple):
    """What tells the houses apart in one respect."""

    name: str
    values: tuple[str, ...]
    holder: str
    """Whoever has a value, as in a clue."""
    asks: str
    """For the value of whoever `{who}` is."""


ATTRIBUTES = (
    Attribute("person", ("Anna", "Ben", "Clara", "David", "Emma"), "{}", "Who is {who}?"),
    Attribute(
        "colour",
        ("red", "blue", "green", "white", "yellow"),
        "the person in the {} house",
        "Which colour is the house of {who}?",
    ),
    Attribute("pet", ("cat", "dog", "bird", "fish", "horse"), "the owner of the {}", "Which pet does {who} own?"),
    Attribute(
        "drink",
        ("tea", "milk", "coffee", "juice", "water"),
        "the person who drinks {}",
        "What does {who} drink?",
    ),
)
_SAYS = {
    "same": "{a} is {b}.",
    "other": "{a} is not {b}.",
    "next": "{a} lives next to {b}.",
    "left": "{a} lives somewhere to the left of {b}.",
    "at": "{a} lives in house {b}.",
    "not at": "{a} does not live in house {b}.",
}


class Clue(NamedTuple):
    """A relation of two values, or of a value and a house number."""

    says: str
    a: str
    b: str


class LogicGrids(Generated):
    """Houses in a row and clues to who lives in which; more houses and attributes, more to think.

    `facts`: `houses`, `clues` as [relation, value, value], `grid` (attribute -> values from left to right), `choices`.
    """

    kind: str = "logic_grids"
    houses: tuple[int, int] = (3, 3)
    """Fewest and most houses."""
    attributes: tuple[int, int] = (2, 3)
    """Fewest and most attributes: person, colour, pet, drink."""
    spare: int = Field(0, ge=0)
    """Clues beyond those that are needed."""

    @model_validator(mode="after")
    def _small(self) -> LogicGrids:
        for name, (low, high), most in (("houses", self.houses, 5), ("attributes", self.attributes, len(ATTRIBUTES))):
            if not 2 <= low <= high <= most:
                raise ValueError(f"{name}: {[low, high]} is no range; choices: [low, high] within 2 and {most}")
        if factorial(self.houses[1]) ** self.attributes[1] > _MOST:
            raise ValueError(
                f"houses: {self.houses[1]} with attributes: {self.attributes[1]} is too much to look through; choices: "
                "up to 5 houses with 2 attributes, up to 4 houses with 4"
            )
        return self

    def draw(self, rng: random.Random) -> Draft:
        puzzle = _puzzle(rng, rng.randint(*self.houses), rng.randint(*self.attributes), self.spare)
        key = digest([puzzle.grid, sorted(puzzle.clues), puzzle.asked, puzzle.who])
        size = len(puzzle.grid) * len(puzzle.grid[ATTRIBUTES[0].name])
        return Draft(key, size * 10 + len(puzzle.clues), partial(_write, key, puzzle))


class Puzzle(NamedTuple):
    """Clues with the only grid that fits them, and what is asked."""

    grid: Mapping[str, list[str]]
    clues: tuple[Clue, ...]
    asked: str
    who: str


def _puzzle(rng: random.Random, houses: int, attributes: int, spare: int) -> Puzzle:
    chosen = ATTRIBUTES[:attributes]
    grid = {attribute.name: list(attribute.values[:houses]) for attribute in chosen}
    for values in grid.values():
        rng.shuffle(values)
    true = _true_clues(grid)
    rng.shuffle(true)
    needed = _needed(true, _fits(houses, attributes))
    extra = [clue for clue in true if clue not in needed][:spare]
    clues = [*needed, *extra]
    rng.shuffle(clues)
    asked = rng.choice(chosen)
    other = rng.choice([attribute for attribute in chosen if attribute is not asked])
    return Puzzle(grid, tuple(clues), asked.name, rng.choice(grid[other.name]))


def _true_clues(grid: Mapping[str, list[str]]) -> list[Clue]:
    houses = {value: number for values in grid.values() for number, value in enumerate(values, 1)}
    kind = {value: name for name, values in grid.items() for value in values}
    clues = [Clue("at", value, str(number)) for value, number in houses.items()]
    clues += [
        Clue("not at", v, str(n)) for v, at in houses.items() for n in range(1, len(houses) // len(grid) + 1) if n != at
    ]
    for a, b in combinations(houses, 2):
        gap = houses[b] - houses[a]
        if gap:
            clues.append(Clue("left", a, b) if gap > 0 else Clue("left", b, a))
        if abs(gap) == 1:
            clues.append(Clue("next", a, b))
        if kind[a] != kind[b]:
            clues.append(Clue("other" if gap else "same", a, b))
    return clues


class Fits:
    """Which of all arrangements of some houses fit a clue."""

    def __init__(self, houses: int, attributes: int) -> None:
        orders = np.array(list(permutations(range(1, houses + 1))), dtype=np.int8)
        picks = np.array(list(product(range(len(orders)), repeat=attributes)))
        # [arrangements]: the house that a value is in, under each arrangement.
        self._house = {
            value: orders[picks[:, i], j]
            for i, attribute in enumerate(ATTRIBUTES[:attributes])
            for j, value in enumerate(attribute.values[:houses])
        }

    def __call__(self, clue: Clue) -> np.ndarray:
        """bool [arrangements]"""
        a = self._house[clue.a]
        b = int(clue.b) if clue.says in ("at", "not at") else self._house[clue.b]
        if clue.says in ("same", "at"):
            return a == b
        if clue.says in ("other", "not at"):
            return a != b
        return a < b if clue.says == "left" else abs(a - b) == 1


@lru_cache(maxsize=8)
def _fits(houses: int, attributes: int) -> Fits:
    return Fits(houses, attributes)


def _needed(clues: list[Clue], fits: Fits) -> list[Clue]:
    """Of clues that determine the arrangement, some that do and of which none can be missed."""
    kept: list[Clue] = []
    left = fits(clues[0])
    broken = np.zeros(left.shape, dtype=np.int16)
    for clue in clues:
        fewer = left & fits(clue)
        if not kept or fewer.sum() < left.sum():
            kept.append(clue)
            broken += ~fits(clue)
            left = fewer
        if left.sum() == 1:
            break
    for clue in list(kept):
        breaks = ~fits(clue)
        if np.count_nonzero(broken == breaks) == 1:
            kept.remove(clue)
            broken -= breaks
    return kept


def _write(key: str, puzzle: Puzzle) -> Problem:
    attributes = {attribute.name: attribute for attribute in ATTRIBUTES}
    grid = puzzle.grid
    holder = {value: attributes[name].holder.format(value) for name, values in grid.items() for value in values}
    houses = len(grid[puzzle.asked])
    said = [_SAYS[c.says].format(a=holder[c.a], b=holder.get(c.b, c.b)) for c in puzzle.clues]
    question = "\n".join(
        [
            f"{houses} houses stand in a row, numbered 1 to {houses} from left to right. All of them differ in:",
            *(f"- {name}: {', '.join(sorted(values))}" for name, values in grid.items()),
            "Clues:",
            *(f"{i}. {text[0].upper()}{text[1:]}" for i, text in enumerate(said, 1)),
            attributes[puzzle.asked].asks.format(who=holder[puzzle.who]),
        ]
    )
    house = next(values.index(puzzle.who) for values in grid.values() if puzzle.who in values)
    answer, choices = grid[puzzle.asked][house], sorted(grid[puzzle.asked])
    facts = {"houses": houses, "clues": [list(clue) for clue in puzzle.clues], "grid": dict(grid), "choices": choices}
    return Problem(key, question, answer, distinct(choices, answer), facts)
