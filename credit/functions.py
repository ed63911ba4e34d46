"""Advantages of scores as plain functions, for use without episodes: lists in, lists out.

Arguments are in one order everywhere: scores, then what they are compared by, then options by name. The numbers are
those of the baselines (and of `gae`) of the same name on episodes in which each agent speaks once. Scores that are all
equal in a group, and groups of one, give exactly 0.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from statistics import fmean, stdev

from credit.assign.gae import Discount, Later
from credit.assign.gae import gae as _gae
from credit.baselines.peers import all_equal

Scores = Sequence[float]
Groups = Sequence[Hashable]


def grpo(scores: Scores, groups: Groups, *, std: bool = True, epsilon: float = 1e-6) -> list[float]:
    """Return (score - mean of its group) / (std of its group + epsilon), ddof 1 (GRPO, arXiv 2402.03300).

    Args:
        scores: one for each answer.
        groups: for each answer, what it is compared with: equal for answers to one prompt.
        std: divide; without it, this is Dr. GRPO's advantage (2503.20783).
        epsilon: in verl 1e-6, in TRL 1e-4.
    """

    def compare(peers: Scores) -> list[float]:
        mean, scale = fmean(peers), 1 / (stdev(peers) + epsilon) if std else 1.0
        return [(score - mean) * scale for score in peers]

    return _in_groups(scores, groups, compare)


def rloo(scores: Scores, groups: Groups) -> list[float]:
    """Return score - mean of the others of its group (RLOO, arXiv 2402.14740)."""
    return _in_groups(scores, groups, lambda peers: [(s - fmean(peers)) * len(peers) / (len(peers) - 1) for s in peers])


def opo(scores: Scores, groups: Groups, lengths: Sequence[int]) -> list[float]:
    """Return score - mean of its group, weighted by `lengths`, the tokens of each answer (OPO, as in verl)."""
    places = _places(scores, groups, lengths=lengths)
    advantages = [0.0] * len(scores)
    for group in places:
        peers = [scores[place] for place in group]
        if len(group) > 1 and not all_equal(peers) and any(lengths[place] for place in group):
            mean = fmean(peers, [lengths[place] for place in group])
            for place in group:
                advantages[place] = scores[place] - mean
    return advantages


def gdpo(
    scores: Mapping[str, Scores], groups: Groups, *, weights: Mapping[str, float] | None = None, epsilon: float = 1e-4
) -> list[float]:
    """Return GRPO's advantages of each named reward, weighted, added, and whitened over all (GDPO, arXiv 2601.05242).

    Args:
        scores: reward -> one score for each answer.
        groups: as in `grpo`.
        weights: reward -> its weight; default 1.
        epsilon: added to the deviations of groups, and to that of all.
    """
    weights = weights or {}
    parts = [
        [weights.get(name, 1.0) * advantage for advantage in grpo(each, groups, epsilon=epsilon)]
        for name, each in scores.items()
    ]
    return whiten([sum(column) for column in zip(*parts, strict=True)], epsilon=epsilon)


def whiten(scores: Scores, *, epsilon: float = 1e-8) -> list[float]:
    """Return (score - mean) / (std + epsilon) over all, ddof 1; 0 for equal scores."""
    return grpo(scores, [0] * len(scores), epsilon=epsilon)


def gae(
    rewards: Scores, values: Scores, *, gamma: float = 1.0, lam: float = 1.0, next_value: float = 0.0
) -> list[float]:
    """Return the advantages of moments in their order (GAE, arXiv 1506.02438).

    Args:
        rewards: of each moment.
        values: of the state before each moment.
        gamma: discount of a moment.
        lam: 1 trusts the rewards, 0 the values.
        next_value: of the state after the last moment, if the episode was truncated there.
    """
    if len(rewards) != len(values):
        raise ValueError(f"{len(rewards)} rewards, but {len(values)} values; one is needed for each moment")
    return _gae(rewards, values, Discount(gamma, lam), Later(next_value))


def _in_groups(scores: Scores, groups: Groups, compare: Callable[[Scores], list[float]]) -> list[float]:
    advantages = [0.0] * len(scores)
    for group in _places(scores, groups):
        peers = [scores[place] for place in group]
        if len(group) > 1 and not all_equal(peers):
            for place, advantage in zip(group, compare(peers), strict=True):
                advantages[place] = advantage
    return advantages


def _places(scores: Scores, groups: Groups, **more: Sequence[object]) -> list[list[int]]:
    """Return the places of each group's answers.

    Raises:
        ValueError: if there is not one of everything for each score.
    """
    for name, column in {"groups": groups, **more}.items():
        if len(column) != len(scores):
            raise ValueError(f"{len(scores)} scores, but {len(column)} {name}; one is needed for each score")
    places: dict[Hashable, list[int]] = defaultdict(list)
    for place, group in enumerate(groups):
        places[group].append(place)
    return list(places.values())
