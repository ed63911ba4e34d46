"""KL divergences and entropy: penalties that keep a policy near another, or spread out."""

from typing import Literal

import torch
from torch import Tensor

from marl.trainers.batching.aggregation import masked_difference

Estimator = Literal["k1", "k2", "k3", "k1+", "k3+", "k3_is"]


def sampled_kl(
    logprobs_BT: Tensor,
    anchor_BT: Tensor,
    old_BT: Tensor,
    mask_BT: Tensor,
    estimator: Estimator,
    limit: float | None = None,
) -> Tensor:
    """Return [B, T], an estimate of KL(π ‖ anchor) from sampled tokens (Schulman 2020). With d = log π - log anchor:

    k1 = d            unbiased value; as a loss its gradient is noise around 0 (use it in the reward)
    k2 = d²/2         biased value, gradient of the KL
    k3 = e^-d - 1 + d unbiased value, gradient of KL(anchor ‖ π)
    k1+, k3+          value of k1, k3, gradient of k2 (straight-through, as in verl)
    k3_is             k3 times the ratio to `old_BT`, whose policy sampled the tokens: unbiased value and gradient

    All in expectation over tokens sampled from π, of k3_is from the old policy. `limit` (nats) clamps the estimate
    (verl's k3, all of OpenRLHF's: 10; the others: none); beyond it there is no gradient, except k2's of k1+ and k3+.
    """
    d_BT = masked_difference(logprobs_BT, anchor_BT, mask_BT)
    if estimator.endswith("+"):
        square_BT = d_BT.square() / 2
        return square_BT - square_BT.detach() + _limited(d_BT.detach(), estimator[:2], limit)
    estimate_BT = _limited(d_BT, estimator[:2], limit)
    return masked_difference(logprobs_BT, old_BT, mask_BT).exp() * estimate_BT if estimator == "k3_is" else estimate_BT


@torch.no_grad()
def sampler_kl(sampled_BT: Tensor, logprobs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return [B, T], the unbiased, non-negative k3 estimate of KL(sampler ‖ π) on the sampler's tokens."""
    return _estimate(masked_difference(sampled_BT, logprobs_BT, mask_BT), "k3")


def exact_kl(logprobs_V: Tensor, anchor_V: Tensor) -> Tensor:
    """Return [...], Σ_a π(a) (log π(a) - log anchor(a)) over the last axis; tokens of probability 0 add nothing."""
    gap_V = torch.where(logprobs_V == -torch.inf, 0.0, logprobs_V - anchor_V)
    return (logprobs_V.exp() * gap_V).sum(-1)


def entropy(logprobs_V: Tensor) -> Tensor:
    """Return [...], -Σ_a π(a) log π(a) over the last axis."""
    finite_V = logprobs_V.clamp(min=torch.finfo(logprobs_V.dtype).min)  # 0 times an infinite number is no number
    return -(logprobs_V.exp() * finite_V).sum(-1)


def _limited(d_BT: Tensor, estimator: str, limit: float | None) -> Tensor:
    if limit is None:
        return _estimate(d_BT, estimator)
    plain_BT = _estimate(d_BT.detach(), estimator)
    inside_BT = plain_BT.abs() <= limit
    # Only elements inside are computed with a gradient: zero times an overflow would be NaN.
    inner_BT = _estimate(torch.where(inside_BT, d_BT, 0.0), estimator)
    return torch.where(inside_BT, inner_BT, plain_BT.clamp(-limit, limit))


def _estimate(d_BT: Tensor, estimator: str) -> Tensor:
    match estimator:
        case "k1":
            return d_BT
        case "k2":
            return d_BT.square() / 2
        case "k3":
            return torch.expm1(-d_BT) + d_BT
    raise ValueError(f"estimator={estimator!r} is not known; choose k1, k2, k3, k1+, k3+ or k3_is")
