"""Logic grids task: small zebra puzzles with exactly one solution."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import lru_cache, partial
from itertools import combinations, count, permutations, product
from math import factorial
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field, model_validator

from marl.core.types import Problem
from marl.games.tasks.base import GeneratedTask, ProblemDraft, digest, range_within, wrong_answers

_MAX_ARRANGEMENTS = 400_000
"""Maximum number of arrangements of a puzzle, all held in memory at once."""


class Attribute(NamedTuple):
    """A property with a different value in every house."""

    name: str
    values: tuple[str, ...]
    holder: str
    """Template for the person with a value, for clues."""
    question: str
    """Template for the question about the value of the person `{who}`."""


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
        "drink", ("tea", "milk", "coffee", "juice", "water"), "the person who drinks {}", "What does {who} drink?"
    ),
)
_CLUE_TEXTS = {
    "same": "{a} is {b}.",
    "other": "{a} is not {b}.",
    "next": "{a} lives next to {b}.",
    "left": "{a} lives somewhere to the left of {b}.",
    "at": "{a} lives in house {b}.",
    "not at": "{a} does not live in house {b}.",
}


class Clue(NamedTuple):
    """A relation of two values, or of a value and a house number."""

    relation: str
    a: str
    b: str


class LogicGridsTask(GeneratedTask):
    """Houses in a row and clues to their inhabitants; more houses and attributes are harder.

    `facts`: `houses`, `clues` as [relation, value, value], `grid` (attribute -> values from left to right), `choices`.
    """

    kind: str = "logic_grids"
    houses: Annotated[tuple[int, int], range_within(2, 5)] = (3, 3)
    """Minimum and maximum number of houses."""
    attributes: Annotated[tuple[int, int], range_within(2, len(ATTRIBUTES))] = (2, 3)
    """Minimum and maximum number of attributes: person, colour, pet, drink."""
    spare: int = Field(0, ge=0)
    """Number of unnecessary clues."""

    @model_validator(mode="after")
    def _check_size(self) -> LogicGridsTask:
        if factorial(self.houses[1]) ** self.attributes[1] > _MAX_ARRANGEMENTS:
            raise ValueError(
                f"houses: {self.houses[1]} with attributes: {self.attributes[1]} is too much to be searched; choices: "
                "up to 5 houses with 2 attributes, up to 4 houses with 4"
            )
        return self

    @property
    def secret_facts(self) -> frozenset[str]:
        return frozenset({"grid"})

    def draw(self, rng: random.Random) -> ProblemDraft:
        puzzle = _draw_puzzle(rng, rng.randint(*self.houses), rng.randint(*self.attributes), self.spare)
        key = digest([puzzle.grid, sorted(puzzle.clues), puzzle.target, puzzle.who])
        size = len(puzzle.grid) * len(puzzle.grid[ATTRIBUTES[0].name])
        return ProblemDraft(key, size * 10 + len(puzzle.clues), partial(_write, key, puzzle))


class Puzzle(NamedTuple):
    """Clues, the only grid that satisfies them, and a question."""

    grid: Mapping[str, list[str]]
    clues: tuple[Clue, ...]
    target: str
    """Attribute asked for, of the person with the value `who`."""
    who: str


def _draw_puzzle(rng: random.Random, houses: int, attributes: int, spare: int) -> Puzzle:
    # The order of the draws determines every problem of a seed.
    used = ATTRIBUTES[:attributes]
    grid = {attribute.name: list(attribute.values[:houses]) for attribute in used}
    for values in grid.values():
        rng.shuffle(values)
    true = _true_clues(grid)
    rng.shuffle(true)
    needed = _needed_clues(true, _house_arrays(houses, attributes))
    extra = [clue for clue in true if clue not in needed][:spare]
    clues = [*needed, *extra]
    rng.shuffle(clues)
    target = rng.choice(used)
    source = rng.choice([attribute for attribute in used if attribute is not target])
    return Puzzle(grid, tuple(clues), target.name, rng.choice(grid[source.name]))


def _true_clues(grid: Mapping[str, list[str]]) -> list[Clue]:
    """Return all clues that are true of `grid`."""
    houses, attribute_of = dict[str, int](), dict[str, str]()
    for name, values in grid.items():
        houses.update(zip(values, count(1), strict=False))
        attribute_of.update(dict.fromkeys(values, name))
    clues = [Clue("at", value, str(number)) for value, number in houses.items()]
    for value, number in product(houses, range(1, len(houses) // len(grid) + 1)):
        if number != houses[value]:
            clues.append(Clue("not at", value, str(number)))
    for a, b in combinations(houses, 2):
        gap = houses[b] - houses[a]
        if gap:
            clues.append(Clue("left", a, b) if gap > 0 else Clue("left", b, a))
        if abs(gap) == 1:
            clues.append(Clue("next", a, b))
        if attribute_of[a] != attribute_of[b]:
            clues.append(Clue("other" if gap else "same", a, b))
    return clues


@lru_cache(maxsize=8)
def _house_arrays(houses: int, attributes: int) -> Mapping[str, np.ndarray]:
    """Return value -> its house number in each arrangement (int8 [arrangements])."""
    orders = np.array(list(permutations(range(1, houses + 1))), dtype=np.int8)
    picks = np.array(list(product(range(len(orders)), repeat=attributes)))
    house_numbers = dict[str, np.ndarray]()
    for i, attribute in enumerate(ATTRIBUTES[:attributes]):
        for j, value in enumerate(attribute.values[:houses]):
            house_numbers[value] = orders[picks[:, i], j]
    return house_numbers


def _fits(clue: Clue, houses: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return a mask of the arrangements in which `clue` is true (bool [arrangements])."""
    a = houses[clue.a]
    b = int(clue.b) if clue.relation in ("at", "not at") else houses[clue.b]
    if clue.relation in ("same", "at"):
        return a == b
    if clue.relation in ("other", "not at"):
        return a != b
    return a < b if clue.relation == "left" else abs(a - b) == 1


