"""State values that credit fits itself: a linear head on the acting models' hidden states, refitted after every step.

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
"""Maximum number of features of a prompt; wider hidden states are projected at random (Johnson-Lindenstrauss)."""
_PENALTIES = torch.logspace(-2, 9, 23, dtype=torch.float64)
"""Candidate penalties of the ridge regression on standardised features. With the largest, predictions are nearly the
mean."""


class RidgeValueSource:
    """Expected return before a turn, predicted from the hidden state at the last token of its prompt; per role.

    Values are predicted from earlier steps only, so a value never depends on the return of its own turn. In the first
    step all values are 0. Turns without a hidden state, whose policies do not learn, get the running mean of their
    role.
    """

    needed_reading_fields = frozenset({"hidden"})

    def __init__(self, forget: float) -> None:
        """`forget`: factor by which the weight of earlier returns is multiplied at each step."""
        self._forget = forget
        self._fits: dict[str, RidgeRegression] = {}

    def values(self, evidence: Evidence) -> dict[TurnId, tuple[float, ...]]:
        """Return turn -> its single value, for all turns except turns of rule-based roles."""
        values: dict[TurnId, tuple[float, ...]] = {}
        for name, turns, features in _regression_inputs(evidence):
            fit = self._fits.get(name)
            predicted = fit.predict(features) if fit else [0.0] * len(turns)
            values.update(zip(turns, zip(predicted, strict=True), strict=True))
        return values

    def fit_values(self, evidence: Evidence, targets: Mapping[TurnId, float]) -> None:
        """Fit each role's regression to `targets` (turn -> return); weights of earlier returns shrink by `forget`."""
        for name, turns, features in _regression_inputs(evidence):
            rows = [row for row, turn in enumerate(turns) if turn in targets]
            if rows:
                fit = self._fits.setdefault(name, RidgeRegression(features.shape[1]))
                fit.add_samples(features[rows], [targets[turns[row]] for row in rows], self._forget)

    def state_dict(self) -> dict[str, Any]:
        return {name: fit.state_dict() for name, fit in self._fits.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._fits = {name: RidgeRegression.from_state(fit) for name, fit in state.items()}


def _regression_inputs(evidence: Evidence) -> Iterator[tuple[str, list[TurnId], Tensor]]:
    """Yield the name of each regression (a role), its N distinct turns, and their features [N, F] in float64.

    Wide hidden states are projected. Turns without a hidden state have a regression with F = 0.
    """
    groups: dict[str, dict[TurnId, Any]] = {}
    for trajectory in evidence.trajectories:
        for turn in trajectory.turns:
            if turn.role not in evidence.rule_based_roles:
                reading = evidence.readings.get(turn.id)
                hidden = reading.hidden if reading else None
                name = turn.role if hidden is not None else f"{turn.role} unread"
                groups.setdefault(name, {})[turn.id] = hidden
    for name, turns in groups.items():
        hidden = list(turns.values())
        features = torch.zeros(len(hidden), 0, dtype=torch.float64)
        if hidden[0] is not None:
            # The features of a prompt are the hidden state at its last token, which is in row 0.
            features = torch.stack(hidden)[:, 0].double()
            if features.shape[1] > WIDTH:
                features = features @ _random_projection_matrix(features.shape[1])
        yield name, list(turns), features


@cache
def _random_projection_matrix(hidden_size: int) -> Tensor:
    # The projection is not stored, and must be the same after a restart, so its seed is the width alone.
    generator = torch.Generator().manual_seed(hidden_size)
    return torch.randn(hidden_size, WIDTH, generator=generator, dtype=torch.float64) / WIDTH**0.5


class RidgeRegression:
    """Ridge regression of y on x, computed from weighted sums of products: exact, and without a learning rate.

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

    def add_samples(self, x: Tensor, y: Sequence[float], forgetting_factor: float = 1.0) -> None:
        """Add pairs (x [N, F], y [N]); the weight of earlier pairs is multiplied by `forgetting_factor`."""
        column = torch.tensor(y, dtype=torch.float64)[:, None]
        rows = torch.cat([torch.ones_like(column), x, column], 1)
        self._moments = forgetting_factor * self._moments + rows.T @ rows
        self._range = torch.stack([column.min().minimum(self._range[0]), column.max().maximum(self._range[1])])

    def predict(self, x: Tensor) -> list[float]:
        """Return the expected y of each row of x [N, F]."""
        mean = self._moments[0] / self._moments[0, 0]
        weight = float(self._moments[0, 0])
        scatter = self._moments - weight * mean.outer(mean)
        spread, size = scatter.diagonal()[1:-1], self._moments.diagonal()[1:-1]
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
        # With too little data all scores are infinite; the largest penalty is then chosen, which predicts the mean.
        score[-1] = score[-1].clamp_max(torch.finfo(score.dtype).max)
        penalty = float(_PENALTIES[score.argmin()])
        # The ridge coefficients, shape [features], apply to features that are not standardised.
        slopes = axes @ (projected / (power + penalty)) * scale
        predicted = mean[-1] + (x - mean[1:-1]) @ slopes
        return predicted.clamp(*self._range.tolist()).tolist()
