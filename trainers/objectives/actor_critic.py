"""PPO (arXiv 1707.06347): a policy gradient, and a critic that learns with it. Values are in the units of rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torch import Tensor, nn

from marl.types import Sample
from trainers.batching.batches import Batch
from trainers.batching.rows import Floats, Row
from trainers.forward.token_outputs import TokenOutputs
from trainers.losses.aggregation import Totals
from trainers.objectives.objective import LossTerms
from trainers.objectives.policy_gradient import Surrogate
from trainers.objectives.values import ValueLoss

if TYPE_CHECKING:
    from trainers.settings.policy_gradient import Ppo


class ActorCritic(Surrogate):
    """The policy's loss + the critic's."""

    def __init__(self, settings: Ppo, model: nn.Module, values: ValueLoss, steps: int) -> None:
        super().__init__(settings, model, steps)
        self._values, self.critic = values, values.critic
        self.parts = (*self.parts, *values.parts)
        self.needs |= values.needs
        self.lr_scale = values.lr_scale

    def modules(self) -> Mapping[str, nn.Module]:
        return self._values.modules()

    def start(self, update: int) -> None:
        super().start(update)
        self._values.start(update)

    def rows(self, samples: Sequence[Sample]) -> list[Row]:
        """Return rows of samples with equal tokens, signs and value targets.

        Raises:
            ValueError: as `ValueLoss.with_targets`.
        """
        return self._values.with_targets(super().rows(samples))

    def alike(self, sample: Sample) -> Floats:
        return self._values.alike(sample)

    def forward(self, model: nn.Module, batch: Batch) -> TokenOutputs:
        """Return the policy's outputs, during the warm-up without gradient, neither the policy's nor the values'."""
        with self._values.policy_gradient():
            return super().forward(model, batch)

    def policy_terms(self, outputs: TokenOutputs, batch: Batch, totals: Totals) -> LossTerms:
        """Return the policy's loss and the critic's."""
        return self._values.added(super().policy_terms(outputs, batch, totals), outputs, batch, totals)

    def read(self, outputs: TokenOutputs, batch: Batch, wanted: frozenset[str]) -> dict[str, Tensor]:
        return super().read(outputs, batch, wanted) | self._values.read(outputs, batch, wanted)
