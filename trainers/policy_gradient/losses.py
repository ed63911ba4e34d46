"""Losses of a policy's tokens, given log-probabilities and advantages: tensors in, tensors out.

Every loss but `advantage_weighted` is linear in the (constant) advantage for one sign of the advantage, so an advantage
may be the sum over merged samples of one sign. A loss of whole rows holds the row's value at every unmasked token:
`seq_mean_token_mean` turns these values into the mean over rows.
"""

import math
from typing import Any

import torch
from torch import Tensor

from marl.protocols import LossFunction
from marl.trainers.batching.aggregation import masked_difference, masked_mean, masked_sum, to_float32

Range = tuple[float, float]
LossAndClipped = tuple[Tensor, Tensor]
"""loss_BT and clipped_BT, True where a bound changed the ratio (CISPO) or removed the gradient (the others)."""
UNBOUNDED = (1.0, math.inf)
"""Clip range that contains every ratio."""
MAX_SAPO_LOG_RATIO = 20.0
"""Log-ratio (nats) beyond which SAPO's sigmoid has no slope left in float32."""


def reinforce(logprobs_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return loss_BT = -A log π (Williams 1992)."""
    advantages_BT = _masked(advantages_BT, mask_BT)
    return -advantages_BT * torch.where(advantages_BT == 0, 0.0, to_float32(logprobs_BT))


def advantage_weighted(
    logprobs_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor, beta: float, max_weight: float
) -> LossAndClipped:
    """Return loss_BT = -min(exp(A / beta), max_weight) log π, and clipped_BT (AWR, 1910.00177; CRR, 2006.15134).

    The loss is imitation weighted by constants: among policies within some KL divergence of the behaviour policy μ, the
    best policy is proportional to μ exp(A / beta).
    """
    exponents_BT = _masked(advantages_BT, mask_BT) / beta
    clipped_BT = mask_BT & (exponents_BT > math.log(max_weight))
    # The exponent is clamped, not the weight: exp of a large advantage would overflow.
    weights_BT = torch.where(mask_BT, exponents_BT.clamp(max=math.log(max_weight)).exp(), 0.0)
    return reinforce(logprobs_BT, weights_BT, mask_BT), clipped_BT


def clipped_surrogate(
    logprobs_BT: Tensor,
    old_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    clip: Range,
    dual: float | None = None,
) -> LossAndClipped:
    """Return loss_BT = -min(r A, clip(r, 1 - low, 1 + high) A) and clipped_BT; r = π / π_old, clip = (low, high).

    PPO (arXiv 1707.06347), with a bound for either side (clip-higher, DAPO, 2503.14476). `dual` > 1 bounds the ratio of
    tokens with A < 0 (dual clip, 1912.09729; TRL's `delta`).
    """
    gap_BT = masked_difference(logprobs_BT, old_BT, mask_BT)
    return _surrogate(gap_BT, _masked(advantages_BT, mask_BT), clip, dual)


def gspo(
    logprobs_BT: Tensor,
    old_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    clip: Range,
    limit: float | None = None,
) -> LossAndClipped:
    """Return loss_BT and clipped_BT of PPO's surrogate with the row's ratio exp(mean_t log r) (GSPO, 2507.18071).

    A row's advantage is the mean of its tokens' advantages. Its log-ratio is clamped to `limit` (nats), without
    gradient beyond (verl: 10, on the upper side alone; the paper: none).
    """
    gap_B1 = masked_mean(masked_difference(logprobs_BT, old_BT, mask_BT), mask_BT)[:, None]
    return _row_surrogate(_clamped(gap_B1, limit), advantages_BT, mask_BT, clip)


def gspo_token(
    logprobs_BT: Tensor,
    old_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    clip: Range,
    limit: float | None = None,
) -> LossAndClipped:
    """Return loss_BT and clipped_BT of PPO's surrogate whose ratio has the row's value and the token's gradient.

    GSPO-token (2507.18071). Equal to `gspo` in value and gradient where all tokens of a row have one advantage. `limit`
    as in `gspo`.
    """
    gap_BT = masked_difference(logprobs_BT, old_BT, mask_BT)
    row_B1 = masked_mean(gap_BT.detach(), mask_BT)[:, None]
    # The difference is 0 in value and has the token's gradient.
    token_BT = row_B1 + (gap_BT - gap_BT.detach())
    return _surrogate(_clamped(token_BT, limit), _masked(advantages_BT, mask_BT), clip)


def rloo(
    logprobs_BT: Tensor,
    old_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    clip: Range,
    limit: float | None = None,
) -> LossAndClipped:
    """Return loss_BT and clipped_BT of PPO's surrogate with the row's ratio Π_t r (RLOO, 2402.14740, as in TRL).

    A row's advantage is the mean of its tokens' advantages; `limit` as in `gspo`.
    """
    gap_B1 = masked_sum(masked_difference(logprobs_BT, old_BT, mask_BT), mask_BT)[:, None]
    return _row_surrogate(_clamped(gap_B1, limit), advantages_BT, mask_BT, clip)


def cispo(logprobs_BT: Tensor, old_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor, bounds: Range) -> LossAndClipped:
    """Return loss_BT = -clip(r, *bounds) A log π with a constant ratio r, and clipped_BT (CISPO, 2506.13585).

    No token loses its gradient. The bounds are ratios, not distances from 1.
    """
    ratio_BT = masked_difference(logprobs_BT, old_BT, mask_BT).detach().exp()
    clipped_BT = mask_BT & ((ratio_BT < bounds[0]) | (ratio_BT > bounds[1]))
    weights_BT = torch.where(mask_BT & (advantages_BT != 0), ratio_BT.clamp(*bounds) * advantages_BT, 0.0)
    return reinforce(logprobs_BT, weights_BT, mask_BT), clipped_BT


def sapo(logprobs_BT: Tensor, old_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor, temperatures: Range) -> Tensor:
    """Return loss_BT = -(4 / τ) sigmoid(τ (r - 1)) A, τ = temperatures[0] where A > 0, else [1] (SAPO, 2511.20347)."""
    advantages_BT = _masked(advantages_BT, mask_BT)
    tau_BT = torch.where(advantages_BT > 0, *advantages_BT.new_tensor(temperatures))
    gap_BT = masked_difference(logprobs_BT, old_BT, mask_BT & (advantages_BT != 0))
    # Beyond the limit the slope is zero, and zero times an overflowing ratio would be NaN.
    ratio_BT = gap_BT.clamp(max=MAX_SAPO_LOG_RATIO).exp()
    return -advantages_BT * (4 / tau_BT) * torch.sigmoid(tau_BT * (ratio_BT - 1))


def gmpo(
    logprobs_BT: Tensor,
    old_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    clip: Range,
    limit: float | None = None,
) -> LossAndClipped:
    """Return loss_BT = -A exp(mean_t log r) of the row, and clipped_BT (GMPO, 2507.20673).

    A token's log r is clipped to [-low, high] on the side that PPO clips. A row's advantage is the mean of its tokens'
    advantages; the mean of its log r is clamped to `limit`, as in `gspo`.
    """
    gap_BT = masked_difference(logprobs_BT, old_BT, mask_BT)
    clipped_BT = _beyond(gap_BT.detach(), _masked(advantages_BT, mask_BT), -clip[0], clip[1])
    bounded_BT = torch.where(clipped_BT, gap_BT.detach().clamp(-clip[0], clip[1]), gap_BT)
    gap_B1 = _clamped(masked_mean(bounded_BT, mask_BT)[:, None], limit)
    return _row_surrogate(gap_B1, advantages_BT, mask_BT, UNBOUNDED)[0], clipped_BT


def clamped_ratio(loss: LossFunction, limit: float | None) -> LossFunction:
    """Return `loss` of log-probabilities clamped to `limit` nats around the old ones, without gradient beyond.

    verl and OpenRLHF do so before every ratio (limit 20); TRL and the papers do not. Not for losses of the
    log-probability itself (`reinforce`, `cispo`). Without a limit the loss is unchanged.
    """
    if limit is None:
        return loss

    def limited(logprobs_BT: Tensor, old_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor) -> Any:
        gap_BT = logprobs_BT.detach() - old_BT
        clamped_BT = old_BT + gap_BT.clamp(-limit, limit)
        return loss(torch.where(gap_BT.abs() > limit, clamped_BT, logprobs_BT), old_BT, advantages_BT, mask_BT)

    return limited


def _clamped(gap: Tensor, limit: float | None) -> Tensor:
    return gap if limit is None else gap.clamp(-limit, limit)


def _masked(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    return torch.where(mask_BT, to_float32(values_BT), 0.0)


def _surrogate(gap: Tensor, advantages: Tensor, clip: Range, dual: float | None = None) -> LossAndClipped:
    """Return -min(exp(gap) A, clip(exp(gap)) A) of each element, and True where it was clipped."""
    low, high = 1 - clip[0], 1 + clip[1]
    ratio = gap.detach().exp()
    near = ratio.clamp(low, high)
    clipped = _beyond(ratio, advantages, low, high)
    if dual is not None:
        capped = (advantages < 0) & (ratio > dual)
        near, clipped = torch.where(capped, dual, near), clipped | capped
    # An overflowing ratio must not reach the product, not even where its gradient would be multiplied by zero.
    live = torch.where(clipped | (advantages == 0), 0.0, gap).exp()
    return -advantages * torch.where(clipped, near, live), clipped


def _row_surrogate(gap_B1: Tensor, advantages_BT: Tensor, mask_BT: Tensor, clip: Range) -> LossAndClipped:
    """Return `_surrogate` of whole rows, repeated at their unmasked tokens."""
    loss_B1, clipped_B1 = _surrogate(gap_B1, masked_mean(advantages_BT, mask_BT)[:, None], clip)
    return torch.where(mask_BT, loss_B1, 0.0), mask_BT & clipped_B1


def _beyond(ratio: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    """Return True at each ratio that is out of its bounds and that its advantage pushes farther out."""
    return ((ratio > high) & (advantages > 0)) | ((ratio < low) & (advantages < 0))
