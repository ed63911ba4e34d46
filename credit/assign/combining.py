"""How process rewards and the outcome make one number for each turn.

A row is what one agent did in one episode: turns s = 1..n with process rewards r_s, and an outcome R. Rows of one group
began in the same state and have the same agent; K of them are compared. What is compared with nobody (K = 1) gets 0.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean, stdev

from credit.inherited import mean

Floats = list[float]
_SMALL = 1e-6
"""Added to what PRIME's released code and Agent-R1's divide process rewards by."""
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class Row:
    """One agent in one episode."""

    group: Hashable
    process: Sequence[Floats]
    """Of each source, one number a turn."""
    outcome: float


@dataclass(frozen=True, slots=True)
class Mix:
    """How much each source counts."""

    weights: Sequence[float]
    """Of the process rewards, in the order of `Row.process`."""
    outcome: float = 1.0
    discount: float = 1.0
    """Of process rewards, per turn of the agent."""
    outcome_discount: float = 1.0
    """Of the outcome, which counts as paid at the agent's last turn."""
    epsilon: float = 1e-6
    """Added to the spreads of `decoupled`."""


def weighted_sum(rows: Sequence[Row], mix: Mix) -> Iterator[Floats]:
    """A_s = sum over sources k of w_k sum_{j >= s} gamma^{j-s} r^k_j, plus w_o gamma_o^{n-s} R."""
    for row in rows:
        process = to_go(_added(row.process, mix.weights), mix.discount)
        yield _plus(process, mix.outcome * row.outcome, mix)


def max_abs(rows: Sequence[Row], mix: Mix) -> Iterator[Floats]:
    """`weighted_sum` of process rewards that are divided, source by source, by the step's largest |reward-to-go|.

    Agent-R1's released code (`prime_norm` in agent_r1/src/agent_ray_trainer.py, March 2025): process rewards divided by
    max |reverse cumulative sum| + 1e-6 over the batch, without discount, then added to the outcome.
    """
    return weighted_sum(normalised(rows), mix)


def prime_paper(rows: Sequence[Row], mix: Mix) -> Iterator[Floats]:
    """PRIME as published (arXiv 2502.01456), a step being a turn.

    A_s = sum_{j >= s} gamma^{j-s} [r_j - mean over the others i' of mean_j r^{i'}_j] + R - mean of the others' R.
    """
    added = [_added(row.process, mix.weights) for row in rows]
    means, outcomes = _others(rows, [mean(r) for r in added]), _others(rows, [row.outcome for row in rows])
    for row, process, theirs, outcome in zip(rows, added, means, outcomes, strict=True):
        if theirs is None or outcome is None:
            yield [0.0] * len(process)
            continue
        left = to_go([reward - theirs for reward in process], mix.discount)
        yield _plus(left, mix.outcome * (row.outcome - outcome), mix)


def prime_released(rows: Sequence[Row], mix: Mix) -> Iterator[Floats]:
    """PRIME as in its released code, before the whitening that ends it.

    Every source is divided by max |reward-to-go| + 1e-6 over the step; then r_s K/(K-1) - sum over all K of their mean
    r, divided by K-1, which is the paper's term plus (r_s - mean r)/(K-1) and so equals it on the row's average; the
    outcome likewise, at the last turn; each source is discounted on its own, and they are added.
    """
    scaled = normalised(rows)
    added = [_added(row.process, mix.weights) for row in scaled]
    means, outcomes = _all(rows, [mean(r) for r in added]), _all(rows, [row.outcome for row in rows])
    for row, process, of_all, of_outcomes in zip(rows, added, means, outcomes, strict=True):
        if of_all is None or of_outcomes is None:
            yield [0.0] * len(process)
            continue
        (theirs, many), (outcome, _) = of_all, of_outcomes
        grown = many / (many - 1)
        left = to_go([grown * (reward - theirs) for reward in process], mix.discount)
        yield _plus(left, mix.outcome * grown * (row.outcome - outcome), mix)


