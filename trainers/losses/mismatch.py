"""Corrections for tokens sampled with other numbers than the learner's own: constant weights and masks of tokens.

The sampler computes in another engine, precision or version than the learner; r = π_old / μ measures how far apart the
two are at a token: `old_BT` are the learner's log-probabilities before the update, `sampled_BT` the sampler's. Weights
multiply a token's loss and are 0 at masked tokens; nothing here has a gradient.
"""

from typing import Literal

import torch
from torch import Tensor

from trainers.losses.aggregation import difference, masked_mean, masked_sum

Level = Literal["token", "sequence", "geometric"]
Span = Literal["token", "sum", "mean", "max"]
Bounds = tuple[float, float]


@torch.no_grad()
def ratios(old_BT: Tensor, sampled_BT: Tensor, mask_BT: Tensor, level: Level = "token") -> Tensor:
    """Return [B, T], r of the token, or of its row: Π_t r (`sequence`) or exp(mean_t log r) (`geometric`)."""
    gap_BT = difference(old_BT, sampled_BT, mask_BT)
    if level == "sequence":
        gap_BT = masked_sum(gap_BT, mask_BT)[:, None]
    elif level == "geometric":
        gap_BT = masked_mean(gap_BT, mask_BT)[:, None]
    return torch.where(mask_BT, gap_BT.exp(), 0.0)


def tis(old_BT: Tensor, sampled_BT: Tensor, mask_BT: Tensor, level: Level = "token", bounds: Bounds = (0, 2)) -> Tensor:
    """Return [B, T], r clamped to bounds: truncated importance sampling (Yao et al. 2025).

    OpenRLHF has a lower bound (.5), the others none.
    """
    return torch.where(mask_BT, ratios(old_BT, sampled_BT, mask_BT, level).clamp(*bounds), 0.0)


def mis(old_BT: Tensor, sampled_BT: Tensor, mask_BT: Tensor, level: Level = "token", bounds: Bounds = (0, 2)) -> Tensor:
    """Return [B, T], r within bounds and 0 outside: masked importance sampling (Liu et al. 2025)."""
    return _zero_outside(ratios(old_BT, sampled_BT, mask_BT, level), bounds)


def icepop(old_BT: Tensor, sampled_BT: Tensor, mask_BT: Tensor, bounds: Bounds = (0.5, 5.0)) -> Tensor:
    """Return [B, T], the token's r within bounds and 0 outside (IcePop, Ring-1T, 2510.18855)."""
    return mis(old_BT, sampled_BT, mask_BT, "token", bounds)


def geometric(old_BT: Tensor, sampled_BT: Tensor, mask_BT: Tensor, bounds: Bounds = (0.5, 5.0)) -> Tensor:
    """Return [B, T], the token's r in rows whose geometric mean is within bounds, else 0 (OpenRLHF: seq-mask-tis)."""
    inside_BT = _zero_outside(ratios(old_BT, sampled_BT, mask_BT, "geometric"), bounds) > 0
    return torch.where(inside_BT, ratios(old_BT, sampled_BT, mask_BT), 0.0)


@torch.no_grad()
def rejected(
    old_BT: Tensor,
    sampled_BT: Tensor,
    mask_BT: Tensor,
    divergence: Literal["k1", "k2", "k3"],
    span: Span,
    bounds: Bounds,
) -> Tensor:
    """Return [B, T], the mask without the tokens whose divergence, or their row's, is out of bounds.

    With d = log r: k1 bounds r itself (verl: 1/r), k2 = d²/2 and k3 = e^d - 1 - d (nats) estimate KL(μ ‖ π_old). A
    row's is the sum, mean or max over its tokens (of k1: of d).
    """
    d_BT = difference(old_BT, sampled_BT, mask_BT)
    each_BT = {"k1": d_BT, "k2": d_BT.square() / 2, "k3": torch.expm1(d_BT) - d_BT}[divergence]
    if span == "max":
        measured_BT = torch.where(mask_BT, each_BT, -torch.inf).amax(1, keepdim=True)
    elif span == "token":
        measured_BT = each_BT
    else:
        measured_BT = (masked_sum if span == "sum" else masked_mean)(each_BT, mask_BT)[:, None]
    if divergence == "k1":
        measured_BT = measured_BT.exp()
    return mask_BT & (measured_BT >= bounds[0]) & (measured_BT <= bounds[1])


@torch.no_grad()
def opsm(logprobs_BT: Tensor, old_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor, delta: float) -> Tensor:
    """Return [B, T], the mask without rows of negative advantage whose mean of log old - log π is over `delta` nats.

    Off-policy sequence masking (DeepSeek-V3.2, 2512.02556). `old_BT` may be the sampler's. A row's advantage is the
    mean of its tokens'.
    """
    gap_B1 = masked_mean(difference(old_BT, logprobs_BT, mask_BT), mask_BT)[:, None]
    return mask_BT & ~((masked_mean(advantages_BT, mask_BT)[:, None] < 0) & (gap_B1 > delta))


def _zero_outside(ratios_BT: Tensor, bounds: Bounds) -> Tensor:
    return torch.where((ratios_BT >= bounds[0]) & (ratios_BT <= bounds[1]), ratios_BT, 0.0)
