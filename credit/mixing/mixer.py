"""VDN and QMIX at work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from credit.mixing.fitted import Fitted, FittedRule, Plan
from credit.mixing.networks import Batch, Mixture, Monotonic, Sum
from credit.mixing.targets import DoubleQ, Returns

if TYPE_CHECKING:
    from credit.assign.value_decomposition import Decomposition
    from credit.mixing.record import Layout, Record
    from marl.protocols import Evidence
    from marl.types import Turn, TurnId


class Mixer(FittedRule[Mixture]):
    """A turn is worth its marginal through the mixer, judged by networks that were fitted to its step before."""

    def __init__(self, settings: Decomposition, embed: int = 0) -> None:
        """`embed`: width of a monotonic mixer; 0 for a sum."""
        maximises = settings.targets == "max"
        targets = DoubleQ(settings.gamma) if maximises else Returns(settings.gamma, settings.lam)

        def networks(layout: Layout) -> Mixture:
            width = settings.fit.width
            mixer = Monotonic(len(layout.seats), layout.state, embed, width) if embed else Sum()
            return Mixture(layout, mixer, width)

        super().__init__(Plan(settings, networks, targets, maximises))

    @torch.no_grad()
    def judge(self, fitted: Fitted[Mixture], evidence: Evidence, record: Record, turns: Sequence[Turn]) -> Tensor:
        return fitted.networks.marginals(Batch(record))

    def explained(self, fitted: Fitted[Mixture], record: Record) -> Tensor:
        return fitted.networks.total(Batch(record))[:, None]

    @torch.no_grad()
    def utilities(self, evidence: Evidence) -> dict[TurnId, dict[str, float]]:
        """Turn -> move -> Q of that move in its place, for turns whose moves are listed. Nothing is fitted."""
        fitted, played = self.fitted(evidence), self.rounds(evidence)
        record, turns = fitted.record(played, evidence, options=True)
        q = fitted.networks.possible(Batch(record))[record.turns >= 0].tolist()
        return {
            turns[place].id: dict(zip(turns[place].request.options or (), values, strict=False))
            for place, values in zip(record.turns[record.turns >= 0].tolist(), q, strict=True)
        }