def decoupled(rows: Sequence[Row], mix: Mix) -> Iterator[Floats]:
    """In the way of GDPO (arXiv 2601.05242), before the whitening that ends it: each source in units of its own spread.

    Each source's rewards-to-go, and the outcome, are compared within the group: (x - mean) / (std + epsilon), ddof 1,
    over all turns of the group, and for the outcome over its rows; then they are weighted and added. With one turn a
    row it is GDPO itself.
    """
    left = [[to_go(source, mix.discount) for source in row.process] for row in rows]
    of = _grouped(rows)
    worths = [[0.0] * len(sources[0]) for sources in left]
    for members in of.values():
        if len(members) < 2:
            continue
        for k, weight in enumerate(mix.weights):
            centre, scale = _spread([x for i in members for x in left[i][k]], mix.epsilon)
            for i in members:
                worths[i] = [w + weight * (x - centre) * scale for w, x in zip(worths[i], left[i][k], strict=True)]
        centre, scale = _spread([rows[i].outcome for i in members], mix.epsilon)
        for i in members:
            worths[i] = _plus(worths[i], mix.outcome * (rows[i].outcome - centre) * scale, mix)
    return iter(worths)


Form = Callable[[Sequence[Row], Mix], Iterator[Floats]]
FORMS: dict[str, Form] = {
    "sum": weighted_sum,
    "max_abs": max_abs,
    "prime_paper": prime_paper,
    "prime_released": prime_released,
    "decoupled": decoupled,
}


def to_go(values: Sequence[float], discount: float) -> Floats:
    """sum_{j >= s} discount^{j-s} x_j for every s."""
    return list(accumulate(reversed(values), lambda later, x: x + discount * later))[::-1]


def normalised(rows: Sequence[Row]) -> list[Row]:
    """Every source divided by its largest |reward-to-go| in the step, without discount, plus 1e-6."""
    sources = range(len(rows[0].process)) if rows else ()
    most = [max(max(map(abs, to_go(row.process[k], 1.0))) for row in rows) + _SMALL for k in sources]
    return [
        Row(row.group, [[r / top for r in source] for source, top in zip(row.process, most, strict=True)], row.outcome)
        for row in rows
    ]


def compared(rows: Sequence[Row]) -> list[bool]:
    """Whether a row has peers."""
    groups = _grouped(rows)
    return [len(groups[row.group]) > 1 for row in rows]


def whitened(values: Sequence[float], in_variance: float = 0.0, in_std: float = 0.0) -> Floats:
    """(x - mean) / (sqrt(var + in_variance) + in_std), ddof 1; all 0 where there is no difference."""
    centre, scale = _spread(values, in_std, in_variance)
    return [(x - centre) * scale for x in values]


def _spread(values: Sequence[float], in_std: float, in_variance: float = 0.0) -> tuple[float, float]:
    """Mean, and what to multiply a difference with; 0 where there is none beyond rounding."""
    if len(values) < 2 or max(values) - min(values) <= _ROUNDING * max(map(abs, values)):
        return 0.0, 0.0
    return fmean(values), 1 / (math.sqrt(stdev(values) ** 2 + in_variance) + in_std)


def _added(process: Sequence[Floats], weights: Sequence[float]) -> Floats:
    if len(process) == 1 and weights[0] == 1:
        return process[0]
    return [sum(map(float.__mul__, weights, at)) for at in zip(*process, strict=True)]


def _plus(values: Floats, outcome: float, mix: Mix) -> Floats:
    if mix.outcome_discount == 1:
        return [value + outcome for value in values]
    last = len(values) - 1
    return [value + outcome * mix.outcome_discount ** (last - place) for place, value in enumerate(values)]


def _grouped(rows: Iterable[Row]) -> dict[Hashable, list[int]]:
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        groups[row.group].append(place)
    return groups


def _others(rows: Sequence[Row], values: Floats) -> list[float | None]:
    """The mean of the other rows of a row's group; None where there is none."""
    found: list[float | None] = [None] * len(rows)
    for members in _grouped(rows).values():
        own = [values[i] for i in members]
        same, total, many = min(own) == max(own), sum(own), len(own)
        for i in members if many > 1 else ():
            found[i] = values[i] if same else (total - values[i]) / (many - 1)
    return found


def _all(rows: Sequence[Row], values: Floats) -> list[tuple[float, int] | None]:
    """The mean of a row's group, and how many it has; None where the row is alone."""
    found: list[tuple[float, int] | None] = [None] * len(rows)
    for members in _grouped(rows).values():
        if len(members) > 1:
            centre = mean([values[i] for i in members]), len(members)
            for i in members:
                found[i] = centre
    return found
