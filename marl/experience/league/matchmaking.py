"""Matchmaking: probabilities of meeting each member of the pool, and systematic sampling from them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import fsum, log
from typing import Literal, TypeVar

import numpy as np

from marl.core.zero_sum import nash_equilibrium

_Choice = TypeVar("_Choice")

ALPHA_RANK_NOISE = 0.01
"""Probability that a stronger member's replacement by a weaker one succeeds in `alpha_rank_probabilities`."""


def uniform_opponent_probabilities(opponent_count: int) -> list[float]:
    """Return equal probabilities for all members of the pool. If members are best responses, this is fictitious play.

    Fictitious play updates its average with step size 1/t: (1 - 1/t) times the average before plus 1/t times the newest
    member, hence a uniform mixture of all members. With approximate best responses the uniform mixture is a generalised
    weakened fictitious play (Leslie & Collins 2006), as in Heinrich, Lanctot & Silver 2015, proceedings.mlr.press/v37.
    """
    return [1 / opponent_count] * opponent_count


def latest_opponent_probabilities(opponent_count: int) -> list[float]:
    """Return probability 1 for the newest of the pool's members, and 0 for all others."""
    return [0.0] * (opponent_count - 1) + [1.0]


def pfsp_probabilities(win_rates: Sequence[float], pfsp_power: float) -> list[float]:
    """Return probabilities in proportion to (1 - win rate)^power: prioritised fictitious self-play.

    As in AlphaStar (Vinyals et al. 2019, supplement), the probabilities are uniform if the player wins every game.
    """
    return _normalize_to_probabilities([(1 - rate) ** pfsp_power for rate in win_rates])


def pfsp_even_probabilities(win_rates: Sequence[float]) -> list[float]:
    """Return probabilities in proportion to win rate x (1 - win rate), highest at equal strength (AlphaStar)."""
    return _normalize_to_probabilities([rate * (1 - rate) for rate in win_rates])


def psro_probabilities(payoffs: Sequence[Sequence[float]]) -> list[float]:
    """Return a Nash equilibrium of the pool's antisymmetric payoffs: PSRO's meta-strategy (Lanctot et al. 2017)."""
    return nash_equilibrium(payoffs).row.tolist()


def rectified_probabilities(payoffs: Sequence[Sequence[float]], newest: int | None) -> list[float]:
    """Return a Nash equilibrium of the pool's payoffs, restricted to members that the player's newest member beats or
    ties (rectified PSRO, Balduzzi et al. 2019, 1901.08106).

    The paper trains one response from each member in the equilibrium's support. A league's player is one such line of
    responses, so a league has as many niches as players. `newest` is the index of the player's newest member. The
    whole equilibrium is returned if it is None, or if the newest member loses to everybody in the support.
    """
    equilibrium = psro_probabilities(payoffs)
    if newest is None:
        return equilibrium
    rectified: list[float] = []
    for probability, payoff in zip(equilibrium, payoffs[newest], strict=True):
        rectified.append(probability if payoff >= 0 else 0.0)
    total = fsum(rectified)
    return [probability / total for probability in rectified] if total > 1e-10 else equilibrium


def alpha_rank_probabilities(payoffs: Sequence[Sequence[float]]) -> list[float]:
    """Return the stationary distribution of alpha-Rank with infinite ranking intensity, in one population.

    A member is challenged by every other member with equal probability, and replaced with probability 1 - noise if it
    loses, 1/2 if they tie, and noise if it wins (Omidshafiei et al. 2019, 1903.01373; as a meta-strategy of PSRO:
    Muller et al. 2020, 1909.12823). Only the signs of payoffs count, so a rare move that loses much does not decide.
    """
    margins = np.asarray(payoffs, dtype=np.float64)
    count = len(margins)
    if count == 1:
        return [1.0]
    # replaced[i, j]: probability that j replaces i when it challenges.
    replaced = np.select([margins < 0, margins > 0], [1 - ALPHA_RANK_NOISE, ALPHA_RANK_NOISE], 0.5)
    np.fill_diagonal(replaced, 0.0)
    transitions = replaced / (count - 1)
    np.fill_diagonal(transitions, 1 - transitions.sum(axis=1))
    # The balance equations have rank count - 1; the last is replaced by the sum of the probabilities.
    equations = transitions.T - np.eye(count)
    equations[-1] = 1.0
    stationary = np.linalg.solve(equations, np.eye(count)[-1])
    return stationary.tolist()


