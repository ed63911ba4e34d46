"""Formulas that make one number a turn from process rewards and the outcome.

A row is one agent in one episode: turns s = 1..n with process rewards r_s, and an outcome R. Rows of one group began in
the same state and have the same agent; K of them are compared. A row without peers (K = 1) gets 0.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, zip_longest
from statistics import fmean, stdev

from credit.baselines.peers import all_equal
from marl.types import TurnId

Step = tuple[TurnId, int]
"""A turn and 0; or a turn and one of its tokens, where the learner's own model pays for tokens."""
_SMALL = 1e-6
"""Added to what PRIME's released code and Agent-R1's divide process rewards by."""


@dataclass(frozen=True, slots=True)
class AgentRewards:
    """Rewards of one agent in one episode."""

    group: Hashable
    """Equal for rows that are compared."""
    process: Sequence[list[float]]
    """For each source, one process reward a step."""
    outcome: float
    steps: Sequence[Step] = ()


@dataclass(frozen=True, slots=True)
class SourceWeights:
    """Weights and discounts of process rewards and of the outcome."""

    process: Sequence[float]
    """In the order of `AgentRewards.process`."""
    outcome: float = 1.0
    discount: float = 1.0
    """Of process rewards, per turn of the agent."""
    outcome_discount: float = 1.0
    """Of the outcome, which counts as paid at the agent's last turn."""
    epsilon: float = 1e-6
    """Added to the spreads of `decoupled`."""


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
    return _prime(rows, rows, weights, lambda values: (_peer_means(values), 1.0))


def prime_released(rows: Sequence[AgentRewards], weights: SourceWeights) -> Iterator[list[float]]:
    """Yield the advantages of PRIME as in its released code, before the whitening that ends it.

    Every source is divided by max |reward-to-go| + 1e-6 over the step; then r_s K/(K-1) - sum over all K of their mean
    r, divided by K-1, which is the paper's term plus (r_s - mean r)/(K-1) and so equals it on the row's average; the
    outcome likewise, at the last turn; each source is discounted on its own, and they are added.
    """
    return _prime(
        rows, normalised(rows), weights, lambda values: ([mean(values)] * len(values), len(values) / (len(values) - 1))
    )


def _prime(
    rows: Sequence[AgentRewards],
    scaled: Sequence[AgentRewards],
    weights: SourceWeights,
    compare: Callable[[Sequence[float]], tuple[Sequence[float], float]],
) -> Iterator[list[float]]:
    """Yield factor * (x - baseline) of process rewards to go and outcomes.

    `compare` gives each row of a group of 2 or more its baseline, and the group its factor.
    """
    process = [_weighted(row.process, weights.process) for row in scaled]
    values = [[0.0] * len(rewards) for rewards in process]
    for members in _grouped(rows).values():
        if len(members) < 2:
            continue
        means, factor = compare([mean(process[i]) for i in members])
        outcomes, _ = compare([rows[i].outcome for i in members])
        for i, process_mean, outcome in zip(members, means, outcomes, strict=True):
            to_go = rewards_to_go([factor * (reward - process_mean) for reward in process[i]], weights.discount)
            values[i] = _add_outcome(to_go, weights.outcome * factor * (rows[i].outcome - outcome), weights)
    return iter(values)


def decoupled(rows: Sequence[AgentRewards], weights: SourceWeights) -> Iterator[list[float]]:
    """Yield advantages in the way of GDPO (arXiv 2601.05242), before the whitening: sources in units of their spread.

    Each source's rewards-to-go, and the outcome, are compared within the group, (x - mean) / (std + epsilon), ddof 1,
    then weighted and added. Of rewards-to-go the mean is that of the rows' nth turns, since later turns have less to
    come in every row, and the deviation that of all turns. With one turn a row it is GDPO itself.
    """
    to_go = [[rewards_to_go(source, weights.discount) for source in row.process] for row in rows]
    values = [[0.0] * len(sources[0]) for sources in to_go]
    for members in _grouped(rows).values():
        if len(members) < 2:
            continue
        for k, weight in enumerate(weights.process):
            units = _in_units_of_spread([to_go[i][k] for i in members], weights.epsilon)
            for i, unit in zip(members, units, strict=True):
                values[i] = [value + weight * x for value, x in zip(values[i], unit, strict=True)]
        centre, scale = _spread([rows[i].outcome for i in members], weights.epsilon)
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
    """Return sum_{j >= s} discount^{j-s} x_j for every s."""
    return list(accumulate(reversed(values), lambda later, x: x + discount * later))[::-1]


def normalised(rows: Sequence[AgentRewards]) -> list[AgentRewards]:
    """Divide every source by its largest |reward-to-go| in the step, without discount, plus 1e-6."""
    sources = range(len(rows[0].process)) if rows else ()
    largest = [max(max(map(abs, rewards_to_go(row.process[k], 1.0))) for row in rows) + _SMALL for k in sources]
    return [
        replace(row, process=[[r / top for r in source] for source, top in zip(row.process, largest, strict=True)])
        for row in rows
    ]


def whitened(values: Sequence[float], in_variance: float = 0.0, in_std: float = 0.0) -> list[float]:
    """Return (x - mean) / (sqrt(var + in_variance) + in_std), ddof 1; all 0 where there is no difference."""
    centre, scale = _spread(values, in_std, in_variance)
    return [(x - centre) * scale for x in values]


def _in_units_of_spread(rows: Sequence[Sequence[float]], in_std: float) -> list[list[float]]:
    """Return (x - mean of the rows' nth numbers) / (std of all + in_std); all 0 where none differs beyond rounding."""
    columns = [[x for x in column if x is not None] for column in zip_longest(*rows)]
    _, scale = _spread([x for row in rows for x in row], in_std)
    if all(map(all_equal, columns)):
        scale = 0.0
    means = [mean(column) for column in columns]
    return [[(x - centre) * scale for x, centre in zip(row, means, strict=False)] for row in rows]


def mean(values: Sequence[float]) -> float:
    """Return the mean, exactly where all values are equal."""
    return values[0] if min(values) == max(values) else fmean(values)


def _spread(values: Sequence[float], in_std: float, in_variance: float = 0.0) -> tuple[float, float]:
    """Return the mean and the factor of differences from it, which is 0 where there are none beyond rounding."""
    if len(values) < 2 or all_equal(values):
        return 0.0, 0.0
    return fmean(values), 1 / (math.sqrt(stdev(values) ** 2 + in_variance) + in_std)


def _weighted(process: Sequence[list[float]], weights: Sequence[float]) -> list[float]:
    if len(process) == 1 and weights[0] == 1:
        return process[0]
    return [sum(map(float.__mul__, weights, rewards)) for rewards in zip(*process, strict=True)]


def _add_outcome(values: list[float], outcome: float, weights: SourceWeights) -> list[float]:
    if weights.outcome_discount == 1:
        return [value + outcome for value in values]
    last = len(values) - 1
    return [value + outcome * weights.outcome_discount ** (last - place) for place, value in enumerate(values)]


def _grouped(rows: Iterable[AgentRewards]) -> dict[Hashable, list[int]]:
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        groups[row.group].append(place)
    return groups


def _peer_means(values: Sequence[float]) -> list[float]:
    """Return for each value the mean of the rest."""
    if min(values) == max(values):
        return list(values)
    total = sum(values)
    return [(total - value) / (len(values) - 1) for value in values]
