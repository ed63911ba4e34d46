"""Matchmaking: which member of the pool is met, as probabilities, and draws from them that keep their shares."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import fsum, log
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from marl.experience.league.settings import LeaguePlayer

SELF, POOL = "self", "pool"
"""Opponents that are no player's names: the learner itself with its newest weights, and a member of the pool."""
_Choice = TypeVar("_Choice")


def uniform(members: int) -> list[float]:
    """Return the same probability for each member: fictitious play, if its members are best responses.

    A mixture of all members alike is the average that fictitious play updates with step size 1/t: (1 - 1/t) times the
    average before, plus 1/t times the newest member. With members that are near best responses it is a generalised
    weakened fictitious play (Leslie & Collins 2006), as in Heinrich, Lanctot & Silver 2015, proceedings.mlr.press/v37.
    """
    return [1 / members] * members


def latest(members: int) -> list[float]:
    """Return probability 1 for the newest member."""
    return [0.0] * (members - 1) + [1.0]


def pfsp(win_rates: Sequence[float], power: float) -> list[float]:
    """Return probabilities in proportion to (1 - win rate)^power: prioritised fictitious self-play, the hard ones.

    As in AlphaStar (Vinyals et al. 2019, supplement), all alike if the player wins every game.
    """
    return _normalised([(1 - rate) ** power for rate in win_rates])


def pfsp_even(win_rates: Sequence[float]) -> list[float]:
    """Return probabilities in proportion to win rate x (1 - win rate): those of its own strength (AlphaStar)."""
    return _normalised([rate * (1 - rate) for rate in win_rates])


def psro(payoffs: Sequence[Sequence[float]]) -> list[float]:
    """Return a Nash equilibrium of the pool's antisymmetric payoffs: PSRO's meta-strategy (Lanctot et al. 2017)."""
    from marl.zero_sum import nash

    return nash(payoffs).row.tolist()


def probabilities(player: LeaguePlayer, win_rates: Sequence[float], payoffs: Sequence[Sequence[float]]) -> list[float]:
    """Return the probability with which a player meets each member of a pool that is not empty, oldest first.

    `payoffs`: of the members against each other; used by `psro` alone.
    """
    match player.by:
        case "uniform":
            return uniform(len(win_rates))
        case "latest":
            return latest(len(win_rates))
        case "pfsp":
            return pfsp(win_rates, player.power)
        case "pfsp_even":
            return pfsp_even(win_rates)
        case "psro":
            return psro(payoffs)


def shared_out(choices: Sequence[_Choice], weights: Sequence[float], count: int, offset: float) -> list[_Choice]:
    """Return `count` choices, in their order, by systematic sampling with an offset in [0, 1).

    In expectation each gets its share, and never one more or less than that.
    """
    wanted = [(choice, weight) for choice, weight in zip(choices, weights, strict=True) if weight > 0]
    bounds, place, drawn = list(accumulate(_normalised([weight for _, weight in wanted]))), 0, []
    for number in range(count):
        while place < len(wanted) - 1 and bounds[place] <= (number + offset) / count:
            place += 1
        drawn.append(wanted[place][0])
    return drawn


def entropy(chances: Sequence[float]) -> float:
    """Return the entropy of probabilities, in nats."""
    return fsum(chance * log(1 / chance) for chance in chances if chance > 0)


def _normalised(weights: Sequence[float]) -> list[float]:
    total = fsum(weights)
    return [weight / total for weight in weights] if total > 1e-10 else uniform(len(weights))
