"""Formulas that combine process rewards and the outcome into one number a turn.

A row is one agent in one episode: turns s = 1..n with process rewards r_s, and an outcome R. Rows of one group have the
same initial state and the same agent; K of them are compared. A row without peers (K = 1) gets 0.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, zip_longest
from statistics import fmean, stdev

from marl.core.types import TurnId
from marl.credit.baselines.peer_baseline import all_equal, exact_mean

Step = tuple[TurnId, int]
"""A turn and 0; or a turn and the index of one of its tokens, where the learner's own model pays for tokens."""
_SMALL = 1e-6
"""Added to the divisor of process rewards, as in the released code of PRIME and of Agent-R1."""


@dataclass(frozen=True, slots=True)
class AgentRewards:
    """Rewards of one agent in one episode."""

    group: Hashable
    """Equal for rows that are compared."""
    process: Sequence[list[float]]
    """For each source, the process reward of each step."""
    outcome: float
    steps: Sequence[Step] = ()


@dataclass(frozen=True, slots=True)
class SourceWeights:
    """Weights and discounts of process rewards and of the outcome."""

    process: Sequence[float]
    """Weight of each source, in the order of `AgentRewards.process`."""
    outcome: float = 1.0
    discount: float = 1.0
    """Discount of process rewards, per turn of the agent."""
    outcome_discount: float = 1.0
    """Discount of the outcome, which counts as paid at the agent's last turn."""
    epsilon: float = 1e-6
    """Added to the standard deviations of `decoupled`."""


def weighted_sum(rows: Sequence[AgentRewards], weights: SourceWeights) -> Iterator[list[float]]:
    """Yield A_s = sum over sources k of w_k sum_{j >= s} gamma^{j-s} r^k_j, plus w_o gamma_o^{n-s} R."""
    for row in rows:
        process = rewards_to_go(_weighted(row.process, weights.process), weights.discount)
        yield _add_outcome(process, weights.outcome * row.outcome, weights)


def max_abs(rows: Sequence[AgentRewards], weights: SourceWeights) -> Iterator[list[float]]:
    """Yield `weighted_sum` of process rewards divided, source by source, by the step's largest |reward-to-go|.

    Agent-R1's released code (`prime_norm` in agent_r1/src/agent_ray_trainer.py, March 2025): process rewards divided by
    max |reverse cumulative sum| + 1e-6 over the batch, without discount, then added to the outcome.
    """
    return weighted_sum(normalised(rows), weights)


def prime_paper(rows: Sequence[AgentRewards], weights: SourceWeights) -> Iterator[list[float]]:
    """Yield the advantages of PRIME as published (arXiv 2502.01456), a step being a turn.

    A_s = sum_{j >= s} gamma^{j-s} [r_j - mean over the others i' of mean_j r^{i'}_j] + R - mean of the others' R.
    """
    return _prime(rows, rows, weights, lambda values: (_means_of_peers(values), 1.0))


def prime_released(rows: Sequence[AgentRewards], weights: SourceWeights) -> Iterator[list[float]]:
    """Yield the advantages of PRIME as in its released code, before the whitening that ends it.

    Every source is divided by max |reward-to-go| + 1e-6 over the step. Then its term is r_s K/(K-1) - (sum over all K
    of their mean r)/(K-1): the paper's term plus (r_s - mean r)/(K-1), so both are equal on the row's average. The
    outcome has the same term at the last turn. Each source is discounted separately, and the terms are added."""
    return _prime(
        rows,
        normalised(rows),
        weights,
        lambda values: ([exact_mean(values)] * len(values), len(values) / (len(values) - 1)),
    )


def _prime(
    rows: Sequence[AgentRewards],
    scaled: Sequence[AgentRewards],
    weights: SourceWeights,
    compare: Callable[[Sequence[float]], tuple[Sequence[float], float]],
) -> Iterator[list[float]]:
    """Yield factor * (x - baseline) of process rewards to go and outcomes.

    `compare` maps the numbers of a group of 2 or more rows to the baseline of each row, and to the group's factor.
    """
    process = [_weighted(row.process, weights.process) for row in scaled]
    values = [[0.0] * len(rewards) for rewards in process]
    for members in _grouped(rows).values():
        if len(members) < 2:
            continue
        means, factor = compare([exact_mean(process[i]) for i in members])
        outcomes, _ = compare([rows[i].outcome for i in members])
        for i, process_mean, outcome in zip(members, means, outcomes, strict=True):
            to_go = rewards_to_go([factor * (reward - process_mean) for reward in process[i]], weights.discount)
            values[i] = _add_outcome(to_go, weights.outcome * factor * (rows[i].outcome - outcome), weights)
    return iter(values)


