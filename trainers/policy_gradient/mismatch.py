"""Importance weights and token masks that correct a mismatch between sampler and learner.

The sampler may use another engine, precision or version of the weights than the learner. With the learner's probability
π_old of a token before the update (`old_logprobs_BT`) and the sampler's probability μ (`sampler_logprobs_BT`), r =
π_old / μ is the ratio. Weights multiply a token's loss and are 0 at masked tokens. Nothing here has a gradient.

μ is recorded when a token is sampled. If the weights change during a completion, μ of each token is therefore that of
the weights that sampled it, and of the keys and values that they read (`engine.cache_at_update`). Ratios of level
`token` (the default of `tis` and `mis`, and `icepop`) therefore need no version numbers. With `cache_at_update:
recompute`, r of a token of the newest weights is 1, although older weights sampled the tokens before it. With `keep`, r
also corrects for the keys and values of the older weights.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import Literal

import torch
from torch import Tensor

from marl.trainers.batching.aggregation import masked_difference, masked_mean_per_row, masked_sum
from marl.trainers.batching.rows import BatchRow, group_by_unit
from marl.trainers.policy_gradient.options import MismatchCorrection

RatioLevel = Literal["token", "sequence", "geometric"]
DivergenceReduction = Literal["token", "sum", "mean", "max"]
Bounds = tuple[float, float]


@torch.no_grad()
def importance_ratios(
    old_logprobs_BT: Tensor, sampler_logprobs_BT: Tensor, mask_BT: Tensor, level: RatioLevel = "token"
) -> Tensor:
    """Return [B, T], the ratio r of each token, or of its row: Π_t r (`sequence`), exp(mean_t log r) (`geometric`)."""
    gap_BT = masked_difference(old_logprobs_BT, sampler_logprobs_BT, mask_BT)
    if level == "sequence":
        gap_BT = masked_sum(gap_BT, mask_BT)[:, None]
    elif level == "geometric":
        gap_BT = masked_mean_per_row(gap_BT, mask_BT)[:, None]
    return torch.where(mask_BT, gap_BT.exp(), 0.0)


def tis(
    old_logprobs_BT: Tensor,
    sampler_logprobs_BT: Tensor,
    mask_BT: Tensor,
    level: RatioLevel = "token",
    bounds: Bounds = (0, 2),
) -> Tensor:
    """Return [B, T], the ratios clamped to `bounds`: truncated importance sampling (Yao et al. 2025).

    OpenRLHF has a lower bound (.5), other libraries have none.
    """
    return torch.where(
        mask_BT, importance_ratios(old_logprobs_BT, sampler_logprobs_BT, mask_BT, level).clamp(*bounds), 0.0
    )


def mis(
    old_logprobs_BT: Tensor,
    sampler_logprobs_BT: Tensor,
    mask_BT: Tensor,
    level: RatioLevel = "token",
    bounds: Bounds = (0, 2),
) -> Tensor:
    """Return [B, T], the ratios, 0 if out of `bounds`: masked importance sampling (Liu et al. 2025)."""
    ratios_BT = importance_ratios(old_logprobs_BT, sampler_logprobs_BT, mask_BT, level)
    return torch.where((ratios_BT >= bounds[0]) & (ratios_BT <= bounds[1]), ratios_BT, 0.0)


def icepop(
    old_logprobs_BT: Tensor, sampler_logprobs_BT: Tensor, mask_BT: Tensor, bounds: Bounds = (0.5, 5.0)
) -> Tensor:
    """Return [B, T], the token's ratio, 0 if out of `bounds` (IcePop, Ring-1T, 2510.18855)."""
    return mis(old_logprobs_BT, sampler_logprobs_BT, mask_BT, "token", bounds)


def tis_within_sequence_bounds(
    old_logprobs_BT: Tensor, sampler_logprobs_BT: Tensor, mask_BT: Tensor, bounds: Bounds = (0.5, 5.0)
) -> Tensor:
    """Return [B, T], the token's ratio, 0 if its row's geometric mean is out of `bounds` (OpenRLHF: seq-mask-tis)."""
    inside_BT = mis(old_logprobs_BT, sampler_logprobs_BT, mask_BT, "geometric", bounds) > 0
    return torch.where(inside_BT, importance_ratios(old_logprobs_BT, sampler_logprobs_BT, mask_BT), 0.0)


