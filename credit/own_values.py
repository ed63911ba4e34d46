"""Values that credit fits itself: a linear head on the acting models' hidden states, refitted exactly after every step.

Imports torch: for `build()` only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from marl.protocols import Evidence
from marl.state import expect_alike
from marl.types import TurnId

WIDTH = 128
"""Features of a prompt, at most: wider hidden states are projected at random (Johnson-Lindenstrauss)."""
_PENALTIES = torch.logspace(-2, 9, 23, dtype=torch.float64)
"""Of the ridge regression, in standardised features; the last is as good as no features at all."""


class OwnValues:
    """Expected return before a turn, from the hidden state at the last token of its prompt; per role.

    Values of a step come from earlier steps only, so that a value never depends on the return that is compared with
    it. Before the first step values are 0. The value of turns without a hidden state (of policies that do not learn)
    is the running mean of their role.
    """

    needs = frozenset({"hidden"})

    def __init__(self, forget: float) -> None:
        self._forget = forget
        self._fits: dict[str, Ridge] = {}

    def values(self, evidence: Evidence) -> dict[TurnId, tuple[float, ...]]:
        """Return one value for each turn of a role that does not answer by rule."""
        values: dict[TurnId, tuple[float, ...]] = {}
        for name, turns, features in _regressions(evidence):
            fit = self._fits.get(name)
            predicted = fit.predict(features) if fit else [0.0] * len(turns)
            values.update(zip(turns, ((value,) for value in predicted), strict=True))
        return values

    def learn(self, evidence: Evidence, targets: Mapping[TurnId, float]) -> None:
        """Add a step's returns; a role's earlier ones count `forget` times what they did."""
        for name, turns, features in _regressions(evidence):
            if rows := [index for index, turn in enumerate(turns) if turn in targets]:
                fit = self._fits.setdefault(name, Ridge(features.shape[1]))
                fit.learn(features[rows], [targets[turns[index]] for index in rows], self._forget)

    def state_dict(self) -> dict[str, Any]:
        return {name: fit.state_dict() for name, fit in self._fits.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._fits = {name: Ridge.from_state(fit) for name, fit in state.items()}


def _regressions(evidence: Evidence) -> Iterator[tuple[str, list[TurnId], Tensor]]:
    """Yield a name, its turns (each once) and their features [N, F], for all turns that share a regression."""
    groups: dict[str, dict[TurnId, Any]] = {}
    for trajectory in evidence.trajectories:
        for turn in trajectory.turns:
            if turn.role not in evidence.rules:
                reading = evidence.readings.get(turn.id)
                hidden = reading.hidden if reading else None
                name = turn.role if hidden is not None else f"{turn.role} unread"
                groups.setdefault(name, {})[turn.id] = hidden
    for name, turns in groups.items():
        yield name, list(turns), _features(list(turns.values()))


def _features(hidden: Sequence[Any]) -> Tensor:
    """Return [N, F] in float64: the states at the prompts' ends, projected if they are wide; F = 0 without states."""
    if hidden[0] is None:
        return torch.zeros(len(hidden), 0, dtype=torch.float64)
    states = torch.stack(list(hidden))[:, 0].double()
    width = states.shape[1]
    return states if width <= WIDTH else states @ _projection(width)


@cache
def _projection(width: int) -> Tensor:
    generator = torch.Generator().manual_seed(width)
    return torch.randn(width, WIDTH, generator=generator, dtype=torch.float64) / WIDTH**0.5


class Ridge:
    """Linear regression y ~ x from weighted sums of products: exact, and without a learning rate.

    Features are standardised, the mean is not penalised, and generalised cross-validation chooses the penalty (Golub,
    Heath and Wahba 1979): the one with the least rss / (n - df)^2, among those with df <= n / 2.
    """

    def __init__(self, width: int) -> None:
        self._moments = torch.zeros(width + 2, width + 2, dtype=torch.float64)
        """Weighted sum of z z' with z = (1, x, y)."""
        self._range = torch.tensor([torch.inf, -torch.inf], dtype=torch.float64)
        """Least and greatest y so far: predictions are clipped to it."""

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Ridge:
        """Return the regression whose `state_dict` this is.

        Raises:
            ValueError: if it is none.
        """
        fit = cls(len(state["moments"]) - 2)
        expect_alike(state, fit.state_dict(), "state of a regression")
        fit._moments, fit._range = state["moments"].clone(), state["range"].clone()
        return fit

    def state_dict(self) -> dict[str, Any]:
        return {"moments": self._moments.clone(), "range": self._range.clone()}

    def learn(self, x: Tensor, y: Sequence[float], forget: float = 1.0) -> None:
        """Add pairs (x [N, F], y [N]); earlier ones count `forget` times what they did."""
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
    # Features that vary less than the rounding of a float32 state are constant.
    scale = torch.where(spread > 1e-10 * size, (spread / weight).rsqrt(), 0.0)
    gram = scatter[1:-1, 1:-1] * scale.outer(scale)
    power, axes = torch.linalg.eigh(gram)
    power = power.clamp_min(0.0)
    along = axes.T @ (scatter[1:-1, -1] * scale)
    penalty = _penalty(power, along, float(scatter[-1, -1]), weight)
    return axes @ (along / (power + penalty)) * scale


def _penalty(power: Tensor, along: Tensor, spread: float, weight: float) -> float:
    """Return the penalty that predicts best, by generalised cross-validation."""
    sums = power + _PENALTIES[:, None]
    freedom = 1 + (power / sums).sum(1)
    rest = spread - (along**2 * (sums + _PENALTIES[:, None]) / sums**2).sum(1)
    score = torch.where(freedom <= weight / 2, rest / (weight - freedom) ** 2, torch.inf)
    score[-1] = score[-1].clamp_max(torch.finfo(score.dtype).max)
    return float(_PENALTIES[score.argmin()])
