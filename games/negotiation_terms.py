"""Terms of a negotiation: pools and private values of items, and the wording of offers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import product
from operator import mul, sub
from typing import NamedTuple

Quantities = tuple[int, ...]
"""Number of items of each kind, in the order of the game's `items`."""
ACCEPT, WALK_AWAY, TAKE = "accept", "walk away", "take"
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
"""Number words from 0 on. The words `a` and `an` also count as 1."""

_LAST_SENTENCE = re.compile(
    r"(?:\A|[.!?;]|(?<![:,\u2013\u2014-])\n)\s*(?:i\s+)?(?P<act>[^.!?;:\n]+)[.!\s]*\Z", re.IGNORECASE
)
"""The last sentence. A colon, a comma or a dash at the end of a line does not end a sentence, because the words
after it may be quoted (`I will never say: I accept.`)."""
_LINE_END = re.compile(r"[^\S\n]*\n\s*")
_LIST_SEPARATOR = re.compile(r"\s*,\s*and\s+|\s*,\s*|\s+and\s+|\s+(?=\d)")
_NUMBER_OF_WORD = {word: number for number, word in enumerate(NUMBERS)} | {"a": 1, "an": 1}


class BargainingProblem(NamedTuple):
    """Pool of items that two agents divide, and each agent's private values of single items."""

    pool: Quantities
    values: tuple[Quantities, Quantities]
    """For each agent, the value of one item of each kind to this agent."""

    def __deepcopy__(self, memo: object) -> BargainingProblem:
        """Return this bargain itself, since an immutable bargain needs no copy."""
        return self

    def __str__(self) -> str:
        return " / ".join(" ".join(map(str, numbers)) for numbers in (self.pool, *self.values))

    def payoffs_of_offer(self, proposer: int, proposer_share: Quantities) -> tuple[int, int]:
        """Return each agent's value of its items if `proposer` (0 or 1) gets `proposer_share` of the pool."""
        remainder = tuple(map(sub, self.pool, proposer_share))
        first, second = (remainder, proposer_share) if proposer else (proposer_share, remainder)
        return sum(map(mul, self.values[0], first)), sum(map(mul, self.values[1], second))


@cache
def possible_payoffs(problem: BargainingProblem) -> frozenset[tuple[int, int]]:
    """Return the set of (value to agent 0, value to agent 1) over all divisions of the pool."""
    shares = product(*[range(count + 1) for count in problem.pool])
    return frozenset(problem.payoffs_of_offer(0, share) for share in shares)


def is_pareto_efficient(problem: BargainingProblem, reached_payoffs: tuple[int, int]) -> bool:
    """Return True if no division of the pool Pareto-dominates a division with the values `reached_payoffs`."""
    first, second = reached_payoffs
    return not any(a >= first and b >= second and (a, b) != reached_payoffs for a, b in possible_payoffs(problem))


@cache
def enumerate_bargaining_problems(
    kind_count: int, item_count_range: tuple[int, int], pool_value: int
) -> Mapping[str, BargainingProblem]:
    """Return text -> bargain, for all bargains of "Deal or No Deal" (Lewis et al., arXiv 1706.05125, section 2.1).

    A pool holds at least one item of each of the `kind_count` kinds, and in total as many items as `item_count_range`
    allows. Its value is `pool_value` to each agent. Every kind has value to at least one agent, and some kind to both.
    """
    by_text: dict[str, BargainingProblem] = {}
    for pool in product(range(1, item_count_range[1] + 1), repeat=kind_count):
        if not item_count_range[0] <= sum(pool) <= item_count_range[1]:
            continue
        for first, second in product(_item_values_with_pool_value(pool, pool_value), repeat=2):
            pairs = list(zip(first, second, strict=True))
            if all(map(any, pairs)) and any(map(all, pairs)):
                bargain = BargainingProblem(pool, (first, second))
                by_text[str(bargain)] = bargain
    return by_text


def _item_values_with_pool_value(pool: Quantities, pool_value: int) -> list[Quantities]:
    """Return the valuations (value of one item of each kind) with which the full pool is worth `pool_value`."""
    count, *other_counts = pool
    if not other_counts:
        return [(pool_value // count,)] if pool_value % count == 0 else []
    valuations: list[Quantities] = []
    for value in range(pool_value // count + 1):
        for other_values in _item_values_with_pool_value(tuple(other_counts), pool_value - value * count):
            valuations.append((value, *other_values))
    return valuations


@cache
def all_offer_texts(pool: Quantities, item_names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the possible offers about a pool, one for each share, in the wording of `format_offer`."""
    shares = product(*[range(count + 1) for count in pool])
    return tuple(format_offer(share, item_names) for share in shares)


def format_offer(requested_counts: Iterable[int], item_names: Sequence[str]) -> str:
    """Return the move that asks for `requested_counts`, such as `take 1 book 0 hat 2 ball`."""
    return " ".join([TAKE, *(f"{number} {item}" for number, item in zip(requested_counts, item_names, strict=True))])


def parse_offer(move: str) -> Quantities:
    """Return the share that an offer asks for: the inverse of `format_offer`."""
    return tuple(map(int, move.split()[1::2]))


def parse_move(text: str, item_names: Sequence[str]) -> str | None:
    """Return the move in the last sentence of `text`, in the wording of `format_offer`, or None if it is no move.

    The sentence is `accept`, `walk away`, `take nothing` or `take` with a list of numbers and items, with or without
    `I`: `I take 2 books, a hat and three balls.` Items that the sentence omits go to the other agent. A sentence that
    names an item twice, or has any other words, is no move: `I won't accept` is no acceptance.
    """
    sentence = _LAST_SENTENCE.search(_LINE_END.sub("\n", text.strip()))
    act = " ".join(sentence["act"].lower().split()) if sentence else ""
    if act in (ACCEPT, WALK_AWAY):
        return act
    verb, _, listed = act.partition(" ")
    if verb != TAKE or not listed:
        return None
    share: dict[str, int] = {}
    for entry in _LIST_SEPARATOR.split(listed) if listed != "nothing" else ():
        number, _, name = entry.partition(" ")
        item = next((item for item in item_names if name in (item, f"{item}s", f"{item}es")), None)
        # A number of more than three digits is no offer, and `int` refuses very long numbers.
        count = (
            int(number) if number.isascii() and number.isdecimal() and len(number) < 4 else _NUMBER_OF_WORD.get(number)
        )
        if item is None or count is None or item in share:
            return None
        share[item] = count
    return format_offer([share.get(item, 0) for item in item_names], item_names)
