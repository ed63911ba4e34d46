"""Losses of a policy's tokens as functions of log-probabilities and advantages: tensors in, tensors out.

Every loss but `advantage_weighted` and `positive_advantage_only` is linear in the advantage for each sign of it. So an
advantage may be the sum over merged samples of one sign. A loss of rows repeats the row's value at every unmasked
token; the aggregation `seq_mean_token_mean` then gives the mean over rows.
"""

import math
from typing import Any

import torch
from torch import Tensor

from marl.protocols import LossFunction
from marl.trainers.batching.aggregation import masked_difference, masked_mean_per_row, masked_sum, to_float32_or_wider

LowAndHigh = tuple[float, float]
LossAndClipMask = tuple[Tensor, Tensor]
"""(loss_BT, clipped_BT); clipped_BT is True where a bound changed the ratio (CISPO) or removed the gradient."""
UNBOUNDED = (1.0, math.inf)
"""Clip range (low, high) that contains every ratio."""
MAX_SAPO_LOG_RATIO = 20.0
"""Log-ratio (nats) beyond which the slope of SAPO's sigmoid is 0 in float32."""


def reinforce(logprobs_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return loss_BT = -A log π (Williams 1992)."""
    advantages_BT = _zero_at_masked_tokens(advantages_BT, mask_BT)
    return -advantages_BT * torch.where(advantages_BT == 0, 0.0, to_float32_or_wider(logprobs_BT))


def advantage_weighted(
    logprobs_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor, beta: float, max_weight: float
) -> LossAndClipMask:
    """Return loss_BT = -min(exp(A / beta), max_weight) log π, and clipped_BT (AWR, 1910.00177; CRR, 2006.15134).

    Weights are constants. The loss imitates the best policy within some KL divergence of the behaviour policy μ, which
    is proportional to μ exp(A / beta).
    """
    exponents_BT = _zero_at_masked_tokens(advantages_BT, mask_BT) / beta
    clipped_BT = mask_BT & (exponents_BT > math.log(max_weight))
    # The exponent is clamped instead of the weight, because exp of a large advantage overflows.
    weights_BT = torch.where(mask_BT, exponents_BT.clamp(max=math.log(max_weight)).exp(), 0.0)
    return reinforce(logprobs_BT, weights_BT, mask_BT), clipped_BT


def positive_advantage_only(logprobs_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor) -> LossAndClipMask:
    """Return loss_BT = -1[A > 0] log π (the binary weight of CRR, 2006.15134, equation 3), and no clipped tokens.

    With A = R - V of sampled returns, the loss is smallest at the policy proportional to μ(a) P(R > V | a), where μ is
    the behaviour policy.
    """
    positive_BT = (_zero_at_masked_tokens(advantages_BT, mask_BT) > 0).to(logprobs_BT.dtype)
    return reinforce(logprobs_BT, positive_BT, mask_BT), torch.zeros_like(mask_BT)


def clipped_surrogate(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    clip: LowAndHigh,
    dual_clip: float | None = None,
) -> LossAndClipMask:
    """Return loss_BT = -min(r A, clip(r, 1 - low, 1 + high) A) and clipped_BT; r = π / π_old, clip = (low, high).

    PPO (arXiv 1707.06347), with a bound for either side (clip-higher, DAPO, 2503.14476). `dual_clip` > 1 bounds the
    ratio of tokens with A < 0 (dual clip, 1912.09729; TRL's `delta`).
    """
    log_ratio_BT = masked_difference(logprobs_BT, old_logprobs_BT, mask_BT)
    return _ppo_surrogate(log_ratio_BT, _zero_at_masked_tokens(advantages_BT, mask_BT), clip, dual_clip)


def gspo(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    clip: LowAndHigh,
    max_log_ratio: float | None = None,
) -> LossAndClipMask:
    """Return loss_BT and clipped_BT of PPO's surrogate with the row's ratio exp(mean_t log r) (GSPO, 2507.18071).

    A row's advantage is the mean of its tokens' advantages. Its log-ratio is clamped to `max_log_ratio` (nats), without
    gradient beyond (verl: 10, on the upper side alone; the paper: none).
    """
    log_ratio_B1 = masked_mean_per_row(masked_difference(logprobs_BT, old_logprobs_BT, mask_BT), mask_BT)[:, None]
    return _row_ppo_surrogate(_clamp_log_ratio(log_ratio_B1, max_log_ratio), advantages_BT, mask_BT, clip)


def gspo_token(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    clip: LowAndHigh,
    max_log_ratio: float | None = None,
) -> LossAndClipMask:
    """Return loss_BT and clipped_BT of PPO's surrogate whose ratio has the row's value and the token's gradient.

    GSPO-token (2507.18071). Equal to `gspo` in value and gradient if all tokens of a row have the same advantage.
    `max_log_ratio` as in `gspo`.
    """
    log_ratio_BT = masked_difference(logprobs_BT, old_logprobs_BT, mask_BT)
    row_B1 = masked_mean_per_row(log_ratio_BT.detach(), mask_BT)[:, None]
    # log_ratio - log_ratio.detach() has value 0 and the gradient of the token.
    token_BT = row_B1 + (log_ratio_BT - log_ratio_BT.detach())
    return _ppo_surrogate(
        _clamp_log_ratio(token_BT, max_log_ratio), _zero_at_masked_tokens(advantages_BT, mask_BT), clip
    )


def rloo(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    clip: LowAndHigh,
    max_log_ratio: float | None = None,
) -> LossAndClipMask:
    """Return loss_BT and clipped_BT of PPO's surrogate with the row's ratio Π_t r (RLOO, 2402.14740, as in TRL).

    A row's advantage is the mean of its tokens' advantages; `max_log_ratio` as in `gspo`.
    """
    log_ratio_B1 = masked_sum(masked_difference(logprobs_BT, old_logprobs_BT, mask_BT), mask_BT)[:, None]
    return _row_ppo_surrogate(_clamp_log_ratio(log_ratio_B1, max_log_ratio), advantages_BT, mask_BT, clip)


def cispo(
    logprobs_BT: Tensor, old_logprobs_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor, ratio_bounds: LowAndHigh
) -> LossAndClipMask:
    """Return loss_BT = -clip(r, *bounds) A log π with a constant ratio r, and clipped_BT (CISPO, 2506.13585).

    No token loses its gradient. `ratio_bounds` are the least and the greatest ratio, not distances from 1.
    """
    ratio_BT = masked_difference(logprobs_BT, old_logprobs_BT, mask_BT).detach().exp()
    clipped_BT = mask_BT & ((ratio_BT < ratio_bounds[0]) | (ratio_BT > ratio_bounds[1]))
    weights_BT = torch.where(mask_BT & (advantages_BT != 0), ratio_BT.clamp(*ratio_bounds) * advantages_BT, 0.0)
    return reinforce(logprobs_BT, weights_BT, mask_BT), clipped_BT


def sapo(
    logprobs_BT: Tensor, old_logprobs_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor, temperatures: LowAndHigh
) -> Tensor:
    """Return loss_BT = -(4 / τ) sigmoid(τ (r - 1)) A, τ = temperatures[0] where A > 0, else [1] (SAPO, 2511.20347)."""
    advantages_BT = _zero_at_masked_tokens(advantages_BT, mask_BT)
    tau_BT = torch.where(advantages_BT > 0, *advantages_BT.new_tensor(temperatures))
    log_ratio_BT = masked_difference(logprobs_BT, old_logprobs_BT, mask_BT & (advantages_BT != 0))
    # The log-ratio is clamped where the slope is zero anyway, since 0 times an overflowing ratio gives NaN.
    ratio_BT = log_ratio_BT.clamp(max=MAX_SAPO_LOG_RATIO).exp()
    return -advantages_BT * (4 / tau_BT) * torch.sigmoid(tau_BT * (ratio_BT - 1))


def gmpo(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    clip: LowAndHigh,
    max_log_ratio: float | None = None,
) -> LossAndClipMask:
    """Return loss_BT = -A exp(mean_t log r) of the row, and clipped_BT (GMPO, 2507.20673).

    A token's log r is clipped to [-low, high] on the side that PPO clips. A row's advantage is the mean of its tokens'
    advantages; the mean of its log r is clamped to `max_log_ratio`, as in `gspo`.
    """
    log_ratio_BT = masked_difference(logprobs_BT, old_logprobs_BT, mask_BT)
    clipped_BT = _is_clipped(log_ratio_BT.detach(), _zero_at_masked_tokens(advantages_BT, mask_BT), -clip[0], clip[1])
    bounded_BT = torch.where(clipped_BT, log_ratio_BT.detach().clamp(-clip[0], clip[1]), log_ratio_BT)
    log_ratio_B1 = _clamp_log_ratio(masked_mean_per_row(bounded_BT, mask_BT)[:, None], max_log_ratio)
    return _row_ppo_surrogate(log_ratio_B1, advantages_BT, mask_BT, UNBOUNDED)[0], clipped_BT


def with_clamped_log_ratio(loss: LossFunction, max_log_ratio: float | None) -> LossFunction:
    """Return `loss` with its log-ratios clamped to ± `max_log_ratio` nats, without gradient beyond; `loss` itself if
    None.

    verl and OpenRLHF clamp before every ratio (limit 20); TRL and the papers do not. Not for losses of the
    log-probability itself (`reinforce`, `cispo`).
    """
    if max_log_ratio is None:
        return loss

    def clamped_loss(logprobs_BT: Tensor, old_logprobs_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor) -> Any:
        log_ratio_BT = logprobs_BT.detach() - old_logprobs_BT
        clamped_BT = old_logprobs_BT + log_ratio_BT.clamp(-max_log_ratio, max_log_ratio)
        bounded_BT = torch.where(log_ratio_BT.abs() > max_log_ratio, clamped_BT, logprobs_BT)
        return loss(bounded_BT, old_logprobs_BT, advantages_BT, mask_BT)

    return clamped_loss


def _clamp_log_ratio(log_ratio: Tensor, max_log_ratio: float | None) -> Tensor:
    return log_ratio if max_log_ratio is None else log_ratio.clamp(-max_log_ratio, max_log_ratio)


def _zero_at_masked_tokens(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return `values_BT` in float32 or wider, 0 at masked tokens."""
    return torch.where(mask_BT, to_float32_or_wider(values_BT), 0.0)


def _ppo_surrogate(
    log_ratio: Tensor, advantages: Tensor, clip: LowAndHigh, dual_clip: float | None = None
) -> LossAndClipMask:
    """Return PPO's loss -min(r A, clip(r) A) of each element, r = exp(log_ratio), and True where it is clipped."""
    low, high = 1 - clip[0], 1 + clip[1]
    ratio = log_ratio.detach().exp()
    bounded = ratio.clamp(low, high)
    clipped = _is_clipped(ratio, advantages, low, high)
    if dual_clip is not None:
        capped = (advantages < 0) & (ratio > dual_clip)
        bounded, clipped = torch.where(capped, dual_clip, bounded), clipped | capped
    # An overflowing ratio must not enter the product: its gradient 0 times infinity gives NaN.
    unclipped = torch.where(clipped | (advantages == 0), 0.0, log_ratio).exp()
    return -advantages * torch.where(clipped, bounded, unclipped), clipped


def _row_ppo_surrogate(
    log_ratio_B1: Tensor, advantages_BT: Tensor, mask_BT: Tensor, clip: LowAndHigh
) -> LossAndClipMask:
    """Return PPO's loss of each row's ratio and mean advantage, repeated at the row's unmasked tokens."""
    loss_B1, clipped_B1 = _ppo_surrogate(log_ratio_B1, masked_mean_per_row(advantages_BT, mask_BT)[:, None], clip)
    return torch.where(mask_BT, loss_B1, 0.0), mask_BT & clipped_B1


def _is_clipped(ratio: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    """Return True where PPO clips: the ratio is out of bounds, and the advantage's gradient would move it further
    out."""
    return ((ratio > high) & (advantages > 0)) | ((ratio < low) & (advantages < 0))
