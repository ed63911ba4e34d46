"""Metrics of one update, summed on the device and read once."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from marl.types import Metrics
from trainers.batching.batches import Batch
from trainers.objectives.objective import Terms

AT_START = ("kl_sampler",)
"""Measured before the update has moved the weights: on the first optimizer step's samples."""


@dataclass(slots=True)
class Pass:
    """What one optimizer step says of itself."""

    rows: int
    means: dict[str, float] = field(default_factory=dict)
    """Of which the mean over steps is reported."""
    sums_S: Tensor | float = 0.0
    """Sums over tokens of the statistics, then the parts of the loss, then how many tokens there were."""

    @torch.no_grad()
    def add(self, terms: Terms, batch: Batch) -> None:
        """Count one forward pass."""
        weights_BT = batch.counted_BT * batch.counts_B[:, None]
        sums = [(torch.where(batch.counted_BT, stat, 0.0) * weights_BT).sum() for stat in terms.stats]
        numbers = [*sums, *terms.parts.values(), weights_BT.sum()]
        self.sums_S = self.sums_S + torch.stack([number.detach().double() for number in numbers])


@dataclass(slots=True)
class Meter:
    """Collects the steps of one update."""

    parts: tuple[str, ...]
    stats: tuple[str, ...]
    passes: list[Pass] = field(default_factory=list)

    def add(self, one: Pass) -> None:
        """Count one optimizer step."""
        self.passes.append(one)

    def metrics(self) -> Metrics:
        """Means over tokens of the statistics, means over steps of the rest; zeros if nothing was learned."""
        if not self.passes:
            return dict.fromkeys(("loss", "grad_norm", *self.parts, "tokens", "rows", *self.stats), 0.0)
        steps, first = len(self.passes), self.passes[0]
        table = [torch.as_tensor(one.sums_S).tolist() for one in self.passes]
        sums, start = [sum(column) for column in zip(*table, strict=True)], table[0]
        many = len(self.stats)
        means = [
            start[i] / max(start[-1], 1) if name in AT_START else sums[i] / max(sums[-1], 1)
            for i, name in enumerate(self.stats)
        ]
        return {
            **{name: sum(p.means[name] for p in self.passes) / steps for name in first.means},
            **{name: value / steps for name, value in zip(self.parts, sums[many:-1], strict=True)},
            "tokens": sums[-1],
            "rows": float(sum(p.rows for p in self.passes)),
            **dict(zip(self.stats, means, strict=True)),
        }