def opponent_probabilities(
    rule: Literal["uniform", "latest", "pfsp", "pfsp_even", "psro", "rectified", "alpha_rank"],
    pfsp_power: float,
    win_rates: Sequence[float],
    payoffs: Sequence[Sequence[float]],
    newest: int | None,
) -> list[float]:
    """Return the probability of meeting each member of a pool, oldest first.

    Args:
        rule: distribution over the members, as in `LeaguePlayer.by`.
        pfsp_power: exponent of `pfsp`.
        win_rates: win rate of the player against each member, at least one number.
        payoffs: payoff of each member against each other member, used by `psro`, `rectified` and `alpha_rank`.
        newest: index of the player's newest member, used by `rectified`, or None if the pool holds none.
    """
    match rule:
        case "uniform":
            return uniform_opponent_probabilities(len(win_rates))
        case "latest":
            return latest_opponent_probabilities(len(win_rates))
        case "pfsp":
            return pfsp_probabilities(win_rates, pfsp_power)
        case "pfsp_even":
            return pfsp_even_probabilities(win_rates)
        case "psro":
            return psro_probabilities(payoffs)
        case "rectified":
            return rectified_probabilities(payoffs, newest)
        case "alpha_rank":
            return alpha_rank_probabilities(payoffs)


def interaction_graph(
    rule: Literal["uniform", "latest", "psro", "rectified", "alpha_rank"], payoffs: Sequence[Sequence[float]]
) -> list[list[float]]:
    """Return the interaction graph of a population: row i holds the probabilities with which member i meets each
    member (NeuPL, Liu et al. 2022, 2202.07415).

    A member meets earlier members alone, by the meta-strategy of a pool that ends just before it, so that each row
    depends on the payoffs of earlier members only. The first member meets nobody: its row has the sum 0.

    Args:
        rule: distribution over the earlier members, as in `OneModelPopulation.by`.
        payoffs: payoff of each member against each other member.
    """
    count = len(payoffs)
    graph = [[0.0] * count]
    for index in range(1, count):
        earlier_payoffs = [row[:index] for row in payoffs[:index]]
        row = opponent_probabilities(rule, 0.0, [0.5] * index, earlier_payoffs, index - 1)
        graph.append([*row, *[0.0] * (count - index)])
    return graph


def systematic_sample(choices: Sequence[_Choice], weights: Sequence[float], count: int, offset: float) -> list[_Choice]:
    """Return `count` choices, in the order of `choices`, by systematic sampling with an offset in [0, 1).

    Each choice is drawn its expected number of times, rounded up or down.
    """
    candidates: list[_Choice] = []
    positive: list[float] = []
    for choice, weight in zip(choices, weights, strict=True):
        if weight > 0:
            candidates.append(choice)
            positive.append(weight)
    bounds = list(accumulate(_normalize_to_probabilities(positive)))
    drawn: list[_Choice] = []
    index = 0
    for number in range(count):
        # Rounding may leave the last bound below 1, so the last candidate is chosen without comparing its bound.
        while index < len(candidates) - 1 and bounds[index] <= (number + offset) / count:
            index += 1
        drawn.append(candidates[index])
    return drawn


def entropy(distribution: Sequence[float]) -> float:
    """Return the entropy of a probability distribution, in nats."""
    return fsum(p * log(1 / p) for p in distribution if p > 0)


def _normalize_to_probabilities(weights: Sequence[float]) -> list[float]:
    """Return the weights divided by their sum, or uniform probabilities if the sum is almost 0."""
    total = fsum(weights)
    return [weight / total for weight in weights] if total > 1e-10 else uniform_opponent_probabilities(len(weights))
