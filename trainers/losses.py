"""The mathematics of learning: tensors in, tensors out. No models, no files, no devices.

Shape suffixes: B = rows, T = completion tokens, V = vocabulary. Log-probabilities are in nats, float32. What a mask
hides changes neither a value nor a gradient, even if it is not a number.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor


def clipped_surrogate(
    logprobs_BT: Tensor, old_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor, clip: tuple[float, float]
) -> tuple[Tensor, Tensor]:
    """[B, T] -min(r A, clip(r, 1 - low, 1 + high) A), and where the clip took the gradient away.

    PPO (arXiv 1707.06347), with bounds of its own on either side (clip-higher, DAPO, 2503.14476).

    Linear in A for one sign of A, so A may be the sum over merged samples that agree in sign.
    """
    low, high = 1 - clip[0], 1 + clip[1]
    advantages_BT = torch.where(mask_BT, advantages_BT, 0.0)
    difference_BT = torch.where(mask_BT, logprobs_BT - old_BT, 0.0)
    ratio_BT = difference_BT.detach().exp()
    clipped_BT = ((ratio_BT > high) & (advantages_BT > 0)) | ((ratio_BT < low) & (advantages_BT < 0))
    # An overflowing ratio must not reach the product, not even where its gradient would be multiplied by zero.
    idle_BT = clipped_BT | (advantages_BT == 0)
    live_BT = torch.where(idle_BT, 0.0, difference_BT).exp()
    return -advantages_BT * torch.where(clipped_BT, ratio_BT.clamp(low, high), live_BT), clipped_BT


def sampled_kl(
    logprobs_BT: Tensor, anchor_BT: Tensor, old_BT: Tensor, mask_BT: Tensor, estimator: Literal["k2", "k3"]
) -> Tensor:
    """[B, T] estimate of KL(π ‖ anchor) from the sampled tokens, whose gradient is the KL's (Schulman 2020).

    k2 = d²/2; k3 = e^{-d} - 1 + d times the ratio to the policy that sampled, which gives both value and gradient.
    """
    d_BT = torch.where(mask_BT, logprobs_BT - anchor_BT, 0.0)
    if estimator == "k2":
        return d_BT.square() / 2
    ratio_BT = torch.where(mask_BT, logprobs_BT - old_BT, 0.0).exp()
    return ratio_BT * (torch.expm1(-d_BT) + d_BT)


@torch.no_grad()
def sampler_kl(sampled_BT: Tensor, logprobs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """[B, T] unbiased, non-negative estimate of KL(sampler ‖ π) on the sampler's tokens (k3, Schulman 2020)."""
    d_BT = torch.where(mask_BT, logprobs_BT - sampled_BT, 0.0)
    return torch.expm1(d_BT) - d_BT


def exact_kl(logprobs_V: Tensor, anchor_V: Tensor) -> Tensor:
    """[...] Σ_a π(a) (log π(a) - log anchor(a)) over the last axis. Tokens that π never says add nothing."""
    gap_V = torch.where(logprobs_V == -torch.inf, 0.0, logprobs_V - anchor_V)
    return (logprobs_V.exp() * gap_V).sum(-1)


def entropy(logprobs_V: Tensor) -> Tensor:
    """[...] -Σ_a π(a) log π(a) over the last axis."""
    return -(logprobs_V.exp() * torch.where(logprobs_V == -torch.inf, 0.0, logprobs_V)).sum(-1)
