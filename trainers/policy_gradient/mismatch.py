"""Corrections for tokens sampled with other log-probabilities than the learner's: constant weights and token masks.

The sampler computes in another engine, precision or version than the learner. The ratio r = π_old / μ measures how far
apart both are at a token: `old_BT` are the learner's log-probabilities before the update, `sampled_BT` the sampler's.
Weights multiply a token's loss and are 0 at masked tokens; nothing here has a gradient.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Literal

import torch
from torch import Tensor

from marl.trainers.batching.aggregation import masked_difference, masked_mean, masked_sum
from marl.trainers.batching.rows import Row, group_by_unit
from marl.trainers.policy_gradient.options import MismatchCorrection

RatioLevel = Literal["token", "sequence", "geometric"]
DivergenceReduction = Literal["token", "sum", "mean", "max"]
Bounds = tuple[float, float]


@torch.no_grad()
def importance_ratios(old_BT: Tensor, sampled_BT: Tensor, mask_BT: Tensor, level: RatioLevel = "token") -> Tensor:
    """Return [B, T], r of the token, or of its row: Π_t r (`sequence`) or exp(mean_t log r) (`geometric`)."""
    gap_BT = masked_difference(old_BT, sampled_BT, mask_BT)
    if level == "sequence":
        gap_BT = masked_sum(gap_BT, mask_BT)[:, None]
    elif level == "geometric":
        gap_BT = masked_mean(gap_BT, mask_BT)[:, None]
    return torch.where(mask_BT, gap_BT.exp(), 0.0)


def tis(
    old_BT: Tensor, sampled_BT: Tensor, mask_BT: Tensor, level: RatioLevel = "token", bounds: Bounds = (0, 2)
) -> Tensor:
    """Return [B, T], r clamped to bounds: truncated importance sampling (Yao et al. 2025).

    OpenRLHF has a lower bound (.5), other libraries have none.
    """
    return torch.where(mask_BT, importance_ratios(old_BT, sampled_BT, mask_BT, level).clamp(*bounds), 0.0)


def mis(
    old_BT: Tensor, sampled_BT: Tensor, mask_BT: Tensor, level: RatioLevel = "token", bounds: Bounds = (0, 2)
) -> Tensor:
    """Return [B, T], r within bounds and 0 outside: masked importance sampling (Liu et al. 2025)."""
    ratios_BT = importance_ratios(old_BT, sampled_BT, mask_BT, level)
    return torch.where((ratios_BT >= bounds[0]) & (ratios_BT <= bounds[1]), ratios_BT, 0.0)


def icepop(old_BT: Tensor, sampled_BT: Tensor, mask_BT: Tensor, bounds: Bounds = (0.5, 5.0)) -> Tensor:
    """Return [B, T], the token's r within bounds and 0 outside (IcePop, Ring-1T, 2510.18855)."""
    return mis(old_BT, sampled_BT, mask_BT, "token", bounds)


def masked_by_sequence_mean(old_BT: Tensor, sampled_BT: Tensor, mask_BT: Tensor, bounds: Bounds = (0.5, 5.0)) -> Tensor:
    """Return [B, T], the token's r in rows whose geometric mean is within bounds, else 0 (OpenRLHF: seq-mask-tis)."""
    inside_BT = mis(old_BT, sampled_BT, mask_BT, "geometric", bounds) > 0
    return torch.where(inside_BT, importance_ratios(old_BT, sampled_BT, mask_BT), 0.0)


