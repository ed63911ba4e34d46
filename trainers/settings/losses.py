"""Losses of a policy's tokens, as parts: `loss: {kind: clip, clip_high: 0.28}`. The formulas are in `trainers.losses`.

Light: torch is imported in the calls, whose tensors [B, T] are those of `LossConfig.__call__`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from marl.protocols import LossConfig

if TYPE_CHECKING:
    from torch import Tensor


class _Clipped(LossConfig):
    """Base of the losses that clip a ratio."""

    linear: ClassVar[bool] = True
    clip_low: PositiveFloat = 0.2
    """Greatest distance of the ratio below 1; with `geometric_mean`, of its log (nats) below 0."""
    clip_high: PositiveFloat = 0.2
    """Greatest distance of the ratio above 1; with `geometric_mean`, of its log (nats) above 0."""
    max_log_ratio: PositiveFloat | None = None
    """Log-ratios (nats) of tokens, or of rows where the ratio is a row's, are clamped to it, without gradient beyond:
    20 in verl and OpenRLHF, 10 in verl's GSPO. None: they are not."""


class ClippedLoss(_Clipped):
    """PPO (1707.06347): the clipped surrogate of a token's ratio; clip-higher (2503.14476), dual clip (1912.09729)."""

    kind: str = "clip"
    dual_clip: float | None = Field(default=None, gt=1)
    """Greatest ratio of tokens with a negative advantage (verl: 3). None: there is none."""

    def __call__(
        self, logprobs_BT: Tensor, old_logprobs_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor
    ) -> tuple[Tensor, Tensor]:
        from trainers.losses.policy import clipped_surrogate, within

        if self.max_log_ratio is not None:
            logprobs_BT = within(logprobs_BT, old_logprobs_BT, self.max_log_ratio)
        clip = self.clip_low, self.clip_high
        return clipped_surrogate(logprobs_BT, old_logprobs_BT, advantages_BT, mask_BT, clip, self.dual_clip)


class SequenceRatioLoss(_Clipped):
    """GSPO (2507.18071): the clipped surrogate of a row's ratio, to the power of one over its length."""

    kind: str = "sequence_ratio"
    by_row: ClassVar[bool] = True
    clip_low: PositiveFloat = 3e-4
    clip_high: PositiveFloat = 4e-4

    def __call__(self, *tensors_BT: Tensor) -> tuple[Tensor, Tensor]:
        from trainers.losses.policy import gspo

        return gspo(*tensors_BT, clip=(self.clip_low, self.clip_high), limit=self.max_log_ratio)


class TokenSequenceRatioLoss(_Clipped):
    """GSPO-token (2507.18071): the same for advantages that differ within a row."""

    kind: str = "token_sequence_ratio"
    clip_low: PositiveFloat = 3e-4
    clip_high: PositiveFloat = 4e-4

    def __call__(self, *tensors_BT: Tensor) -> tuple[Tensor, Tensor]:
        from trainers.losses.policy import gspo_token

        return gspo_token(*tensors_BT, clip=(self.clip_low, self.clip_high), limit=self.max_log_ratio)


class SequenceProductLoss(_Clipped):
    """RLOO (2402.14740, as in TRL): the clipped surrogate of a row's product of ratios."""

    kind: str = "sequence_product"
    by_row: ClassVar[bool] = True

    def __call__(self, *tensors_BT: Tensor) -> tuple[Tensor, Tensor]:
        from trainers.losses.policy import sequence_surrogate

        return sequence_surrogate(*tensors_BT, clip=(self.clip_low, self.clip_high), limit=self.max_log_ratio)


class ClippedWeightLoss(LossConfig):
    """CISPO (2506.13585): -A log π, weighted by a constant clipped ratio; no token loses its gradient."""

    kind: str = "clipped_weight"
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

    def __call__(self, *tensors_BT: Tensor) -> tuple[Tensor, Tensor]:
        from trainers.losses.policy import cispo

        return cispo(*tensors_BT, bounds=(self.ratio_low, self.ratio_high))


class SigmoidGateLoss(LossConfig):
    """SAPO (2511.20347): a sigmoid gate of the ratio in place of the clip."""

    kind: str = "sigmoid_gate"
    linear: ClassVar[bool] = True
    tau_positive: PositiveFloat = 1.0
    """Temperature for advantages above 0."""
    tau_negative: PositiveFloat = 1.05
    """Temperature for other advantages."""
    max_log_ratio: PositiveFloat | None = None
    """Log-ratios (nats) are clamped to it, without gradient beyond. None: they are not."""

    def __call__(self, logprobs_BT: Tensor, old_logprobs_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor) -> Tensor:
        from trainers.losses.policy import sapo, within

        if self.max_log_ratio is not None:
            logprobs_BT = within(logprobs_BT, old_logprobs_BT, self.max_log_ratio)
        temperatures = self.tau_positive, self.tau_negative
        return sapo(logprobs_BT, old_logprobs_BT, advantages_BT, mask_BT, temperatures)


class GeometricMeanLoss(_Clipped):
    """GMPO (2507.20673): the geometric mean of a row's clipped ratios."""

    kind: str = "geometric_mean"
    by_row: ClassVar[bool] = True
    clip_low: PositiveFloat = 0.4
    clip_high: PositiveFloat = 0.4

    def __call__(self, *tensors_BT: Tensor) -> tuple[Tensor, Tensor]:
        from trainers.losses.policy import gmpo

        return gmpo(*tensors_BT, clip=(self.clip_low, self.clip_high), limit=self.max_log_ratio)


class PolicyGradientLoss(LossConfig):
    """REINFORCE (Williams 1992): -A log π, without a ratio."""

    kind: str = "policy_gradient"
    linear: ClassVar[bool] = True
    has_ratio: ClassVar[bool] = False

    def __call__(self, logprobs_BT: Tensor, old_logprobs_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor) -> Tensor:
        from trainers.losses.policy import reinforce

        return reinforce(logprobs_BT, advantages_BT, mask_BT)


class AdvantageWeightedLoss(LossConfig):
    """AWR (1910.00177; CRR, 2006.15134): -log π, weighted by exp(A / beta); for what others played, without a ratio."""

    kind: str = "advantage_weighted"
    has_ratio: ClassVar[bool] = False
    beta: PositiveFloat = 1.0
    """Advantage that makes a weight e times as large; in the units of rewards, or of standard deviations where credit
    whitens. Small: only what went best is imitated; large: all is, as by `sft`."""
    max_weight: float = Field(default=20.0, ge=1)
    """Greatest weight (AWR and CRR: 20)."""

    def __call__(
        self, logprobs_BT: Tensor, old_logprobs_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor
    ) -> tuple[Tensor, Tensor]:
        from trainers.losses.policy import advantage_weighted

        return advantage_weighted(logprobs_BT, advantages_BT, mask_BT, self.beta, self.max_weight)


LOSSES: dict[str, type[LossConfig]] = {
    "clip": ClippedLoss,
    "gspo": SequenceRatioLoss,
    "gspo_token": TokenSequenceRatioLoss,
    "sequence": SequenceProductLoss,
    "cispo": ClippedWeightLoss,
    "sapo": SigmoidGateLoss,
    "gmpo": GeometricMeanLoss,
    "reinforce": PolicyGradientLoss,
}
"""Word that a learner's `loss` may be in place of a part -> the part; its options stand beside the word."""
