"""Optimal team play of small Hanabi with one card each: dynamic programming over what both players know.

Nayyar, Mahajan and Teneketzis (2013): a team with common information plays as well as a coordinator who knows that
information and tells each player what to do for each thing it may see. Here the coordinator tells the mover a move for
each card that the other may hold, its plan. Since the plan is known, the move tells the listener that it holds one of
the cards with this move. So the common information is, beside the table, a set of possible cards for each player, and
all cards in the sets are as likely as the unseen cards make them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

NO_CARD = -1
"""Index in place of a card after the last card of the deck was drawn and the hand was played."""
Cards = frozenset[int]
"""Possible cards of one player, as indices of kinds of cards (colour · ranks + rank - 1)."""


class HanabiSizes(NamedTuple):
    """Settings of Hanabi for two players with one card each."""

    colours: str
    ranks: int
    hints: int
    lives: int
    keeps_points: bool


class PublicState(NamedTuple):
    """All that both players know before a move."""

    mover: Cards
    """Cards that the player to move may hold."""
    other: Cards
    unseen: tuple[int, ...]
    """For each kind of card, the number of cards that were neither played nor discarded: in hands or in the deck."""
    stacks: tuple[int, ...]
    hints: int
    lives: int
    moves_left: int
    """Number of moves that remain after the deck is empty."""


class HanabiOptimum:
    """Values and plans of an optimal team. States are computed when they are first asked for, and stored."""

    def __init__(self, sizes: HanabiSizes) -> None:
        self.sizes = sizes
        ranks = range(1, sizes.ranks + 1)
        deck = [3 if rank == 1 else 1 if rank == sizes.ranks else 2 for rank in ranks] * len(sizes.colours)
        every_card = frozenset(range(len(deck)))
        stacks = (0,) * len(sizes.colours)
        self.start = PublicState(every_card, every_card, tuple(deck), stacks, sizes.hints, sizes.lives, 2)
        self._solved: dict[PublicState, tuple[float, Mapping[int, str]]] = {}

    def value(self, state: PublicState) -> float:
        """Return the expected number of points from `state` on."""
        return self._solve(state)[0]

    def plan(self, state: PublicState) -> Mapping[int, str]:
        """Return the move for each card that the other player may hold: `play`, `discard` or the hinted fact."""
        return self._solve(state)[1]

    def facts(self, card: int) -> tuple[str, ...]:
        """Return the facts that can be hinted about `card`, its colour and its rank; empty for `NO_CARD`."""
        if card == NO_CARD:
            return ()
        colour, rank = divmod(card, self.sizes.ranks)
        return self.sizes.colours[colour], str(rank + 1)

    def joint_weights(self, state: PublicState, others: Cards) -> Iterator[tuple[int, int, float]]:
        """Yield (mover's card, other's card, weight) of all pairs in which the other holds one of `others`.

        The weight is the number of pairs of unseen cards of these kinds.
        """
        for own in state.mover:
            for other in others:
                count = 1 if other == NO_CARD else state.unseen[other] - (own == other)
                if count > 0 and state.unseen[own] > 0:
                    yield own, other, float(state.unseen[own] * count)

    def after_hint(self, state: PublicState, others: Cards) -> PublicState:
        """Return the state after a hint that the plan gives for the cards `others`."""
        left = state.moves_left - (self.deck_size(state) == 0)
        return state._replace(mover=others, other=state.mover, hints=state.hints - 1, moves_left=left)

    def deck_size(self, state: PublicState) -> int:
        """Return the number of cards in the deck."""
        return max(sum(state.unseen) - 1 - (NO_CARD not in state.other), 0)

    def after_card(self, state: PublicState, move: str, own: int, others: Cards) -> tuple[PublicState, int]:
        """Return (next state, gained points) of a play or discard of the card `own`, which the plan gives for `others`.

        A lost game has no lives in its state.
        """
        deck = self.deck_size(state)
        unseen, stacks = list(state.unseen), list(state.stacks)
        unseen[own] -= 1
        colour, rank = divmod(own, self.sizes.ranks)
        hints, lives, points = state.hints, state.lives, 0
        if move == "discard":
            hints += 1
        elif stacks[colour] == rank:
            stacks[colour], points = rank + 1, 1
            hints = min(hints + (rank + 1 == self.sizes.ranks), self.sizes.hints)
        else:
            lives -= 1
            points = -sum(stacks) if not lives and not self.sizes.keeps_points else 0
        left = state.moves_left - (deck == 0)
        drawn = frozenset(card for card, count in enumerate(unseen) if count) if deck else frozenset({NO_CARD})
        # Cards of which none is left cannot be held: without them, equal states are stored once.
        possible = frozenset(card for card in others if card == NO_CARD or unseen[card])
        return PublicState(possible, drawn, tuple(unseen), tuple(stacks), hints, lives, left), points

    def _solve(self, state: PublicState) -> tuple[float, Mapping[int, str]]:
        if state in self._solved:
            return self._solved[state]
        over = not state.lives or not state.moves_left or sum(state.stacks) == len(state.unseen)
        solved: tuple[float, Mapping[int, str]] = (0.0, {})
        if not over:
            possible = sorted({other for _, other, _ in self.joint_weights(state, state.other)})
            total = sum(weight for *_, weight in self.joint_weights(state, state.other))
            best = self._best_plan(state, possible)
            solved = best[0] / total, best[1]
        self._solved[state] = solved
        return solved

    def _best_plan(self, state: PublicState, possible: list[int]) -> tuple[float, Mapping[int, str]]:
        """Return the plan with the greatest weighted value: the best division of the cards `possible` among moves."""
        best: dict[Cards, tuple[float, Mapping[int, str]]] = {frozenset(): (0.0, {})}
        for move in self._moves(state, possible):
            extended = dict(best)
            cards = [card for card in possible if move in ("play", "discard", *self.facts(card))]
            for chosen in _subsets(cards):
                value = self._move_value(state, move, chosen)
                for done, (sofar, plan) in best.items():
                    union = done | chosen
                    if not done & chosen and (union not in extended or sofar + value > extended[union][0] + 1e-12):
                        extended[union] = sofar + value, {**plan, **dict.fromkeys(chosen, move)}
            best = extended
        return best[frozenset(possible)]

    def _moves(self, state: PublicState, possible: list[int]) -> list[str]:
        """Return the moves that are legal for at least one card of the other player."""
        moves = ["play", "discard"] if state.hints < self.sizes.hints else ["play"]
        facts = sorted({fact for card in possible for fact in self.facts(card)})
        return [*moves, *facts] if state.hints else moves

    def _move_value(self, state: PublicState, move: str, others: Cards) -> float:
        """Return the sum over pairs of cards, with the other's in `others`, of weight times value after `move`."""
        if move not in ("play", "discard"):
            weight = sum(weight for *_, weight in self.joint_weights(state, others))
            return weight * self.value(self.after_hint(state, others))
        weights: dict[int, float] = {}
        for own, _, weight in self.joint_weights(state, others):
            weights[own] = weights.get(own, 0.0) + weight
        value = 0.0
        for own, weight in weights.items():
            later, points = self.after_card(state, move, own, others)
            value += weight * (points + self.value(later))
        return value


def _subsets(cards: list[int]) -> Iterator[Cards]:
    """Yield the subsets of `cards` that are not empty."""
    for bits in range(1, 1 << len(cards)):
        yield frozenset(card for index, card in enumerate(cards) if bits >> index & 1)