@torch.no_grad()
def reject_by_divergence(
    old_BT: Tensor,
    sampled_BT: Tensor,
    mask_BT: Tensor,
    divergence: Literal["k1", "k2", "k3"],
    span: DivergenceReduction,
    bounds: Bounds,
) -> Tensor:
    """Return [B, T], the mask without tokens whose divergence, or their row's, is out of bounds.

    With d = log r: k1 bounds r itself (verl: 1/r), k2 = d²/2 and k3 = e^d - 1 - d (nats) estimate KL(μ ‖ π_old). A
    row's divergence is the sum, mean or max over its tokens (of k1: of d).
    """
    d_BT = masked_difference(old_BT, sampled_BT, mask_BT)
    token_BT = {"k1": d_BT, "k2": d_BT.square() / 2, "k3": torch.expm1(d_BT) - d_BT}[divergence]
    if span == "max":
        measured_BT = torch.where(mask_BT, token_BT, -torch.inf).amax(1, keepdim=True)
    elif span == "token":
        measured_BT = token_BT
    else:
        measured_BT = (masked_sum if span == "sum" else masked_mean)(token_BT, mask_BT)[:, None]
    if divergence == "k1":
        # Bounds of k1 are ratios, and sums and means are taken of log-ratios: exponentiate last.
        measured_BT = measured_BT.exp()
    return mask_BT & (measured_BT >= bounds[0]) & (measured_BT <= bounds[1])


@torch.no_grad()
def off_policy_sequence_mask(
    logprobs_BT: Tensor, old_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor, delta: float
) -> Tensor:
    """Return [B, T], the mask without rows of negative advantage whose mean of log old - log π is over `delta` nats.

    Off-policy sequence masking (DeepSeek-V3.2, 2512.02556). `old_BT` may be the sampler's. A row's advantage is the
    mean of its tokens' advantages.
    """
    gap_B1 = masked_mean(masked_difference(old_BT, logprobs_BT, mask_BT), mask_BT)[:, None]
    return mask_BT & ~((masked_mean(advantages_BT, mask_BT)[:, None] < 0) & (gap_B1 > delta))


def mismatch_weights(settings: MismatchCorrection, old_BT: Tensor, sampled_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return [B, T], a constant factor of each token's loss that corrects `old_BT` over `sampled_BT`; 0 rejects."""
    tensors, bounds = (old_BT, sampled_BT, mask_BT), settings.bounds
    match settings.kind:
        case "reject":
            return reject_by_divergence(*tensors, settings.divergence or "k3", settings.span or "token", bounds).float()
        case "icepop":
            return icepop(*tensors, bounds)
        case "geometric":
            return masked_by_sequence_mean(*tensors, bounds)
        case "tis":
            return tis(*tensors, settings.level or "token", bounds)
        case "mis":
            return mis(*tensors, settings.level or "token", bounds)


def add_mismatch_weights(rows: Sequence[Row], settings: MismatchCorrection) -> list[Row]:
    """Return rows with a column `weights`, from the readings before the update, which no split of minibatches changes.

    With `denominator: kept`, tokens of weight 0 are not in the loss, and rows without any other token are left out.
    """
    weighted_rows: list[Row] = []
    for unit in group_by_unit(rows):
        # A unit is one sequence, so its rows are joined before ratios of sequences are taken.
        old_1T = torch.tensor([[*chain(*(row.columns["old"] for row in unit))]])
        sampled_1T = torch.tensor([[*chain(*(row.columns["sampled"] for row in unit))]])
        weights_1T = mismatch_weights(settings, old_1T, sampled_1T, torch.ones_like(old_1T, dtype=torch.bool))
        # Numbers that are not finite stay so: a weight of 0 would hide them from the error that names them.
        weights_1T = torch.where((old_1T - sampled_1T).isfinite(), weights_1T, torch.nan)
        unit_weights = iter(weights_1T[0].tolist())
        for row in unit:
            weights = tuple(islice(unit_weights, len(row.token_ids)))
            weighted = replace(row, columns={**row.columns, "weights": weights})
            if settings.denominator == "kept":
                mask = row.loss_mask or (True,) * len(row.token_ids)
                pairs = zip(mask, weights, strict=True)
                weighted = replace(weighted, loss_mask=tuple(in_loss and weight != 0 for in_loss, weight in pairs))
                if not weighted.loss_tokens:
                    continue
            weighted_rows.append(weighted)
    return weighted_rows