def _needed_clues(clues: list[Clue], houses: Mapping[str, np.ndarray]) -> list[Clue]:
    """Return a minimal subset of `clues` with a single arrangement: without any of them, there are several."""
    needed: list[Clue] = []
    possible = _fits(clues[0], houses)
    # Number of needed clues violated by each arrangement: a clue is redundant if no arrangement violates it alone.
    violations = np.zeros(possible.shape, dtype=np.int16)
    for clue in clues:
        fewer = possible & _fits(clue, houses)
        if not needed or fewer.sum() < possible.sum():
            needed.append(clue)
            violations += ~_fits(clue, houses)
            possible = fewer
        if possible.sum() == 1:
            break
    for clue in list(needed):
        violated = ~_fits(clue, houses)
        if np.count_nonzero(violations == violated) == 1:
            needed.remove(clue)
            violations -= violated
    return needed


def _write(key: str, puzzle: Puzzle) -> Problem:
    """Return the problem with its question, answer and facts in words."""
    attributes = {attribute.name: attribute for attribute in ATTRIBUTES}
    grid = puzzle.grid
    holder = dict[str, str]()
    for name, values in grid.items():
        for value in values:
            holder[value] = attributes[name].holder.format(value)
    clues = [_CLUE_TEXTS[c.relation].format(a=holder[c.a], b=holder.get(c.b, c.b)) for c in puzzle.clues]
    size = len(grid[puzzle.target])
    question = "\n".join(
        [
            f"{size} houses stand in a row, numbered 1 to {size} from left to right. All of them differ in:",
            *(f"- {name}: {', '.join(sorted(values))}" for name, values in grid.items()),
            "Clues:",
            *(f"{i}. {text[0].upper()}{text[1:]}" for i, text in enumerate(clues, 1)),
            attributes[puzzle.target].question.format(who=holder[puzzle.who]),
        ]
    )
    house = next(values.index(puzzle.who) for values in grid.values() if puzzle.who in values)
    answer, choices = grid[puzzle.target][house], sorted(grid[puzzle.target])
    facts = {"houses": size, "clues": [list(clue) for clue in puzzle.clues], "grid": dict(grid), "choices": choices}
    return Problem(key, question, answer, wrong_answers(choices, answer), facts)
