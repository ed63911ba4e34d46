"""Metrics of one update, summed on the device and read once."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from marl.types import Metrics

AT_START = ("kl_sampler",)
"""Measured before the update has moved the weights: on the first optimizer step's samples."""


@dataclass(frozen=True, slots=True)
class Pass:
    """What one optimizer step says of itself."""

    means: dict[str, float]
    """Of which the mean over steps is reported."""
    sums_S: Tensor
    """Sums over tokens."""
    tokens: int
    rows: int


@dataclass(slots=True)
class Meter:
    """Collects the steps of one update."""

    stats: tuple[str, ...]
    passes: list[Pass] = field(default_factory=list)

    def add(self, one: Pass) -> None:
        """Count one optimizer step."""
        self.passes.append(one)

    def metrics(self) -> Metrics:
        """Means over tokens of the statistics, means over steps of the rest; zeros if nothing was learned."""
        if not self.passes:
            names = ("loss", "policy_loss", "grad_norm", "tokens", "rows", *self.stats)
            return dict.fromkeys(names, 0.0)
        steps, first = len(self.passes), self.passes[0]
        tokens = sum(p.tokens for p in self.passes)
        table_KS = torch.stack([p.sums_S for p in self.passes])
        means, start = (table_KS.sum(0) / tokens).tolist(), (table_KS[0] / first.tokens).tolist()
        chosen = [s if name in AT_START else m for name, m, s in zip(self.stats, means, start, strict=True)]
        return {
            **{name: sum(p.means[name] for p in self.passes) / steps for name in first.means},
            "tokens": float(tokens),
            "rows": float(sum(p.rows for p in self.passes)),
            **dict(zip(self.stats, chosen, strict=True)),
        }
