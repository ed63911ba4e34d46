"""Losses of a policy's tokens: `loss: {kind: ppo_clip, clip_high: 0.28}`. The formulas are in `losses.py`."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from types import ModuleType
from typing import Any, ClassVar, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from marl.protocols import LossConfig, LossFunction


class FormulaLoss(LossConfig):
    """Base of the losses of `losses.py`."""

    def build(self) -> LossFunction:
        # Imported here, as the formulas need torch and settings are checked without it.
        from marl.trainers.policy_gradient import losses

        return self.bind(losses)

    @abstractmethod
    def bind(self, losses: ModuleType) -> LossFunction:
        """Return the loss function of the module `losses.py` with these settings."""

    def __call__(self, logprobs_BT: Any, old_logprobs_BT: Any, advantages_BT: Any, mask_BT: Any) -> Any:
        return self.build()(logprobs_BT, old_logprobs_BT, advantages_BT, mask_BT)


class ClippedLoss(FormulaLoss):
    """Base of the losses that clip a ratio."""

    linear: ClassVar[bool] = True
    clip_low: PositiveFloat = 0.2
    """Greatest distance of the ratio below 1; with `gmpo`, of its log (nats) below 0."""
    clip_high: PositiveFloat = 0.2
    """Greatest distance of the ratio above 1; with `gmpo`, of its log (nats) above 0."""
    max_log_ratio: PositiveFloat | None = None
    """Limit (nats) to which log-ratios of tokens, or of rows where the ratio is a row's, are clamped; no gradient flows
    beyond it: 20 in verl and OpenRLHF, 10 in verl's GSPO. None: there is no limit."""

    @property
    def clip(self) -> tuple[float, float]:
        """Distances of the bounds from 1: (`clip_low`, `clip_high`)."""
        return self.clip_low, self.clip_high


class PpoClipLoss(ClippedLoss):
    """PPO (1707.06347): the clipped surrogate of a token's ratio; clip-higher (2503.14476), dual clip (1912.09729)."""

    kind: str = "ppo_clip"
    dual_clip: float | None = Field(default=None, gt=1)
    """Greatest ratio of tokens with a negative advantage (verl: 3). None: there is none."""

    def bind(self, losses: ModuleType) -> LossFunction:
        return losses.clamped_ratio(
            partial(losses.clipped_surrogate, clip=self.clip, dual=self.dual_clip), self.max_log_ratio
        )


class GspoLoss(ClippedLoss):
    """GSPO (2507.18071): the clipped surrogate of a row's ratio, to the power of one over its length."""

    kind: str = "gspo"
    by_row: ClassVar[bool] = True
    clip_low: PositiveFloat = 3e-4
    clip_high: PositiveFloat = 4e-4

    def bind(self, losses: ModuleType) -> LossFunction:
        return partial(losses.gspo, clip=self.clip, limit=self.max_log_ratio)


class GspoTokenLoss(ClippedLoss):
    """GSPO-token (2507.18071): the loss of `gspo` for advantages that differ within a row."""

    kind: str = "gspo_token"
    clip_low: PositiveFloat = 3e-4
    clip_high: PositiveFloat = 4e-4

    def bind(self, losses: ModuleType) -> LossFunction:
        return partial(losses.gspo_token, clip=self.clip, limit=self.max_log_ratio)


class RlooLoss(ClippedLoss):
    """RLOO (2402.14740, as in TRL): the clipped surrogate of a row's product of ratios."""

    kind: str = "rloo"
    by_row: ClassVar[bool] = True

    def bind(self, losses: ModuleType) -> LossFunction:
        return partial(losses.rloo, clip=self.clip, limit=self.max_log_ratio)


class CispoLoss(FormulaLoss):
    """CISPO (2506.13585): -A log π, weighted by a constant clipped ratio; no token loses its gradient."""

    kind: str = "cispo"
    linear: ClassVar[bool] = True
    ratio_low: NonNegativeFloat = 0.0
    """Least ratio, absolute; the default is CISPO's and ScaleRL's."""
    ratio_high: PositiveFloat = 5.0
    """Greatest ratio, absolute; the default is CISPO's and ScaleRL's."""

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        if self.ratio_low >= self.ratio_high:
            raise ValueError(f"ratio_low must be below ratio_high, got {self.ratio_low} and {self.ratio_high}")
        return self

    def bind(self, losses: ModuleType) -> LossFunction:
        return partial(losses.cispo, bounds=(self.ratio_low, self.ratio_high))


class SapoLoss(FormulaLoss):
    """SAPO (2511.20347): a sigmoid gate of the ratio in place of the clip."""

    kind: str = "sapo"
    linear: ClassVar[bool] = True
    tau_positive: PositiveFloat = 1.0
    """Temperature for advantages above 0."""
    tau_negative: PositiveFloat = 1.05
    """Temperature for other advantages."""
    max_log_ratio: PositiveFloat | None = None
    """Limit (nats) to which log-ratios are clamped; no gradient flows beyond it. None: there is no limit."""

    def bind(self, losses: ModuleType) -> LossFunction:
        return losses.clamped_ratio(
            partial(losses.sapo, temperatures=(self.tau_positive, self.tau_negative)), self.max_log_ratio
        )


class GmpoLoss(ClippedLoss):
    """GMPO (2507.20673): the geometric mean of a row's clipped ratios."""

    kind: str = "gmpo"
    by_row: ClassVar[bool] = True
    clip_low: PositiveFloat = 0.4
    clip_high: PositiveFloat = 0.4

    def bind(self, losses: ModuleType) -> LossFunction:
        return partial(losses.gmpo, clip=self.clip, limit=self.max_log_ratio)


class ReinforceLoss(FormulaLoss):
    """REINFORCE (Williams 1992): -A log π, without a ratio."""

    kind: str = "reinforce"
    linear: ClassVar[bool] = True
    has_ratio: ClassVar[bool] = False

    def bind(self, losses: ModuleType) -> LossFunction:
        return lambda logprobs_BT, _, advantages_BT, mask_BT: losses.reinforce(logprobs_BT, advantages_BT, mask_BT)


class AwrLoss(FormulaLoss):
    """AWR (1910.00177; CRR, 2006.15134): -log π, weighted by exp(A / beta); off-policy, without a ratio."""

    kind: str = "awr"
    has_ratio: ClassVar[bool] = False
    beta: PositiveFloat = 1.0
    """Advantage at which a weight is e times as large; in the units of rewards, or of standard deviations where credit
    whitens. A small `beta` imitates only the best turns, a large one all turns, as `sft` does."""
    max_weight: float = Field(default=20.0, ge=1)
    """Greatest weight (AWR and CRR: 20)."""

    def bind(self, losses: ModuleType) -> LossFunction:
        options = {"beta": self.beta, "max_weight": self.max_weight}
        return lambda logprobs_BT, _, advantages_BT, mask_BT: losses.advantage_weighted(
            logprobs_BT, advantages_BT, mask_BT, **options
        )


_LOSSES = (PpoClipLoss, GspoLoss, GspoTokenLoss, RlooLoss, CispoLoss, SapoLoss, GmpoLoss, ReinforceLoss, AwrLoss)
LOSS_OPTIONS = frozenset(name for loss in _LOSSES for name in loss.model_fields) - {"kind"}
"""Options of all losses here. A learner refuses them beside `loss`, where earlier versions took them."""
