"""Settings of policy losses, such as `loss: {kind: ppo_clip, clip_high: 0.28}`. The formulas are in `losses.py`."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from types import ModuleType
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from marl.protocols import LossConfig, LossFunction


class BuiltInLossConfig(LossConfig):
    """Base settings of the losses whose formulas are in `losses.py`."""

    def build(self) -> LossFunction:
        # The import is late because the formulas need torch, and settings are checked without it.
        from marl.trainers.policy_gradient import losses

        return self.bind_loss_function(losses)

    @abstractmethod
    def bind_loss_function(self, losses_module: ModuleType) -> LossFunction:
        """Return a loss function of `losses_module` (`losses.py`) with these settings bound as its options."""

    def __call__(self, logprobs_BT: Any, old_logprobs_BT: Any, advantages_BT: Any, mask_BT: Any) -> Any:
        return self.build()(logprobs_BT, old_logprobs_BT, advantages_BT, mask_BT)


class ClippedLoss(BuiltInLossConfig):
    """Base settings of the losses that clip a ratio."""

    linear: ClassVar[bool] = True
    formula: ClassVar[str]
    """Name of the loss function in `losses.py`, with the arguments `clip` and `limit`."""
    clip_low: PositiveFloat = 0.2
    """Clip range below 1: ratios under 1 - `clip_low` are clipped (`gmpo`: log-ratios under -`clip_low` nats)."""
    clip_high: PositiveFloat = 0.2
    """Clip range above 1: ratios over 1 + `clip_high` are clipped (`gmpo`: log-ratios over `clip_high` nats)."""
    max_log_ratio: PositiveFloat | None = None
    """Limit (nats) to which log-ratios of tokens, or of rows for a ratio per row, are clamped, without gradient beyond.
    20 in verl and OpenRLHF, 10 in verl's GSPO. None: no limit."""

    def bind_loss_function(self, losses_module: ModuleType) -> LossFunction:
        clip = self.clip_low, self.clip_high
        return partial(getattr(losses_module, self.formula), clip=clip, max_log_ratio=self.max_log_ratio)


class PpoClipLoss(ClippedLoss):
    """PPO (1707.06347): the clipped surrogate of a token's ratio; clip-higher (2503.14476), dual clip (1912.09729)."""

    kind: str = "ppo_clip"
    dual_clip: float | None = Field(default=None, gt=1)
    """Maximum ratio of tokens with a negative advantage (verl: 3). None: no maximum."""

    def bind_loss_function(self, losses_module: ModuleType) -> LossFunction:
        clip = self.clip_low, self.clip_high
        loss = partial(losses_module.clipped_surrogate, clip=clip, dual_clip=self.dual_clip)
        return losses_module.with_clamped_log_ratio(loss, self.max_log_ratio)


class GspoLoss(ClippedLoss):
    """GSPO (2507.18071): the clipped surrogate of a row's ratio, to the power of one over its length."""

    kind: str = "gspo"
    formula: ClassVar[str] = "gspo"
    by_row: ClassVar[bool] = True
    clip_low: PositiveFloat = 3e-4
    clip_high: PositiveFloat = 4e-4


class GspoTokenLoss(ClippedLoss):
    """GSPO-token (2507.18071): the loss of `gspo` for advantages that differ within a row."""

    kind: str = "gspo_token"
    formula: ClassVar[str] = "gspo_token"
    clip_low: PositiveFloat = 3e-4
    clip_high: PositiveFloat = 4e-4


class RlooLoss(ClippedLoss):
    """RLOO (2402.14740, as in TRL): the clipped surrogate of a row's product of ratios."""

    kind: str = "rloo"
    formula: ClassVar[str] = "rloo"
    by_row: ClassVar[bool] = True


class CispoLoss(BuiltInLossConfig):
    """CISPO (2506.13585): -A log π, weighted by a constant clipped ratio; no token loses its gradient."""

    kind: str = "cispo"
    linear: ClassVar[bool] = True
    ratio_low: NonNegativeFloat = 0.0
    """Minimum ratio, not a distance from 1; the default is that of CISPO and ScaleRL."""
    ratio_high: PositiveFloat = 5.0
    """Maximum ratio, not a distance from 1; the default is that of CISPO and ScaleRL."""

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        if self.ratio_low >= self.ratio_high:
            raise ValueError(f"ratio_low must be below ratio_high, got {self.ratio_low} and {self.ratio_high}")
        return self

    def bind_loss_function(self, losses_module: ModuleType) -> LossFunction:
        return partial(losses_module.cispo, ratio_bounds=(self.ratio_low, self.ratio_high))


