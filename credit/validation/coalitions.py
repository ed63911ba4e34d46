"""Exact counterfactuals: what the same team would have been paid, had some of its agents not played as they did."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from itertools import permutations
from math import factorial

from credit.validation.world import Choice, History, Move, Play, World
from marl.evaluation.game_tree import Situation

Instead = Callable[[Situation], Mapping[Move, float]]
"""What an absent agent does when asked: `World.played` for its own policy, `always` for a fixed move."""
Worth = Callable[[frozenset[str]], float]
"""Coalition -> what it is worth."""


def always(moves: Mapping[str, str]) -> Instead:
    """Agent -> the one move that it makes."""
    return lambda situation: {moves[situation.agent]: 1.0}


def without(world: World, play: Play, absent: Collection[str], instead: Instead) -> float:
    """What the team can expect if the `absent` agents do something else whenever they are asked.

    All others repeat what they did in `play` when asked the same as then, and follow their policies otherwise.
    """
    then = {(c.situation, c.nth): c.cell.move for c in play.choices}

    def decide(situation: Situation, nth: int) -> Mapping[Move, float]:
        if situation.agent in absent:
            return instead(situation)
        return {then[situation, nth]: 1.0} if (situation, nth) in then else world.played(situation)

    return world.expected(decide, History(play.choices[0].cell.history.start))


def replaced(world: World, play: Play, choice: Choice, instead: Instead) -> float:
    """What the team can expect if a single turn of `play` were another one, and all later ones as in `without`."""
    then = {(c.situation, c.nth): c.cell.move for c in play.choices}

    def decide(situation: Situation, nth: int) -> Mapping[Move, float]:
        if (situation, nth) == (choice.situation, choice.nth):
            return instead(situation)
        return {then[situation, nth]: 1.0} if (situation, nth) in then else world.played(situation)

    return world.expected(decide, choice.cell.history)


def shapley(agents: Collection[str], value: Worth) -> dict[str, float]:
    """Each agent's marginal contribution, averaged over all orders in which they can arrive (Shapley 1953)."""
    shares = dict.fromkeys(agents, 0.0)
    known: dict[frozenset[str], float] = {}
    for order in permutations(agents):
        here = frozenset[str]()
        for agent in order:
            for coalition in (here, here | {agent}):
                if coalition not in known:
                    known[coalition] = value(coalition)
            shares[agent] += known[here | {agent}] - known[here]
            here |= {agent}
    return {agent: share / factorial(len(shares)) for agent, share in shares.items()}
