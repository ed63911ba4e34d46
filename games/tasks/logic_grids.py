"""Logic grids task: small zebra puzzles with exactly one solution."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Mapping
from functools import lru_cache, partial, reduce
from itertools import combinations, count, permutations, product
from math import factorial
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field, model_validator

from marl.core.types import Problem
from marl.games.tasks.base import (
    GeneratedTask,
    LazyProblem,
    first_distinct_wrong_answers,
    json_hash,
    validate_range_within,
)

_MAX_ARRANGEMENTS = 400_000
"""Maximum number of arrangements of a puzzle, all held in memory at once."""


class HouseAttribute(NamedTuple):
    """A property with a different value in every house, such as the colour."""

    name: str
    values: tuple[str, ...]
    """Possible values; a puzzle with n houses uses the first n."""
    holder: str
    """Template that names the person with a value in clues: `{}` is the value."""
    question: str
    """Template of the question for one person's value of the attribute; `{who}` is the person."""


ATTRIBUTES = (
    HouseAttribute("person", ("Anna", "Ben", "Clara", "David", "Emma"), "{}", "Who is {who}?"),
    HouseAttribute(
        "colour",
        ("red", "blue", "green", "white", "yellow"),
        "the person in the {} house",
        "Which colour is the house of {who}?",
    ),
    HouseAttribute("pet", ("cat", "dog", "bird", "fish", "horse"), "the owner of the {}", "Which pet does {who} own?"),
    HouseAttribute(
        "drink", ("tea", "milk", "coffee", "juice", "water"), "the person who drinks {}", "What does {who} drink?"
    ),
)
_RELATIONS: Mapping[str, Callable[[int, int], bool]] = {
    "same": operator.eq,
    "other": operator.ne,
    "next": lambda a, b: abs(a - b) == 1,
    "left": operator.lt,
    "at": operator.eq,
    "not at": operator.ne,
}
"""Relation of a clue -> function of two house numbers that returns True if the relation holds."""
_ALL = -1
"""Set of all arrangements: an integer whose bits are all 1."""
_CLUE_TEXTS = {
    "same": "{a} is {b}.",
    "other": "{a} is not {b}.",
    "next": "{a} lives next to {b}.",
    "left": "{a} lives somewhere to the left of {b}.",
    "at": "{a} lives in house {b}.",
    "not at": "{a} does not live in house {b}.",
}


class Clue(NamedTuple):
    """A relation between two values, or between a value and a house number."""

    relation: str
    """Key of the clue's text in `_CLUE_TEXTS`."""
    a: str
    """First value in the relation."""
    b: str
    """Second value in the relation, or the number of a house."""


class LogicGridsTask(GeneratedTask):
    """Houses in a row and clues to their inhabitants; more houses and attributes are harder.

    `facts`: `houses`, `clues` as [relation, value, value], `grid` (attribute -> values from left to right), `choices`.
    """

    kind: str = "logic_grids"
    houses: Annotated[tuple[int, int], validate_range_within(2, 5)] = (3, 3)
    """Minimum and maximum number of houses."""
    attributes: Annotated[tuple[int, int], validate_range_within(2, len(ATTRIBUTES))] = (2, 3)
    """Minimum and maximum number of attributes: person, colour, pet, drink."""
    spare: int = Field(default=0, ge=0)
    """Number of clues beyond a minimal set that determines the solution."""

    @model_validator(mode="after")
    def _check_puzzle_size(self) -> LogicGridsTask:
        if self.arrangement_count > _MAX_ARRANGEMENTS:
            raise ValueError(
                f"houses: {self.houses[1]} with attributes: {self.attributes[1]} is too much to be searched; choices: "
                "up to 5 houses with 2 attributes, up to 4 houses with 4"
            )
        return self

    @property
    def arrangement_count(self) -> int:
        """Number of arrangements of the largest puzzle."""
        return factorial(self.houses[1]) ** self.attributes[1]

    @property
    def max_draws(self) -> int:
        return 10_000 if self.arrangement_count < 20_000 else 3_000

    @property
    def secret_fact_names(self) -> frozenset[str]:
        return frozenset({"grid"})

    def draw_problem(self, rng: random.Random) -> LazyProblem | None:
        # The order of the draws determines every problem of a seed.
        house_count, attribute_count = rng.randint(*self.houses), rng.randint(*self.attributes)
        used = ATTRIBUTES[:attribute_count]
        grid = dict[str, list[str]]()
        for attribute in used:
            grid[attribute.name] = list(attribute.values[:house_count])
            rng.shuffle(grid[attribute.name])
        true_clues = _all_true_clues(grid)
        rng.shuffle(true_clues)
        clues = _minimal_clues(true_clues, _arrangements_by_house(house_count, attribute_count))
        clues += [clue for clue in true_clues if clue not in clues][: self.spare]
        rng.shuffle(clues)
        target = rng.choice(used)
        source = rng.choice([attribute for attribute in used if attribute is not target])
        puzzle = SolvedLogicGrid(grid, tuple(clues), target.name, rng.choice(grid[source.name]))
        key = json_hash([puzzle.grid, sorted(puzzle.clues), puzzle.target, puzzle.who])
        difficulty = attribute_count * house_count * 10 + len(clues)
        return LazyProblem(key, difficulty, partial(_build_problem, key, puzzle))