class SapoLoss(BuiltInLossConfig):
    """SAPO (2511.20347): a sigmoid gate of the ratio in place of the clip."""

    kind: str = "sapo"
    linear: ClassVar[bool] = True
    tau_positive: PositiveFloat = 1.0
    """Temperature of the sigmoid for advantages above 0."""
    tau_negative: PositiveFloat = 1.05
    """Temperature of the sigmoid for other advantages."""
    max_log_ratio: PositiveFloat | None = None
    """Limit (nats) to which log-ratios are clamped, without gradient beyond. None: no limit."""

    def bind_loss_function(self, losses_module: ModuleType) -> LossFunction:
        return losses_module.with_clamped_log_ratio(
            partial(losses_module.sapo, temperatures=(self.tau_positive, self.tau_negative)), self.max_log_ratio
        )


class GmpoLoss(ClippedLoss):
    """GMPO (2507.20673): the geometric mean of a row's clipped ratios."""

    kind: str = "gmpo"
    formula: ClassVar[str] = "gmpo"
    by_row: ClassVar[bool] = True
    clip_low: PositiveFloat = 0.4
    clip_high: PositiveFloat = 0.4


class ReinforceLoss(BuiltInLossConfig):
    """REINFORCE (Williams 1992): -A log π, without a ratio."""

    kind: str = "reinforce"
    linear: ClassVar[bool] = True
    has_ratio: ClassVar[bool] = False

    def bind_loss_function(self, losses_module: ModuleType) -> LossFunction:
        return lambda logprobs_BT, _, advantages_BT, mask_BT: losses_module.reinforce(
            logprobs_BT, advantages_BT, mask_BT
        )


class AwrLoss(BuiltInLossConfig):
    """AWR (1910.00177; CRR, 2006.15134): -log π, weighted by exp(A / beta) or by A > 0; off-policy, without a ratio."""

    kind: str = "awr"
    has_ratio: ClassVar[bool] = False
    weight: Literal["exp", "binary"] = "exp"
    """Weight of a token with advantage A. `exp`: exp(A / beta). `binary`: 1 if A > 0, else 0, so that only decisions
    that went better than expected are imitated (CRR)."""
    beta: PositiveFloat = 1.0
    """Temperature of the weight exp(A / beta), in units of the advantage: rewards, or standard deviations if credit
    whitens. A small `beta` imitates only the best turns; a large `beta` imitates all turns, as `sft` does."""
    max_weight: float = Field(default=20.0, ge=1)
    """Maximum weight of a token (AWR and CRR: 20)."""

    @model_validator(mode="after")
    def _check_options_have_effect(self) -> Self:
        # Fields are compared with their defaults, because a resolved scenario sets every field.
        for name in ("beta", "max_weight"):
            value = dict(self)[name]
            if self.weight == "binary" and value != type(self).model_fields[name].default:
                raise ValueError(f"{name}: {value} has no effect with weight: binary; remove it, or choose exp")
        return self

    def bind_loss_function(self, losses_module: ModuleType) -> LossFunction:
        if self.weight == "binary":
            return lambda logprobs_BT, _, advantages_BT, mask_BT: losses_module.positive_advantage_only(
                logprobs_BT, advantages_BT, mask_BT
            )
        options = {"beta": self.beta, "max_weight": self.max_weight}
        return lambda logprobs_BT, _, advantages_BT, mask_BT: losses_module.advantage_weighted(
            logprobs_BT, advantages_BT, mask_BT, **options
        )


_LOSSES = (PpoClipLoss, GspoLoss, GspoTokenLoss, RlooLoss, CispoLoss, SapoLoss, GmpoLoss, ReinforceLoss, AwrLoss)
LOSS_OPTIONS = frozenset(name for loss in _LOSSES for name in loss.model_fields) - {"kind"}
"""Names of the options of all losses here. Learners refuse them outside of `loss`, where earlier versions took them."""
