"""Terms of a negotiation: what there is to share out, what it is worth, and how an offer is worded."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import product
from operator import mul
from typing import NamedTuple

Quantities = tuple[int, ...]
"""A number for each kind of item, in the order of the game's `items`."""
ACCEPT, WALK_AWAY, TAKE = "accept", "walk away", "take"
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
"""Numbers in words, from 0. `a` and `an` are 1, too."""

_LAST_SENTENCE = re.compile(r"(?:\A|[.!?;:\n])\s*(?:i\s+)?(?P<act>[^.!?;:\n]+)[.!\s]*\Z", re.IGNORECASE)
_BETWEEN = re.compile(r"\s*,\s*and\s+|\s*,\s*|\s+and\s+|\s+(?=\d)")
_VALUE_OF = {word: number for number, word in enumerate(NUMBERS)} | {"a": 1, "an": 1}


class Bargain(NamedTuple):
    """A pool of items that two agents negotiate about, and the value of one item of each kind to each of the two."""

    pool: Quantities
    values: tuple[Quantities, Quantities]

    def __deepcopy__(self, memo: object) -> Bargain:
        """Return itself: nothing in it changes."""
        return self

    def __str__(self) -> str:
        return " / ".join(" ".join(map(str, numbers)) for numbers in (self.pool, *self.values))

    def payoffs(self, proposer: int, taken: Quantities) -> tuple[int, int]:
        """Return the values to both agents if `proposer` (0 or 1) gets `taken` and the other one the rest."""
        rest = tuple(count - number for count, number in zip(self.pool, taken, strict=True))
        first, second = (rest, taken) if proposer else (taken, rest)
        return sum(map(mul, self.values[0], first)), sum(map(mul, self.values[1], second))


@cache
def outcomes(bargain: Bargain) -> frozenset[tuple[int, int]]:
    """Return the values to both agents of every division of the pool."""
    return frozenset(bargain.payoffs(0, taken) for taken in product(*(range(count + 1) for count in bargain.pool)))


def is_efficient(bargain: Bargain, reached: tuple[int, int]) -> bool:
    """Return True if no division is better for one agent and not worse for the other (Pareto efficiency)."""
    first, second = reached
    return not any(a >= first and b >= second and (a, b) != reached for a, b in outcomes(bargain))


@cache
def bargains(kinds: int, items: tuple[int, int], total: int) -> Mapping[str, Bargain]:
    """Return all bargains of "Deal or No Deal" (Lewis et al., arXiv 1706.05125, section 2.1), by their text.

    The pool holds at least one item of each kind and, in all, between `items[0]` and `items[1]`. It is worth `total` to
    each agent. Every kind is worth something to one of them, and one at least to both.
    """
    known: dict[str, Bargain] = {}
    for pool in product(range(1, items[1] + 1), repeat=kinds):
        if items[0] <= sum(pool) <= items[1]:
            valuations = _valuations(pool, total)
            pairs = product(valuations, valuations)
            known |= {str(bargain := Bargain(pool, pair)): bargain for pair in pairs if _has_interest(*pair)}
    return known


def _valuations(pool: Quantities, total: int) -> list[Quantities]:
    """Return the values of single items with which the pool is worth `total`."""
    count, *rest = pool
    if not rest:
        return [(total // count,)] if total % count == 0 else []
    values = range(total // count + 1)
    return [(value, *more) for value in values for more in _valuations(tuple(rest), total - value * count)]


def _has_interest(first: Quantities, second: Quantities) -> bool:
    pairs = list(zip(first, second, strict=True))
    return all(map(any, pairs)) and any(map(all, pairs))


@cache
def offers(pool: Quantities, items: tuple[str, ...]) -> tuple[str, ...]:
    """Return all offers that can be made about a pool."""
    return tuple(offer(taken, items) for taken in product(*(range(count + 1) for count in pool)))


def offer(taken: Quantities, items: Sequence[str]) -> str:
    """Return the move that offers to take `taken` and to leave the rest, such as `take 1 book 0 hat 2 ball`."""
    return " ".join([TAKE, *(f"{number} {item}" for number, item in zip(taken, items, strict=True))])


def quantities(move: str) -> Quantities:
    """Return what an offer takes: the inverse of `offer`."""
    return tuple(map(int, move.split()[1::2]))


def read_move(text: str, items: Sequence[str]) -> str | None:
    """Return the move that the last sentence of `text` makes, as `offer` words it; None if it makes none.

    The sentence is `accept`, `walk away`, `take nothing` or `take` and a list of numbers and items, after `I` or not:
    `I take 2 books, a hat and three balls.` Items that are not named are left to the other. A sentence that names an
    item twice, or says anything else, is no move: `I won't accept` is no acceptance.
    """
    sentence = _LAST_SENTENCE.search(text.strip())
    act = " ".join(sentence["act"].lower().split()) if sentence else ""
    if act in (ACCEPT, WALK_AWAY):
        return act
    verb, _, listed = act.partition(" ")
    if verb != TAKE or not listed:
        return None
    taken: dict[str, int] = {}
    for entry in _BETWEEN.split(listed) if listed != "nothing" else ():
        number, _, name = entry.partition(" ")
        item = next((item for item in items if name in (item, f"{item}s", f"{item}es")), None)
        count = int(number) if number.isascii() and number.isdecimal() and len(number) < 4 else _VALUE_OF.get(number)
        if item is None or count is None or item in taken:
            return None
        taken[item] = count
    return offer(tuple(taken.get(item, 0) for item in items), items)
