"""Formulas that combine process rewards and the outcome into one number for each turn.

A row is one agent in one episode: turns s = 1..n with process rewards r_s, and an outcome R. Rows of one group have the
same initial state and the same agent. A group has K rows, which are compared; a row without peers (K = 1) gets 0.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, chain
from statistics import fmean, stdev

from marl.core.types import TurnId
from marl.credit.baselines.peer_baseline import are_equal_up_to_rounding, mean_exact_if_equal

Step = tuple[TurnId, int]
"""(turn, index of one of its tokens) if the learner's reward model rewards tokens, else (turn, 0)."""
_DIVISOR_EPSILON = 1e-6
"""Number added to the divisor of process rewards, as in the released code of PRIME and of Agent-R1."""


@dataclass(frozen=True, slots=True)
class AgentEpisodeRewards:
    """Row of the formulas: process rewards and outcome of one agent in one episode."""

    group: Hashable
    """Key of the rows that are compared: equal for all rows of a group."""
    process: Sequence[list[float]]
    """For each source, the process reward of each step."""
    outcome: float
    """Sum of the team's rewards in the episode that are not process rewards."""
    steps: Sequence[Step] = ()
    """Steps of the agent's turns, in playing order."""


@dataclass(frozen=True, slots=True)
class RewardSourceWeights:
    """Weights and discounts of process rewards and of the outcome."""

    process: Sequence[float]
    """Weight of each process reward, such as a critic's scores, in the order of `AgentEpisodeRewards.process`."""
    outcome: float = 1.0
    """Weight of the outcome."""
    discount: float = 1.0
    """Discount of process rewards, per turn of the agent."""
    outcome_discount: float = 1.0
    """Discount of the outcome, per turn of the agent. The outcome counts as paid at the agent's last turn."""
    epsilon: float = 1e-6
    """Number added to the standard deviations of `decoupled`."""


def weighted_rewards_to_go(rows: Sequence[AgentEpisodeRewards], weights: RewardSourceWeights) -> Iterator[list[float]]:
    """Yield A_s = sum over sources k of w_k sum_{j >= s} gamma^{j-s} r^k_j, plus w_o gamma_o^{n-s} R."""
    for row in rows:
        process = rewards_to_go(_sum_weighted_sources(row.process, weights.process), weights.discount)
        yield _add_discounted_outcome_to_steps(process, weights.outcome * row.outcome, weights)


def rewards_to_go_divided_by_maximum(
    rows: Sequence[AgentEpisodeRewards], weights: RewardSourceWeights
) -> Iterator[list[float]]:
    """Yield `weighted_rewards_to_go` of process rewards, each source divided by its largest |reward-to-go| in the step.

    Agent-R1's released code (`prime_norm` in agent_r1/src/agent_ray_trainer.py, March 2025): process rewards divided by
    max |reverse cumulative sum| + 1e-6 over the batch, without discount, then added to the outcome.
    """
    return weighted_rewards_to_go(scale_by_max_reward_to_go(rows), weights)


def prime_advantages(
    rows: Sequence[AgentEpisodeRewards], weights: RewardSourceWeights, *, released_code: bool
) -> Iterator[list[float]]:
    """Yield each row's advantages by PRIME (arXiv 2502.01456), with turns as steps.

    As published: A_s = sum_{j >= s} gamma^{j-s} [r_j - mean over the others i' of mean_j r^{i'}_j] + R - mean of the
    others' R.

    `released_code`: the formula of the released code, before its final whitening. Every source is divided by
    max |reward-to-go| + 1e-6 over the step. Then its term is r_s K/(K-1) - (sum over all K of their mean r)/(K-1): the
    paper's term plus (r_s - mean r)/(K-1), so both are equal on the row's average. The outcome has the same term at the
    last turn. Each source is discounted separately, and the terms are added.
    """
    process = [
        _sum_weighted_sources(row.process, weights.process)
        for row in (scale_by_max_reward_to_go(rows) if released_code else rows)
    ]
    advantages = [[0.0] * len(rewards) for rewards in process]
    for members in _row_indices_by_group(rows).values():
        count = len(members)
        if count < 2:
            continue
        means, outcomes = [mean_exact_if_equal(process[i]) for i in members], [rows[i].outcome for i in members]
        if released_code:
            factor = count / (count - 1)
            process_baselines, outcome_baselines = (
                [mean_exact_if_equal(means)] * count,
                [mean_exact_if_equal(outcomes)] * count,
            )
        else:
            factor = 1.0
            process_baselines, outcome_baselines = _leave_one_out_means(means), _leave_one_out_means(outcomes)
        for i, process_baseline, outcome_baseline in zip(members, process_baselines, outcome_baselines, strict=True):
            differences = [factor * (reward - process_baseline) for reward in process[i]]
            to_go = rewards_to_go(differences, weights.discount)
            outcome = weights.outcome * factor * (rows[i].outcome - outcome_baseline)
            advantages[i] = _add_discounted_outcome_to_steps(to_go, outcome, weights)
    return iter(advantages)


