"""VDN and QMIX at work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from credit.mixing.fitted import Fitted, FittedRule, Targets, double_q_targets
from credit.mixing.networks import Mixture, RoundBatch
from marl.models.mixers import QmixMixer, VdnMixer

if TYPE_CHECKING:
    from credit.assign.value_decomposition import Decomposition
    from credit.mixing.records import Layout, Record
    from marl.protocols import Evidence
    from marl.types import Turn


class Mixer(FittedRule[Mixture]):
    """A turn earns its marginal through the mixer, by networks that were fitted to its step before."""

    def __init__(self, settings: Decomposition, embed: int = 0) -> None:
        """`embed`: width of a monotonic mixer; 0 for a sum."""
        super().__init__(settings)
        self.options, self._embed = settings.targets == "max", embed

    def make_networks(self, layout: Layout) -> Mixture:
        width, seats = self.settings.fit.width, len(layout.seats)
        mixer = QmixMixer(seats, layout.state, self._embed, width) if self._embed else VdnMixer()
        return Mixture(layout, mixer, width)

    def targets(self, record: Record, online: Mixture, target: Mixture) -> Targets:
        if not self.options:
            return super().targets(record, online, target)
        return lambda rounds: double_q_targets(record, rounds, online, target, self.settings.gamma)

    @torch.no_grad()
    def judge(self, fitted: Fitted[Mixture], evidence: Evidence, record: Record, turns: Sequence[Turn]) -> Tensor:
        return fitted.networks.marginals(RoundBatch(record))

    def predict(self, networks: Mixture, record: Record) -> Tensor:
        return networks.total(RoundBatch(record))[:, None]
