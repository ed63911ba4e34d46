"""Terms of a negotiation: pools and private values of items, and the wording of offers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from operator import mul, sub
from typing import NamedTuple

Quantities = tuple[int, ...]
"""Number of items of each kind, in the order of the game's `items`."""
ACCEPT, WALK_AWAY, TAKE = "accept", "walk away", "take"
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
"""Number words, starting at 0. `a` and `an` also count as 1."""

_LAST_SENTENCE = re.compile(r"(?:\A|[.!?;:\n])\s*(?:i\s+)?(?P<act>[^.!?;:\n]+)[.!\s]*\Z", re.IGNORECASE)
_BETWEEN = re.compile(r"\s*,\s*and\s+|\s*,\s*|\s+and\s+|\s+(?=\d)")
_VALUE_OF = {word: number for number, word in enumerate(NUMBERS)} | {"a": 1, "an": 1}


class Bargain(NamedTuple):
    """A pool of items to divide between two agents, and each agent's values of single items."""

    pool: Quantities
    values: tuple[Quantities, Quantities]
    """For each agent, the value of one item of each kind."""

    def __deepcopy__(self, memo: object) -> Bargain:
        """Return the object itself, as nothing in it can change."""
        return self

    def __str__(self) -> str:
        return " / ".join(" ".join(map(str, numbers)) for numbers in (self.pool, *self.values))

    def payoffs(self, proposer: int, share: Quantities) -> tuple[int, int]:
        """Return the values to both agents if `proposer` (0 or 1) gets `share`, and the other agent all other items."""
        remainder = tuple(map(sub, self.pool, share))
        first, second = (remainder, share) if proposer else (share, remainder)
        return sum(map(mul, self.values[0], first)), sum(map(mul, self.values[1], second))


@cache
def outcomes(bargain: Bargain) -> frozenset[tuple[int, int]]:
    """Return the values to both agents of every division of the pool."""
    return frozenset(bargain.payoffs(0, share) for share in _divisions(bargain.pool))


def _divisions(pool: Quantities) -> Iterator[Quantities]:
    """Yield every possible share of one agent, in lexicographic order."""
    yield from product(*[range(count + 1) for count in pool])


def is_efficient(bargain: Bargain, reached: tuple[int, int]) -> bool:
    """Return True if no division of the pool Pareto-dominates the values `reached`."""
    first, second = reached
    return not any(a >= first and b >= second and (a, b) != reached for a, b in outcomes(bargain))


@cache
def bargains(kinds: int, items: tuple[int, int], total: int) -> Mapping[str, Bargain]:
    """Return text -> bargain for all bargains of "Deal or No Deal" (Lewis et al., arXiv 1706.05125, section 2.1).

    A pool holds at least one item of each of `kinds` kinds and `items[0]` to `items[1]` items in total; its value is
    `total` to each agent. Every kind has value to at least one agent, and some kind has value to both agents.
    """
    by_text: dict[str, Bargain] = {}
    for pool in product(range(1, items[1] + 1), repeat=kinds):
        if not items[0] <= sum(pool) <= items[1]:
            continue
        for first, second in product(_valuations(pool, total), repeat=2):
            pairs = list(zip(first, second, strict=True))
            if all(map(any, pairs)) and any(map(all, pairs)):
                bargain = Bargain(pool, (first, second))
                by_text[str(bargain)] = bargain
    return by_text


def _valuations(pool: Quantities, total: int) -> list[Quantities]:
    """Return all values of single items for which the full pool has the value `total`."""
    count, *other_counts = pool
    if not other_counts:
        return [(total // count,)] if total % count == 0 else []
    valuations: list[Quantities] = []
    for value in range(total // count + 1):
        for other_values in _valuations(tuple(other_counts), total - value * count):
            valuations.append((value, *other_values))
    return valuations


@cache
def offers(pool: Quantities, items: tuple[str, ...]) -> tuple[str, ...]:
    """Return the possible offers about a pool."""
    return tuple(format_offer(share, items) for share in _divisions(pool))


def format_offer(share: Quantities, items: Sequence[str]) -> str:
    """Return the move to take `share` and leave all other items, such as `take 1 book 0 hat 2 ball`."""
    return " ".join([TAKE, *(f"{number} {item}" for number, item in zip(share, items, strict=True))])


def parse_offer(move: str) -> Quantities:
    """Return the share taken by an offer: the inverse of `format_offer`."""
    return tuple(map(int, move.split()[1::2]))


def read_move(text: str, items: Sequence[str]) -> str | None:
    """Return the move in the last sentence of `text`, in the wording of `format_offer`, or None without a move.

    The sentence is `accept`, `walk away`, `take nothing` or `take` with a list of numbers and items, with or without
    `I`: `I take 2 books, a hat and three balls.` Items not named go to the other agent. A sentence with an item named
    twice, or with any other words, is no move: `I won't accept` is no acceptance.
    """
    sentence = _LAST_SENTENCE.search(text.strip())
    act = " ".join(sentence["act"].lower().split()) if sentence else ""
    if act in (ACCEPT, WALK_AWAY):
        return act
    verb, _, listed = act.partition(" ")
    if verb != TAKE or not listed:
        return None
    share: dict[str, int] = {}
    for entry in _BETWEEN.split(listed) if listed != "nothing" else ():
        number, _, name = entry.partition(" ")
        item = next((item for item in items if name in (item, f"{item}s", f"{item}es")), None)
        # At most three digits: a longer number is no offer, and `int` refuses very long ones.
        count = int(number) if number.isascii() and number.isdecimal() and len(number) < 4 else _VALUE_OF.get(number)
        if item is None or count is None or item in share:
            return None
        share[item] = count
    return format_offer(tuple(share.get(item, 0) for item in items), items)