def decoupled(rows: Sequence[AgentRewards], weights: SourceWeights) -> Iterator[list[float]]:
    """Yield advantages in the way of GDPO (arXiv 2601.05242), before the whitening: sources divided by their deviation.

    Each source's rewards-to-go, and the outcome, are compared within the group, (x - mean) / (std + epsilon), ddof 1,
    then weighted and added. The mean of rewards-to-go is taken over the rows' nth turns, since later turns have fewer
    rewards to come in every row; the deviation is taken over all turns. With one turn a row this is GDPO itself.
    """
    values = [[0.0] * len(row.process[0]) for row in rows]
    for members in _grouped(rows).values():
        if len(members) < 2:
            continue
        for k, weight in enumerate(weights.process):
            to_go = [rewards_to_go(rows[i].process[k], weights.discount) for i in members]
            for i, scaled in zip(members, _standardized(to_go, weights.epsilon), strict=True):
                values[i] = [value + weight * x for value, x in zip(values[i], scaled, strict=True)]
        centre, scale = _mean_and_scale([rows[i].outcome for i in members], weights.epsilon)
        for i in members:
            values[i] = _add_outcome(values[i], weights.outcome * (rows[i].outcome - centre) * scale, weights)
    return iter(values)


FORMS: dict[str, Callable[[Sequence[AgentRewards], SourceWeights], Iterator[list[float]]]] = {
    "sum": weighted_sum,
    "max_abs": max_abs,
    "prime_paper": prime_paper,
    "prime_released": prime_released,
    "decoupled": decoupled,
}


def rewards_to_go(values: Sequence[float], discount: float) -> list[float]:
    """Return sum_{j >= s} discount^{j-s} x_j for every s. `values`: x of each step."""
    return list(accumulate(reversed(values), lambda later, x: x + discount * later))[::-1]


def normalised(rows: Sequence[AgentRewards]) -> list[AgentRewards]:
    """Divide every source by its largest |reward-to-go| in the step, without discount, plus 1e-6."""
    largest: list[float] = []
    for k in range(len(rows[0].process)) if rows else ():
        to_go = chain.from_iterable(rewards_to_go(row.process[k], 1.0) for row in rows)
        largest.append(max(map(abs, to_go)) + _SMALL)
    scaled: list[AgentRewards] = []
    for row in rows:
        process = []
        for source, divisor in zip(row.process, largest, strict=True):
            process.append([reward / divisor for reward in source])
        scaled.append(replace(row, process=process))
    return scaled


def whiten_values(values: Sequence[float], in_variance: float = 0.0, in_std: float = 0.0) -> list[float]:
    """Return (x - mean) / (sqrt(var + in_variance) + in_std), ddof 1; all 0 if all values are equal."""
    centre, scale = _mean_and_scale(values, in_std, in_variance)
    return [(x - centre) * scale for x in values]


def _standardized(rows: Sequence[Sequence[float]], in_std: float) -> list[list[float]]:
    """Return (x - mean of the rows' nth numbers) / (std of all + in_std); all 0 if no nth numbers differ."""
    columns = [[x for x in column if x is not None] for column in zip_longest(*rows)]
    _, scale = _mean_and_scale(list(chain.from_iterable(rows)), in_std)
    if all(map(all_equal, columns)):
        scale = 0.0
    means = list(map(exact_mean, columns))
    return [[(x - centre) * scale for x, centre in zip(row, means, strict=False)] for row in rows]


def _mean_and_scale(values: Sequence[float], in_std: float, in_variance: float = 0.0) -> tuple[float, float]:
    """Return the mean of `values` and the factor of differences from the mean: 0 if the values differ by rounding
    only."""
    if len(values) < 2 or all_equal(values):
        return 0.0, 0.0
    return fmean(values), 1 / (math.sqrt(stdev(values) ** 2 + in_variance) + in_std)


def _weighted(process: Sequence[list[float]], weights: Sequence[float]) -> list[float]:
    """Return the weighted sum over sources, for each step."""
    if len(process) == 1 and weights[0] == 1:
        return process[0]
    return [sum(map(float.__mul__, weights, rewards)) for rewards in zip(*process, strict=True)]


def _add_outcome(values: list[float], outcome: float, weights: SourceWeights) -> list[float]:
    if weights.outcome_discount == 1:
        return [value + outcome for value in values]
    last = len(values) - 1
    return [value + outcome * weights.outcome_discount ** (last - index) for index, value in enumerate(values)]


def _grouped(rows: Iterable[AgentRewards]) -> dict[Hashable, list[int]]:
    """Return group -> indices of its rows."""
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        groups[row.group].append(index)
    return groups


def _means_of_peers(values: Sequence[float]) -> list[float]:
    """Return, for each value, the mean of the other values."""
    # Of equal values the formula below would give rounding errors instead of exact zeros of credit.
    if min(values) == max(values):
        return list(values)
    total = sum(values)
    return [(total - value) / (len(values) - 1) for value in values]
