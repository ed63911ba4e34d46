"""Which loss of a policy its settings mean, and how far the sampler's mismatch is corrected.

Shape suffixes: B = rows, T = completion tokens. Log-probabilities are in nats, float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from trainers.batching.batches import Batch
from trainers.batching.rows import Row
from trainers.losses.mismatch import geometric, icepop, mis, opsm, rejected, tis
from trainers.losses.policy import (
    cispo,
    clipped_surrogate,
    gmpo,
    gspo,
    gspo_token,
    reinforce,
    sapo,
    sequence_surrogate,
    within,
)

if TYPE_CHECKING:
    from trainers.settings import Grpo, Mismatch

OF_ROWS = {"gspo": gspo, "gspo_token": gspo_token, "sequence": sequence_surrogate, "gmpo": gmpo}
"""Losses of a row's ratio, and ..."""
WHOLE = frozenset({"gspo", "sequence", "gmpo"})
"""... those of them that take a row's advantage to be the mean of its tokens'."""


def policy_loss(settings: Grpo, logprobs_BT: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """[B, T] loss of each token, uncorrected, and where a bound changed it. Columns: `old`, `advantages`."""
    old_BT, advantages_BT, mask_BT = batch.columns["old"], batch.columns["advantages"], batch.counted_BT
    if settings.max_log_ratio is not None:
        logprobs_BT = within(logprobs_BT, old_BT, settings.max_log_ratio)
    given = logprobs_BT, old_BT, advantages_BT, mask_BT
    if settings.loss in OF_ROWS:
        return OF_ROWS[settings.loss](*given, settings.clip)
    match settings.loss:
        case "clip":
            return clipped_surrogate(*given, settings.clip, settings.dual_clip)
        case "cispo":
            return cispo(*given, settings.bounds)
        case "sapo":
            return sapo(*given, settings.temperatures), torch.zeros_like(mask_BT)
        case "reinforce":
            return reinforce(logprobs_BT, advantages_BT, mask_BT), torch.zeros_like(mask_BT)
    raise ValueError(f"loss={settings.loss!r} is not known")


def mismatch_weights(settings: Mismatch, old_BT: Tensor, sampled_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """[B, T] constant factor of each token's loss, 0 where it is rejected. It corrects `old_BT` over `sampled_BT`."""
    given = old_BT, sampled_BT, mask_BT
    match settings.kind:
        case "tis":
            return tis(*given, settings.level or "token", settings.bounds)
        case "mis":
            return mis(*given, settings.level or "token", settings.bounds)
        case "icepop":
            return icepop(*given, settings.bounds)
        case "geometric":
            return geometric(*given, settings.bounds)
        case "reject":
            kept_BT = rejected(*given, settings.divergence or "k3", settings.span or "token", settings.bounds)
            return kept_BT.float()


def weights(settings: Grpo, logprobs_BT: Tensor, batch: Batch) -> Tensor | None:
    """[B, T] what multiplies each token's loss: the mismatch's weights times the off-policy mask; None: nothing."""
    sampled_BT, counted_BT = batch.columns["sampled"], batch.counted_BT
    found_BT = batch.columns.get("weights")
    if settings.mismatch and found_BT is None:
        found_BT = mismatch_weights(settings.mismatch, logprobs_BT.detach(), sampled_BT, counted_BT)
    if settings.opsm is None:
        return found_BT
    kept_BT = opsm(logprobs_BT.detach(), sampled_BT, batch.columns["advantages"], counted_BT, settings.opsm)
    return kept_BT.float() if found_BT is None else found_BT * kept_BT


def weighted(rows: Sequence[Row], settings: Mismatch) -> list[Row]:
    """Rows with a column `weights`, from what was read before the update: exact whatever a minibatch is split into.

    With `denominator: kept`, tokens of weight 0 no longer count, and rows without any other are gone.
    """
    judged = [replace(row, columns={**row.columns, "weights": _of(row, settings)}) for row in rows]
    if settings.denominator == "all":
        return judged
    kept = [replace(row, counted=tuple(weight != 0 for weight in row.columns["weights"])) for row in judged]
    return [row for row in kept if row.counts]


def _of(row: Row, settings: Mismatch) -> tuple[float, ...]:
    old_1T, sampled_1T = (torch.tensor([row.columns[name]]) for name in ("old", "sampled"))
    every_1T = torch.ones_like(old_1T, dtype=torch.bool)
    found_1T = mismatch_weights(settings, old_1T, sampled_1T, every_1T)
    # What is not finite stays so: a weight of 0 would hide it from who names it.
    return tuple(torch.where((old_1T - sampled_1T).isfinite(), found_1T, torch.nan)[0].tolist())
