"""How far two credit rules agree."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from marl.graph import Trajectory
from marl.types import Credit, Metrics, TurnId

_ROUNDING = 1e-9


def compare(trajectories: Iterable[Trajectory], ours: Credit, theirs: Credit) -> dict[str, Metrics]:
    """Role -> how far two rules agree, over the turns that both judge; see `agreement`."""
    pairs: dict[str, dict[TurnId, tuple[float, float]]] = defaultdict(dict)
    for turn in (turn for trajectory in trajectories for turn in trajectory.turns):
        if turn.id in ours and turn.id in theirs:
            pairs[turn.role][turn.id] = ours[turn.id].value, theirs[turn.id].value
    return {role: agreement(list(own.values())) for role, own in sorted(pairs.items())}


def agreement(pairs: Sequence[tuple[float, float]]) -> Metrics:
    """How far two rules agree on the same turns, given as pairs of advantages.

    `sign_agreement`: of the turns to which either gives something other than 0, the share with the same sign;
    `correlation` (Pearson); `rank_correlation` (Spearman; ties share their mean rank); `difference`: mean of the
    absolute one. A figure that is not defined is left out.
    """
    ours, theirs = np.array(pairs, dtype=float).reshape(-1, 2).T
    found = {"difference": float(np.abs(ours - theirs).mean())} if len(ours) else {}
    signs = np.stack([np.sign(ours), np.sign(theirs)])[:, (ours != 0) | (theirs != 0)]
    if signs.size:
        found["sign_agreement"] = float((signs[0] == signs[1]).mean())
    figures = {"correlation": _pearson(ours, theirs), "rank_correlation": _pearson(_ranks(ours), _ranks(theirs))}
    return found | {name: value for name, value in figures.items() if value is not None}


def _pearson(a: np.ndarray, b: np.ndarray) -> float | None:
    """None where one of them is constant."""
    if len(a) < 2 or not (np.ptp(a) > _ROUNDING * np.abs(a).max() and np.ptp(b) > _ROUNDING * np.abs(b).max()):
        return None
    return float(np.corrcoef(a, b)[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    _, places, many = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(many) - (many - 1) / 2)[places]
