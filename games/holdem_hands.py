"""Poker hands of small decks: their rank, and their chance to beat a random hand."""

from __future__ import annotations

import random
from collections import Counter
from functools import lru_cache
from itertools import combinations

RANKS = "23456789TJQKA"
SUITS = "cdhs"
SAMPLED_COMPLETIONS = 200
"""Number of random completions of a deal from which an equity is estimated."""
HandRank = tuple[int, tuple[int, ...]]
"""(category from 0, a high card, to 8, a straight flush; ranks that decide between hands of one category)."""


def make_deck(ranks: int, suits: int) -> tuple[str, ...]:
    """Return the cards of the lowest `ranks` ranks in `suits` suits, such as `7h`, in rising order."""
    return tuple(rank + suit for rank in RANKS[:ranks] for suit in SUITS[:suits])


def sort_cards(cards: tuple[str, ...]) -> tuple[str, ...]:
    """Return cards from the highest to the lowest."""
    return tuple(sorted(cards, key=lambda card: (RANKS.index(card[0]), card[1]), reverse=True))


def _rank_of_five_cards(cards: tuple[str, ...]) -> HandRank:
    """Return the rank of exactly five cards."""
    numbers = [RANKS.index(card[0]) for card in cards]
    counts = Counter(numbers)
    # Ranks by how often they occur, then by height: pairs and triples decide before single cards.
    order = tuple(sorted(counts, key=lambda number: (counts[number], number), reverse=True))
    shape = sorted(counts.values(), reverse=True)
    flush = len({card[1] for card in cards}) == 1
    straight = len(counts) == 5 and max(numbers) - min(numbers) == 4
    if set(numbers) == {12, 0, 1, 2, 3}:
        # In the straight from ace to five, the ace counts as one.
        straight, order = True, (3,)
    if straight:
        return (8 if flush else 4, order[:1])
    categories = {(4, 1): 7, (3, 2): 6, (3, 1, 1): 3, (2, 2, 1): 2, (2, 1, 1, 1): 1}
    category = categories.get(tuple(shape), 0)
    return (5, order) if flush and category < 5 else (category, order)


@lru_cache(maxsize=200_000)
def rank_hand(cards: tuple[str, ...]) -> HandRank:
    """Return the rank of the best five of `cards`, of which there are at least five. A greater rank wins."""
    return max(map(_rank_of_five_cards, combinations(cards, 5)))


@lru_cache(maxsize=50_000)
def equity(hand: tuple[str, ...], board: tuple[str, ...], deck: tuple[str, ...], board_size: int) -> float:
    """Return the probability that `hand` beats a random hand, with half of the probability of a tie.

    `board` holds the known cards of the `board_size` board cards. The opponent's hands are enumerated if the
    board is complete; else completions of the deal are sampled, with a seed that depends only on the known cards.
    """
    unknown = [card for card in deck if card not in hand and card not in board]
    missing = board_size - len(board)
    won = 0.0
    if missing == 0:
        completions = list(combinations(unknown, 2))
    else:
        rng = random.Random(f"{hand} {board}")
        completions = [tuple(rng.sample(unknown, 2 + missing)) for _ in range(SAMPLED_COMPLETIONS)]
    for completion in completions:
        full_board = board + completion[2:]
        mine, theirs = rank_hand(hand + full_board), rank_hand(completion[:2] + full_board)
        won += (mine > theirs) + 0.5 * (mine == theirs)
    return won / len(completions)
