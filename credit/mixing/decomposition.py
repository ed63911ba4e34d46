"""The rule of VDN and QMIX: utilities of turns, and a mixer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from marl.core.types import Turn
from marl.credit.assign.fitted import Decomposition
from marl.credit.mixing.fitted_rule import FittedNetworks, FittedRule, Targets, double_q_targets
from marl.credit.mixing.networks import RoundBatch, UtilityNetworks
from marl.credit.mixing.round_tensors import FeatureLayout, RoundTensors
from marl.models.mixers import QmixMixer, VdnMixer
from marl.protocols import Evidence


class DecompositionRule(FittedRule[UtilityNetworks]):
    """A turn earns the change of Q_tot that its utility makes, by networks that are fitted to its step first."""

    def __init__(self, settings: Decomposition, embed: int = 0) -> None:
        """`embed`: width of the monotonic mixer; 0: the mixer is a sum."""
        super().__init__(settings)
        self.options, self._embed = settings.targets == "max", embed

    def make_networks(self, layout: FeatureLayout) -> UtilityNetworks:
        width, seats = self.settings.fit.width, len(layout.seats)
        mixer = QmixMixer(seats, layout.state_size, self._embed, width) if self._embed else VdnMixer()
        return UtilityNetworks(layout, mixer, width)

    def targets(self, record: RoundTensors, online: UtilityNetworks, target: UtilityNetworks) -> Targets:
        if not self.options:
            return super().targets(record, online, target)
        return lambda rounds: double_q_targets(record, rounds, online, target, self.settings.gamma)

    @torch.no_grad()
    def credit(
        self, fitted: FittedNetworks[UtilityNetworks], evidence: Evidence, record: RoundTensors, turns: Sequence[Turn]
    ) -> Tensor:
        return fitted.networks.marginals(RoundBatch(record))

    def predict(self, networks: UtilityNetworks, record: RoundTensors) -> Tensor:
        return networks.total(RoundBatch(record))[:, None]