class SolvedLogicGrid(NamedTuple):
    """Clues, the only arrangement that satisfies them, and a question."""

    grid: Mapping[str, list[str]]
    """Values of each attribute, from the first house to the last."""
    clues: tuple[Clue, ...]
    target: str
    """Name of the attribute that the question asks for."""
    who: str
    """Value by which the question names the person."""


def _all_true_clues(values_by_attribute: Mapping[str, list[str]]) -> list[Clue]:
    """Return all clues that are true of an arrangement, given as the values of each attribute from left to right."""
    house_of, attribute_of = dict[str, int](), dict[str, str]()
    for name, values in values_by_attribute.items():
        house_of.update(zip(values, count(1), strict=False))
        attribute_of.update(dict.fromkeys(values, name))
    clues = [Clue("at", value, str(house)) for value, house in house_of.items()]
    for value, house in product(house_of, range(1, len(house_of) // len(values_by_attribute) + 1)):
        if house != house_of[value]:
            clues.append(Clue("not at", value, str(house)))
    for a, b in combinations(house_of, 2):
        gap = house_of[b] - house_of[a]
        if gap:
            clues.append(Clue("left", a, b) if gap > 0 else Clue("left", b, a))
        if abs(gap) == 1:
            clues.append(Clue("next", a, b))
        if attribute_of[a] != attribute_of[b]:
            clues.append(Clue("other" if gap else "same", a, b))
    return clues


@lru_cache(maxsize=8)
def _arrangements_by_house(house_count: int, attribute_count: int) -> Mapping[str, tuple[int, ...]]:
    """Return, for each value, the set of arrangements that place it in house 1, in house 2, and so on.

    A set is an integer with one bit per arrangement, because integers intersect fast.
    """
    orders = np.array(list(permutations(range(house_count))), dtype=np.int8)
    order_indices = np.array(list(product(range(len(orders)), repeat=attribute_count)))
    arrangements = dict[str, tuple[int, ...]]()
    for i, attribute in enumerate(ATTRIBUTES[:attribute_count]):
        for j, value in enumerate(attribute.values[:house_count]):
            house_indices = orders[order_indices[:, i], j]
            masks = [np.packbits(house_indices == house) for house in range(house_count)]
            arrangements[value] = tuple(int.from_bytes(mask.tobytes(), "big") for mask in masks)
    return arrangements


def _consistent_arrangements(clue: Clue, arrangements_by_house: Mapping[str, tuple[int, ...]]) -> int:
    """Return the set of arrangements in which `clue` is true, one bit per arrangement."""
    with_a = arrangements_by_house[clue.a]
    if clue.relation in ("at", "not at"):
        # A house is where it is in all arrangements.
        with_b = tuple(_ALL if house == int(clue.b) else 0 for house in range(1, len(with_a) + 1))
    else:
        with_b = arrangements_by_house[clue.b]
    consistent = 0
    for (a, in_house_a), (b, in_house_b) in product(enumerate(with_a), enumerate(with_b)):
        if _RELATIONS[clue.relation](a, b):
            consistent |= in_house_a & in_house_b
    return consistent


def _minimal_clues(clues: list[Clue], arrangements_by_house: Mapping[str, tuple[int, ...]]) -> list[Clue]:
    """Return a minimal subset of `clues` that fits a single arrangement; fewer clues would fit several."""
    needed = dict[Clue, int]()
    possible = _ALL
    for clue in clues:
        consistent = _consistent_arrangements(clue, arrangements_by_house)
        if possible & consistent != possible:
            needed[clue] = consistent
            possible &= consistent
        if _has_one_element(possible):
            break
    for clue in list(needed):
        others = [consistent for other, consistent in needed.items() if other != clue]
        # A clue is redundant if the others fit the same single arrangement.
        if _has_one_element(reduce(operator.and_, others, _ALL)):
            del needed[clue]
    return list(needed)


def _has_one_element(arrangements: int) -> bool:
    """Return True if a non-empty set of arrangements, with one bit each, has one element."""
    return arrangements & (arrangements - 1) == 0


def _build_problem(key: str, puzzle: SolvedLogicGrid) -> Problem:
    """Return the problem with its question, answer and facts in words."""
    grid = puzzle.grid
    size = len(grid[puzzle.target])
    lines = [f"{size} houses stand in a row, numbered 1 to {size} from left to right. All of them differ in:"]
    holder = dict[str, str]()  # attribute value (such as `red`) -> phrase for the person who has it
    answer = last_line = ""
    for attribute in ATTRIBUTES[: len(grid)]:
        values = grid[attribute.name]
        lines.append(f"- {attribute.name}: {', '.join(sorted(values))}")
        holder |= zip(values, map(attribute.holder.format, values), strict=True)
        if puzzle.who in values:
            answer = grid[puzzle.target][values.index(puzzle.who)]
        if attribute.name == puzzle.target:
            last_line = attribute.question
    lines.append("Clues:")
    for number, clue in enumerate(puzzle.clues, 1):
        text = _CLUE_TEXTS[clue.relation].format(a=holder[clue.a], b=holder.get(clue.b, clue.b))
        lines.append(f"{number}. {text[0].upper()}{text[1:]}")
    question = "\n".join([*lines, last_line.format(who=holder[puzzle.who])])
    choices = sorted(grid[puzzle.target])
    facts = {"houses": size, "clues": list(map(list, puzzle.clues)), "grid": dict(grid), "choices": choices}
    return Problem(key, question, answer, first_distinct_wrong_answers(choices, answer), facts)
