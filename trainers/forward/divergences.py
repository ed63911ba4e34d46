"""KL divergences and entropy, as exact sums over the vocabulary or as estimates from sampled tokens."""

from typing import Literal

import torch
from torch import Tensor

from marl.trainers.batching.aggregation import masked_difference

Estimator = Literal["k1", "k2", "k3", "k1+", "k3+", "k3_is"]


def sampled_kl(
    logprobs_BT: Tensor,
    anchor_logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    mask_BT: Tensor,
    estimator: Estimator,
    max_estimate: float | None = None,
) -> Tensor:
    """Return [B, T], an estimate of KL(π ‖ anchor) from each sampled token (Schulman 2020). With d = log π - log
    anchor:

    k1 = d            unbiased value; as a loss its gradient is noise around 0 (use it in the reward)
    k2 = d²/2         biased value, gradient of the KL
    k3 = e^-d - 1 + d unbiased value, gradient of KL(anchor ‖ π)
    k1+, k3+          value of k1, k3, gradient of k2 (straight-through, as in verl)
    k3_is             k3 times the ratio to the old policy, which sampled the tokens: unbiased value and gradient

    Expectations are over tokens sampled from π; for k3_is, from the old policy. `max_estimate` (nats) clamps the
    estimate, and no gradient flows beyond it, except k2's in k1+ and k3+. verl clamps k3, and OpenRLHF all estimates,
    to 10.
    """
    d_BT = masked_difference(logprobs_BT, anchor_logprobs_BT, mask_BT)
    if estimator.endswith("+"):
        square_BT = d_BT.square() / 2
        return square_BT - square_BT.detach() + _clamped_kl_estimate(d_BT.detach(), estimator[:2], max_estimate)
    estimate_BT = _clamped_kl_estimate(d_BT, estimator[:2], max_estimate)
    if estimator == "k3_is":
        return masked_difference(logprobs_BT, old_logprobs_BT, mask_BT).exp() * estimate_BT
    return estimate_BT


@torch.no_grad()
def sampler_kl(sampler_logprobs_BT: Tensor, logprobs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return [B, T], the unbiased, non-negative k3 estimate of KL(sampler ‖ π) on the sampler's tokens."""
    return _kl_estimate(masked_difference(sampler_logprobs_BT, logprobs_BT, mask_BT), "k3")


def exact_kl(logprobs_V: Tensor, anchor_logprobs_V: Tensor) -> Tensor:
    """Return [...], KL(π ‖ anchor) = Σ_a π(a) (log π(a) - log anchor(a)) over the last axis; π(a) = 0 adds 0."""
    gap_V = torch.where(logprobs_V == -torch.inf, 0.0, logprobs_V - anchor_logprobs_V)
    return (logprobs_V.exp() * gap_V).sum(-1)


def entropy(logprobs_V: Tensor) -> Tensor:
    """Return [...], the entropy -Σ_a π(a) log π(a) over the last axis, in nats."""
    finite_V = logprobs_V.clamp(min=torch.finfo(logprobs_V.dtype).min)  # otherwise 0 * -inf gives NaN
    return -(logprobs_V.exp() * finite_V).sum(-1)


def _clamped_kl_estimate(log_ratio_BT: Tensor, estimator: str, max_estimate: float | None) -> Tensor:
    """Return the KL estimate clamped to [-limit, limit], without gradient where it is clamped."""
    if max_estimate is None:
        return _kl_estimate(log_ratio_BT, estimator)
    plain_BT = _kl_estimate(log_ratio_BT.detach(), estimator)
    inside_BT = plain_BT.abs() <= max_estimate
    # Gradients pass only inside of the limit, because outside an overflow times gradient 0 gives NaN.
    inner_BT = _kl_estimate(torch.where(inside_BT, log_ratio_BT, 0.0), estimator)
    return torch.where(inside_BT, inner_BT, plain_BT.clamp(-max_estimate, max_estimate))


def _kl_estimate(log_ratio_BT: Tensor, estimator: str) -> Tensor:
    """Return the estimate k1, k2 or k3 of the KL from d = log π - log anchor."""
    match estimator:
        case "k1":
            return log_ratio_BT
        case "k2":
            return log_ratio_BT.square() / 2
        case "k3":
            return torch.expm1(-log_ratio_BT) + log_ratio_BT
    raise ValueError(f"estimator={estimator!r} is not known; choose k1, k2, k3, k1+, k3+ or k3_is")