@torch.no_grad()
def reject_by_divergence(
    old_logprobs_BT: Tensor,
    sampler_logprobs_BT: Tensor,
    mask_BT: Tensor,
    divergence: Literal["k1", "k2", "k3"],
    reduction: DivergenceReduction,
    bounds: Bounds,
) -> Tensor:
    """Return [B, T], `mask_BT` without the tokens whose divergence, or whose row's divergence, is out of `bounds`.

    With d = log r, k2 = d²/2 and k3 = e^d - 1 - d (nats) estimate KL(μ ‖ π_old); k1 bounds r itself (verl: 1/r). A
    row's divergence is the sum, mean or maximum over its tokens (for k1: of d, before the exponential).
    """
    d_BT = masked_difference(old_logprobs_BT, sampler_logprobs_BT, mask_BT)
    token_BT = {"k1": d_BT, "k2": d_BT.square() / 2, "k3": torch.expm1(d_BT) - d_BT}[divergence]
    if reduction == "max":
        measured_BT = torch.where(mask_BT, token_BT, -torch.inf).amax(1, keepdim=True)
    elif reduction == "token":
        measured_BT = token_BT
    else:
        measured_BT = (masked_sum if reduction == "sum" else masked_mean_per_row)(token_BT, mask_BT)[:, None]
    if divergence == "k1":
        # k1 averages log-ratios, but its bounds are ratios, so the exponential is taken after the mean.
        measured_BT = measured_BT.exp()
    return mask_BT & (measured_BT >= bounds[0]) & (measured_BT <= bounds[1])


@torch.no_grad()
def off_policy_sequence_mask(
    logprobs_BT: Tensor, old_logprobs_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor, max_divergence: float
) -> Tensor:
    """Return [B, T], `mask_BT` without rows of negative advantage with a mean of log π_old - log π above
    `max_divergence` nats.

    Off-policy sequence masking (DeepSeek-V3.2, 2512.02556). `old_logprobs_BT` may be the sampler's log-probabilities. A
    row's advantage is the mean of its tokens' advantages.
    """
    log_ratio_B1 = masked_mean_per_row(masked_difference(old_logprobs_BT, logprobs_BT, mask_BT), mask_BT)[:, None]
    return mask_BT & ~((masked_mean_per_row(advantages_BT, mask_BT)[:, None] < 0) & (log_ratio_B1 > max_divergence))


def mismatch_weights(
    settings: MismatchCorrection, old_logprobs_BT: Tensor, sampler_logprobs_BT: Tensor, mask_BT: Tensor
) -> Tensor:
    """Return [B, T], the importance weight of each token's loss by the kind in `settings`; 0 rejects a token."""
    tensors, bounds = (old_logprobs_BT, sampler_logprobs_BT, mask_BT), settings.bounds_or_defaults
    match settings.kind:
        case "reject":
            return reject_by_divergence(*tensors, settings.divergence or "k3", settings.span or "token", bounds).float()
        case "icepop":
            return icepop(*tensors, bounds)
        case "geometric":
            return tis_within_sequence_bounds(*tensors, bounds)
        case "tis":
            return tis(*tensors, settings.level or "token", bounds)
        case "mis":
            return mis(*tensors, settings.level or "token", bounds)


def add_mismatch_weights(rows: Sequence[BatchRow], settings: MismatchCorrection) -> list[BatchRow]:
    """Return rows with a column `weights`: importance weights from log-probabilities read before the update.

    With `denominator: kept`, tokens of weight 0 leave the loss, and rows without a token in the loss are dropped.
    """
    weighted_rows: list[BatchRow] = []
    for unit in group_by_unit(rows):
        # The rows of a unit form one sequence, so they are joined before the sequence's ratio is computed.
        old: list[float] = []
        sampled: list[float] = []
        mask: list[bool] = []
        for row in unit:
            old += row.columns["old"]
            sampled += row.columns["sampled"]
            mask += row.loss_mask or (True,) * len(row.token_ids)
        old_1T, sampled_1T = torch.tensor([old]), torch.tensor([sampled])
        weights_1T = mismatch_weights(settings, old_1T, sampled_1T, torch.tensor([mask]))
        # NaN instead of weight 0 keeps a non-finite number visible, so that an error can name its sample.
        weights_1T = torch.where((old_1T - sampled_1T).isfinite(), weights_1T, torch.nan)
        unit_weights = iter(weights_1T[0].tolist())
        for row in unit:
            weights = tuple(islice(unit_weights, len(row.token_ids)))
            weighted = replace(row, columns={**row.columns, "weights": weights})
            if settings.denominator == "kept":
                in_loss = row.loss_mask or (True,) * len(row.token_ids)
                remaining = [was_in and weight != 0 for was_in, weight in zip(in_loss, weights, strict=True)]
                weighted = replace(weighted, loss_mask=tuple(remaining))
                if not weighted.loss_token_count:
                    continue
            weighted_rows.append(weighted)
    return weighted_rows