def decoupled_advantages(rows: Sequence[AgentEpisodeRewards], weights: RewardSourceWeights) -> Iterator[list[float]]:
    """Yield advantages as in GDPO (arXiv 2601.05242), before the whitening: each source divided by its own deviation.

    Each source's rewards-to-go, and the outcome, are compared within the group, (x - mean) / (std + epsilon), ddof 1,
    then weighted and added. The mean of rewards-to-go is taken over the rows' nth turns, since later turns have fewer
    rewards to come in every row; the deviation is taken over all turns. With one turn per row this is GDPO itself.
    """
    values = [[0.0] * len(row.process[0]) for row in rows]
    for members in _row_indices_by_group(rows).values():
        if len(members) < 2:
            continue
        for k, weight in enumerate(weights.process):
            to_go = [rewards_to_go(rows[i].process[k], weights.discount) for i in members]
            for i, scaled in zip(members, _standardize_across_rows_by_step(to_go, weights.epsilon), strict=True):
                values[i] = [value + weight * x for value, x in zip(values[i], scaled, strict=True)]
        centre, scale = _mean_and_inverse_deviation([rows[i].outcome for i in members], weights.epsilon)
        for i in members:
            values[i] = _add_discounted_outcome_to_steps(
                values[i], weights.outcome * (rows[i].outcome - centre) * scale, weights
            )
    return iter(values)


FORMS: dict[str, Callable[[Sequence[AgentEpisodeRewards], RewardSourceWeights], Iterator[list[float]]]] = {
    "sum": weighted_rewards_to_go,
    "max_abs": rewards_to_go_divided_by_maximum,
    "prime_paper": partial(prime_advantages, released_code=False),
    "prime_released": partial(prime_advantages, released_code=True),
    "decoupled": decoupled_advantages,
}


def rewards_to_go(rewards: Sequence[float], discount: float) -> list[float]:
    """Return sum_{j >= s} discount^{j-s} x_j for every step s; `rewards` holds x_j."""
    return list(accumulate(reversed(rewards), lambda later, x: x + discount * later))[::-1]


def scale_by_max_reward_to_go(rows: Sequence[AgentEpisodeRewards]) -> list[AgentEpisodeRewards]:
    """Return the rows with every source divided by its largest undiscounted |reward-to-go| in the step + 1e-6."""
    divisors: list[float] = []
    for source in zip(*(row.process for row in rows), strict=True):
        to_go = chain.from_iterable(map(partial(rewards_to_go, discount=1.0), source))
        divisors.append(max(map(abs, to_go)) + _DIVISOR_EPSILON)
    scaled: list[AgentEpisodeRewards] = []
    for row in rows:
        process: list[list[float]] = []
        for rewards, divisor in zip(row.process, divisors, strict=True):
            process.append([reward / divisor for reward in rewards])
        scaled.append(replace(row, process=process))
    return scaled


def whiten_values(values: Sequence[float], variance_epsilon: float = 0.0, std_epsilon: float = 0.0) -> list[float]:
    """Return (x - mean) / (sqrt(var + variance_epsilon) + std_epsilon), ddof 1; all 0 if all values are equal."""
    centre, scale = _mean_and_inverse_deviation(values, std_epsilon, variance_epsilon)
    return [(x - centre) * scale for x in values]


def _standardize_across_rows_by_step(values_by_row: Sequence[Sequence[float]], std_epsilon: float) -> list[list[float]]:
    """Return (x - mean of the rows' nth numbers) / (std of all + std_epsilon), or zeros if the rows are equal."""
    columns: list[list[float]] = [[] for _ in max(values_by_row, key=len)]
    for row in values_by_row:
        for x, column in zip(row, columns, strict=False):
            column.append(x)
    _, scale = _mean_and_inverse_deviation(list(chain.from_iterable(values_by_row)), std_epsilon)
    if all(map(are_equal_up_to_rounding, columns)):
        scale = 0.0
    means = list(map(mean_exact_if_equal, columns))
    scaled: list[list[float]] = []
    for row in values_by_row:
        scaled.append([(x - mean) * scale for x, mean in zip(row, means, strict=False)])
    return scaled


def _mean_and_inverse_deviation(
    values: Sequence[float], std_epsilon: float, variance_epsilon: float = 0.0
) -> tuple[float, float]:
    """Return the mean of `values`, and 1 / (sqrt(var + variance_epsilon) + std_epsilon); (0, 0) if all are equal.

    Values that are not finite are left unchanged, (0, 1): the learner refuses and names their turns.
    """
    if not all(map(math.isfinite, values)):
        return 0.0, 1.0
    if len(values) < 2 or are_equal_up_to_rounding(values):
        return 0.0, 0.0
    return fmean(values), 1 / (math.sqrt(stdev(values) ** 2 + variance_epsilon) + std_epsilon)


def _sum_weighted_sources(rewards_by_source: Sequence[list[float]], weights: Sequence[float]) -> list[float]:
    """Return each step's process reward, summed over sources with `weights`."""
    if len(rewards_by_source) == 1 and weights[0] == 1:
        return rewards_by_source[0]
    return [sum(map(float.__mul__, weights, rewards)) for rewards in zip(*rewards_by_source, strict=True)]


def _add_discounted_outcome_to_steps(values: list[float], outcome: float, weights: RewardSourceWeights) -> list[float]:
    """Return `values` of an agent's steps plus the discounted `outcome`, which counts as paid at the last step."""
    last = len(values) - 1
    return [value + outcome * weights.outcome_discount ** (last - index) for index, value in enumerate(values)]


def _row_indices_by_group(rows: Iterable[AgentEpisodeRewards]) -> dict[Hashable, list[int]]:
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        groups[row.group].append(index)
    return groups


def _leave_one_out_means(values: Sequence[float]) -> list[float]:
    """Return, for each value, the mean of the other values."""
    # Equal values are returned unchanged, so that rounding in the formula below cannot make their differences nonzero.
    if min(values) == max(values):
        return list(values)
    total = sum(values)
    return [(total - value) / (len(values) - 1) for value in values]
