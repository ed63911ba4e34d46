"""Advantages of scores as plain functions, for use without episodes: they take lists and return lists.

Every function takes scores first, then their groups, then options by name. The functions call the baselines of the same
name as if each score were the return of an episode with one turn, so equal scores of a group, and groups of one score,
give exactly 0. `whiten` and `gdpo` divide by std + epsilon (`guard: std`); for `gae`, each reward is one time step.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from marl.core.types import Advantage, Credit, TurnId
from marl.credit.assign.gae import BootstrapValueAndAdvantage, GammaAndLambda
from marl.credit.assign.gae import gae as _gae
from marl.credit.baselines.group import GrpoBaseline, OpoBaseline, RlooBaseline
from marl.credit.baselines.peer_baseline import ComparisonUnit, PeerBaselineConfig, PeerComparison
from marl.credit.baselines.whiten import WhitenBaseline, sum_with_exact_zero

Scores = Sequence[float]
Groups = Sequence[Hashable]


def grpo(scores: Scores, groups: Groups, *, std: bool = True, epsilon: float = 1e-6) -> list[float]:
    """Return (score - mean of its group) / (std of its group + epsilon), ddof 1 (GRPO, arXiv 2402.03300).

    Args:
        scores: the score of each answer.
        groups: the group of each answer; answers to one prompt have equal groups.
        std: True to divide by the standard deviation; False gives Dr. GRPO's advantage (2503.20783).
        epsilon: number added to the standard deviation: 1e-6 in verl, 1e-4 in TRL.
    """
    return _advantages_in_score_order(_compare_scores(GrpoBaseline(std=std, epsilon=epsilon), scores, groups))


def rloo(scores: Scores, groups: Groups) -> list[float]:
    """Return score - mean of the other scores of its group (RLOO, arXiv 2402.14740)."""
    return _advantages_in_score_order(_compare_scores(RlooBaseline(), scores, groups))


def opo(scores: Scores, groups: Groups, lengths: Sequence[int]) -> list[float]:
    """Return score - mean of its group, weighted by `lengths` [tokens of each answer] (OPO, as in verl)."""
    return _advantages_in_score_order(_compare_scores(OpoBaseline(), scores, groups, lengths))


def gdpo(
    scores: Mapping[str, Scores], groups: Groups, *, weights: Mapping[str, float] | None = None, epsilon: float = 1e-4
) -> list[float]:
    """Return the weighted sum of each reward's GRPO advantages, whitened over all answers (GDPO, arXiv 2601.05242).

    Args:
        scores: reward -> the score of each answer.
        groups: the group of each answer, as in `grpo`.
        weights: reward -> its weight (default: 1).
        epsilon: number added to the standard deviation of each group, and to the standard deviation of all answers.
    """
    weights = weights or {}
    rows: list[list[float]] = []
    zeroed: list[set[TurnId]] = []
    for name, column in scores.items():
        comparison = _compare_scores(GrpoBaseline(epsilon=epsilon), column, groups)
        weight = weights.get(name, 1.0)
        rows.append([weight * advantage for advantage in _advantages_in_score_order(comparison)])
        zeroed.append(set(comparison.zeroed))
    # An answer has advantage exactly 0 if no reward differs within its groups. The answer still counts in the mean.
    zero_turns = set.intersection(*zeroed) if zeroed else set[TurnId]()
    return _whiten_scores(
        list(map(sum_with_exact_zero, zip(*rows, strict=True))), epsilon, {index for _, index in zero_turns}
    )


def whiten(scores: Scores, *, epsilon: float = 1e-8) -> list[float]:
    """Return (score - mean) / (std + epsilon) over all scores, ddof 1; 0 for equal scores."""
    return _whiten_scores(scores, epsilon, set())


def gae(
    rewards: Scores, values: Scores, *, gamma: float = 1.0, lam: float = 1.0, next_value: float = 0.0
) -> list[float]:
    """Return the advantages of successive time steps (GAE, arXiv 1506.02438).

    Args:
        rewards: the reward of each time step.
        values: the value of the state before each time step.
        gamma: discount from one time step to the next.
        lam: GAE's lambda: 1 sums up rewards, 0 uses the value one time step later instead.
        next_value: value of the state after the last time step, for a truncated episode.
    """
    if len(rewards) != len(values):
        raise ValueError(f"{len(rewards)} rewards, but {len(values)} values; one is needed for each moment")
    return _gae(rewards, values, GammaAndLambda(gamma, lam), BootstrapValueAndAdvantage(next_value))


def _compare_scores(
    baseline: PeerBaselineConfig, scores: Scores, groups: Groups, lengths: Sequence[int] | None = None
) -> PeerComparison:
    """Return the comparison of `scores` by `baseline`, in which score i is the credit of the turn ("", i).

    Raises:
        ValueError: if `groups` or `lengths` has not one entry for each score.
    """
    for name, column in (("groups", groups), ("lengths", lengths)):
        if column is not None and len(column) != len(scores):
            raise ValueError(f"{len(scores)} scores, but {len(column)} {name}; one is needed for each score")
    earned: Credit = {}
    units: dict[Hashable, list[ComparisonUnit]] = {}
    for index, (score, group) in enumerate(zip(scores, groups, strict=True)):
        turn: TurnId = ("", index)
        earned[turn] = Advantage(score)
        units.setdefault(group, []).append(ComparisonUnit(score, (turn,), lengths[index] if lengths else 1))
    return baseline.peer_formula.compare_with_peers(list(units.values()), earned)


def _advantages_in_score_order(comparison: PeerComparison) -> list[float]:
    return [comparison.credit["", index].value for index in range(len(comparison.credit))]


def _whiten_scores(scores: Scores, epsilon: float, zeroed_indices: set[int]) -> list[float]:
    whitening = WhitenBaseline(unit="sequence", guard="std", epsilon=epsilon)
    mean, scale = whitening.mean_and_inverse_deviation(scores, [1] * len(scores))
    if mean is None:
        return [0.0] * len(scores)
    return [0.0 if index in zeroed_indices else (score - mean) * scale for index, score in enumerate(scores)]
