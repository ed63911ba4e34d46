"""The rule of VDN and QMIX: utilities of turns, and a mixer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from marl.core.types import Turn
from marl.credit.assign.fitted import ValueDecompositionAssign
from marl.credit.mixing.fitted_rule import FittedNetworkRule, FittedNetworks, TargetFunction, double_q_targets
from marl.credit.mixing.networks import RoundBatch, UtilityNetworks
from marl.credit.mixing.round_tensors import FeatureLayout, RoundTensors
from marl.models.mixers import QmixMixer, VdnMixer
from marl.protocols import Evidence


class DecompositionRule(FittedNetworkRule[UtilityNetworks]):
    """VDN and QMIX, fitted to the step's episodes: a turn earns its utility's marginal contribution to Q_tot."""

    def __init__(self, settings: ValueDecompositionAssign, embed: int = 0) -> None:
        """`embed`: width of QMIX's mixer; 0: the mixer is VDN's sum."""
        super().__init__(settings)
        self.needs_listed_moves, self._embed = settings.targets == "max", embed

    def make_networks(self, layout: FeatureLayout) -> UtilityNetworks:
        width, seats = self.settings.fit.width, len(layout.seats)
        mixer = QmixMixer(seats, layout.round_state_feature_count, self._embed, width) if self._embed else VdnMixer()
        return UtilityNetworks(layout, mixer, width)

    def target_function(
        self, record: RoundTensors, online_networks: UtilityNetworks, target_networks: UtilityNetworks
    ) -> TargetFunction:
        if not self.needs_listed_moves:
            return super().target_function(record, online_networks, target_networks)
        return lambda rounds: double_q_targets(record, rounds, online_networks, target_networks, self.settings.gamma)

    @torch.no_grad()
    def credit_by_seat(
        self, fitted: FittedNetworks[UtilityNetworks], evidence: Evidence, record: RoundTensors, turns: Sequence[Turn]
    ) -> Tensor:
        return fitted.networks.marginal_contributions(RoundBatch(record))

    def predict_returns(self, networks: UtilityNetworks, record: RoundTensors) -> Tensor:
        return networks.round_values(RoundBatch(record))[:, None]
