"""Values of credit's own: a linear head on the acting models' hidden states, refitted exactly after every step.

This module imports torch, so only `build()` imports it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from marl.core.state import check_same_tensors
from marl.core.types import TurnId
from marl.protocols import Evidence

WIDTH = 128
"""Maximum number of features of a prompt: wider hidden states are projected at random (Johnson-Lindenstrauss)."""
_PENALTIES = torch.logspace(-2, 9, 23, dtype=torch.float64)
"""Candidate penalties of the ridge regression on standardised features; the last one leaves nearly only the mean."""


class RidgeValues:
    """Expected return before a turn, predicted from the hidden state at the last token of its prompt; per role.

    Values of a step come from earlier steps only, so a value never depends on the return of its own turn. Before the
    first step values are 0. The value of turns without a hidden state (of policies that do not learn) is the running
    mean of their role.
    """

    needs = frozenset({"hidden"})

    def __init__(self, forget: float) -> None:
        self._forget = forget
        self._fits: dict[str, RidgeRegression] = {}

    def values(self, evidence: Evidence) -> dict[TurnId, tuple[float, ...]]:
        """Return one value for each turn, except turns of roles that answer by rule."""
        values: dict[TurnId, tuple[float, ...]] = {}
        for name, turns, features in _regressions(evidence):
            fit = self._fits.get(name)
            predicted = fit.predict(features) if fit else [0.0] * len(turns)
            values.update(zip(turns, zip(predicted, strict=True), strict=True))
        return values

    def learn(self, evidence: Evidence, targets: Mapping[TurnId, float]) -> None:
        """Add a step's returns; the weight of a role's earlier returns is multiplied by `forget`."""
        for name, turns, features in _regressions(evidence):
            rows = [index for index, turn in enumerate(turns) if turn in targets]
            if rows:
                fit = self._fits.setdefault(name, RidgeRegression(features.shape[1]))
                fit.learn(features[rows], [targets[turns[index]] for index in rows], self._forget)

    def state_dict(self) -> dict[str, Any]:
        return {name: fit.state_dict() for name, fit in self._fits.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._fits = {name: RidgeRegression.from_state(fit) for name, fit in state.items()}


def _regressions(evidence: Evidence) -> Iterator[tuple[str, list[TurnId], Tensor]]:
    """Yield each regression's name, its distinct turns (N) and their features [N, F]."""
    groups: dict[str, dict[TurnId, Any]] = {}
    for trajectory in evidence.trajectories:
        for turn in trajectory.turns:
            if turn.role not in evidence.rule_based_roles:
                reading = evidence.readings.get(turn.id)
                hidden = reading.hidden if reading else None
                name = turn.role if hidden is not None else f"{turn.role} unread"
                groups.setdefault(name, {})[turn.id] = hidden
    for name, turns in groups.items():
        yield name, list(turns), _features(list(turns.values()))


def _features(hidden: Sequence[Any]) -> Tensor:
    """Return [N, F] in float64: the states at the prompts' ends, projected if wider than `WIDTH`; F = 0 without
    states."""
    if hidden[0] is None:
        return torch.zeros(len(hidden), 0, dtype=torch.float64)
    states = torch.stack(list(hidden))[:, 0].double()
    width = states.shape[1]
    return states if width <= WIDTH else states @ _projection(width)


@cache
def _projection(width: int) -> Tensor:
    # Seeded by the width alone: the projection must be the same after a restart, and is not stored.
    generator = torch.Generator().manual_seed(width)
    return torch.randn(width, WIDTH, generator=generator, dtype=torch.float64) / WIDTH**0.5


class RidgeRegression:
    """Ridge regression y ~ x from weighted sums of products: exact, and without a learning rate.

    Features are standardised, the mean is not penalised, and generalised cross-validation chooses the penalty (Golub,
    Heath and Wahba 1979): the minimum of rss / (n - df)^2 over penalties with df <= n / 2.
    """

    def __init__(self, width: int) -> None:
        self._moments = torch.zeros(width + 2, width + 2, dtype=torch.float64)
        """Weighted sum of z z' over all pairs, with z = (1, x, y)."""
        self._range = torch.tensor([torch.inf, -torch.inf], dtype=torch.float64)
        """Smallest and largest y so far: predictions are clipped to this range."""

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> RidgeRegression:
        """Return the regression with the given `state_dict`.

        Raises:
            ValueError: if the shapes or types of its tensors do not fit.
        """
        fit = cls(len(state["moments"]) - 2)
        check_same_tensors(state, fit.state_dict(), "state of a regression")
        fit._moments, fit._range = state["moments"].clone(), state["range"].clone()
        return fit

    def state_dict(self) -> dict[str, Any]:
        return {"moments": self._moments.clone(), "range": self._range.clone()}

    def learn(self, x: Tensor, y: Sequence[float], forget: float = 1.0) -> None:
        """Add pairs (x [N, F], y [N]); the weight of earlier pairs is multiplied by `forget`."""
        column = torch.tensor(y, dtype=torch.float64)[:, None]
        rows = torch.cat([torch.ones_like(column), x, column], 1)
        self._moments = forget * self._moments + rows.T @ rows
        self._range = torch.stack([column.min().minimum(self._range[0]), column.max().maximum(self._range[1])])

    def predict(self, x: Tensor) -> list[float]:
        """Return the expected y of each row of x [N, F]."""
        weight = self._moments[0, 0]
        mean = self._moments[0] / weight
        slopes = _slopes(self._moments, mean, float(weight))
        predicted = mean[-1] + (x - mean[1:-1]) @ slopes
        return predicted.clamp(*self._range.tolist()).tolist()


def _slopes(moments: Tensor, mean: Tensor, weight: float) -> Tensor:
    """Return the ridge coefficients [F] of the raw features, from `moments` [F + 2, F + 2] and their mean."""
    scatter = moments - weight * mean.outer(mean)
    spread, size = scatter.diagonal()[1:-1], moments.diagonal()[1:-1]
    # Features that vary less than the rounding of a float32 state count as constant.
    scale = torch.where(spread > 1e-10 * size, (spread / weight).rsqrt(), 0.0)
    gram = scatter[1:-1, 1:-1] * scale.outer(scale)
    power, axes = torch.linalg.eigh(gram)
    power = power.clamp_min(0.0)
    projected = axes.T @ (scatter[1:-1, -1] * scale)
    sums = power + _PENALTIES[:, None]
    freedom = 1 + (power / sums).sum(1)
    residual = float(scatter[-1, -1]) - (projected**2 * (sums + _PENALTIES[:, None]) / sums**2).sum(1)
    score = torch.where(freedom <= weight / 2, residual / (weight - freedom) ** 2, torch.inf)
    # With too little data no penalty is admissible; then the largest one is chosen, which predicts the mean.
    score[-1] = score[-1].clamp_max(torch.finfo(score.dtype).max)
    penalty = float(_PENALTIES[score.argmin()])
    return axes @ (projected / (power + penalty)) * scale
