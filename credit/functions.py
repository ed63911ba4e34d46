"""Advantages of scores as plain functions, for use without episodes: lists in, lists out.

Every function takes scores first, then their groups, then options by name. The functions call the baselines of the same
name as if each score were the return of an episode with one turn, so equal scores of a group, and groups of one score,
give exactly 0. `whiten` and `gdpo` divide by std + epsilon (`guard: std`), and `gae` treats rewards as moments.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from marl.core.types import Advantage, Credit, TurnId
from marl.credit.assign.gae import Bootstrap, Discount
from marl.credit.assign.gae import gae as _gae
from marl.credit.baselines.group import Group, OpoBaseline, RlooBaseline
from marl.credit.baselines.peer_baseline import PeerBaselineConfig, PeerComparison, PeerUnit
from marl.credit.baselines.whiten import WhitenBaseline, exact_sum

Scores = Sequence[float]
Groups = Sequence[Hashable]


def grpo(scores: Scores, groups: Groups, *, std: bool = True, epsilon: float = 1e-6) -> list[float]:
    """Return (score - mean of its group) / (std of its group + epsilon), ddof 1 (GRPO, arXiv 2402.03300).

    Args:
        scores: the score of each answer.
        groups: the group of each answer; answers to one prompt have equal groups.
        std: divide by the standard deviation; False: Dr. GRPO's advantage (2503.20783).
        epsilon: 1e-6 in verl, 1e-4 in TRL.
    """
    return _values(_compare(Group(std=std, epsilon=epsilon), scores, groups))


def rloo(scores: Scores, groups: Groups) -> list[float]:
    """Return score - mean of the other scores of its group (RLOO, arXiv 2402.14740)."""
    return _values(_compare(RlooBaseline(), scores, groups))


def opo(scores: Scores, groups: Groups, lengths: Sequence[int]) -> list[float]:
    """Return score - mean of its group, weighted by `lengths` [tokens of each answer] (OPO, as in verl)."""
    return _values(_compare(OpoBaseline(), scores, groups, lengths))


def gdpo(
    scores: Mapping[str, Scores], groups: Groups, *, weights: Mapping[str, float] | None = None, epsilon: float = 1e-4
) -> list[float]:
    """Return the weighted sum of each reward's GRPO advantages, whitened over all answers (GDPO, arXiv 2601.05242).

    Args:
        scores: reward -> the score of each answer.
        groups: the group of each answer, as in `grpo`.
        weights: reward -> its weight (default: 1).
        epsilon: added to the standard deviation of each group, and to that of all answers.
    """
    weights = weights or {}
    comparisons = {name: _compare(Group(epsilon=epsilon), column, groups) for name, column in scores.items()}
    rows = []
    for name, comparison in comparisons.items():
        rows.append([weights.get(name, 1.0) * advantage for advantage in _values(comparison)])
    zeroed = set.intersection(*(set(comparison.zeroed) for comparison in comparisons.values())) if rows else set()
    # Answers whose groups differ in no reward count in the mean, but stay exactly 0.
    return _whitened(list(map(exact_sum, zip(*rows, strict=True))), epsilon, {index for _, index in zeroed})


def whiten(scores: Scores, *, epsilon: float = 1e-8) -> list[float]:
    """Return (score - mean) / (std + epsilon) over all scores, ddof 1; 0 for equal scores."""
    return _whitened(scores, epsilon, set())


def gae(
    rewards: Scores, values: Scores, *, gamma: float = 1.0, lam: float = 1.0, next_value: float = 0.0
) -> list[float]:
    """Return the advantages of successive moments (GAE, arXiv 1506.02438).

    Args:
        rewards: the reward of each moment.
        values: the value of the state before each moment.
        gamma: discount of a moment.
        lam: 1 trusts the rewards, 0 the values.
        next_value: value of the state after the last moment, for a truncated episode.
    """
    if len(rewards) != len(values):
        raise ValueError(f"{len(rewards)} rewards, but {len(values)} values; one is needed for each moment")
    return _gae(rewards, values, Discount(gamma, lam), Bootstrap(next_value))


def _compare(
    baseline: PeerBaselineConfig, scores: Scores, groups: Groups, lengths: Sequence[int] | None = None
) -> PeerComparison:
    """Return the baseline's comparison of scores; the turn of the score with index i is ("", i).

    Raises:
        ValueError: if `groups` or `lengths` has not one entry for each score.
    """
    columns: dict[str, Sequence[object]] = (
        {"groups": groups} if lengths is None else {"groups": groups, "lengths": lengths}
    )
    for name, column in columns.items():
        if len(column) != len(scores):
            raise ValueError(f"{len(scores)} scores, but {len(column)} {name}; one is needed for each score")
    earned: Credit = {}
    units: dict[Hashable, list[PeerUnit]] = {}
    for index, (score, group) in enumerate(zip(scores, groups, strict=True)):
        turn: TurnId = ("", index)
        earned[turn] = Advantage(score)
        units.setdefault(group, []).append(PeerUnit(score, (turn,), lengths[index] if lengths else 1))
    return baseline.formula.compare(list(units.values()), earned)


def _values(comparison: PeerComparison) -> list[float]:
    return [comparison.credit["", index].value for index in range(len(comparison.credit))]


def _whitened(scores: Scores, epsilon: float, zeroed: set[int]) -> list[float]:
    whitening = WhitenBaseline(unit="sequence", guard="std", epsilon=epsilon)
    mean, scale = whitening.mean_and_scale(scores, [1] * len(scores))
    if mean is None:
        return [0.0] * len(scores)
    return [0.0 if index in zeroed else (score - mean) * scale for index, score in enumerate(scores)]
