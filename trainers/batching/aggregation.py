"""Masked sums and means, and the aggregation of token losses, whose denominators are counts over the minibatch."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class MinibatchTotals:
    """Denominators of a minibatch's loss: counts over all micro-batches and ranks, of samples before they are
    merged."""

    samples: float
    """Number of samples with at least one token in the loss."""
    tokens: float
    """Number of tokens in the loss."""
    units: float = 0
    """Number of units (rows that are computed together, such as an episode's turns) with at least one token in the
    loss. A row outside all units counts once for each of its samples."""
    column_counts: Mapping[str, float] = field(default_factory=dict)
    """Column -> number of tokens with a value (not NaN)."""
    scalar_sums: Mapping[str, float] = field(default_factory=dict)
    """Scalar of `BatchRow.scalars` -> its sum over samples."""


def row_loss_weights(
    aggregation: str, token_counts_B: Tensor, totals: MinibatchTotals, norm_tokens: int | None = None
) -> Tensor:
    """Return [B], the weight of each row's summed token losses in the minibatch's loss.

    `seq_mean_token_mean` is from GRPO (arXiv 2402.03300), `token_mean` from DAPO (2503.14476),
    `seq_mean_token_sum_norm` from Dr. GRPO (2503.20783).
    """
    ones_B = torch.ones_like(token_counts_B, dtype=torch.float32)
    match aggregation:
        case "token_mean":
            return ones_B / totals.tokens
        case "token_sum":
            return ones_B
        case "seq_mean_token_sum":
            return ones_B / totals.samples
        case "seq_mean_token_mean":
            return ones_B / (totals.samples * token_counts_B.clamp(min=1))
        case "seq_mean_token_sum_norm" if norm_tokens:
            return ones_B / (totals.samples * norm_tokens)
    raise ValueError(f"aggregation={aggregation!r} with norm={norm_tokens} is not known")


def aggregate(
    losses_BT: Tensor, mask_BT: Tensor, aggregation: str = "token_mean", norm_tokens: int | None = None
) -> Tensor:
    """Return [], the aggregated loss of a minibatch of tokens; 0 if no token is in the loss.

    Args:
        losses_BT: loss of each token.
        mask_BT: True at tokens in the loss. Rows without such tokens are in no denominator.
        aggregation: `token_mean`, `token_sum`, `seq_mean_token_sum`, `seq_mean_token_mean` or
            `seq_mean_token_sum_norm`.
        norm_tokens: constant (tokens) of `seq_mean_token_sum_norm`.

    Raises:
        ValueError: for another mode, or if `norm_tokens` is missing.
    """
    totals = MinibatchTotals(samples=max(int(mask_BT.any(1).sum()), 1), tokens=max(int(mask_BT.sum()), 1))
    return (row_loss_weights(aggregation, mask_BT.sum(1), totals, norm_tokens) * masked_sum(losses_BT, mask_BT)).sum()


def masked_sum(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return [B], the sum over unmasked tokens, in float32 or wider."""
    return torch.where(mask_BT, to_float32_or_wider(values_BT), 0.0).sum(1)


def masked_mean_per_row(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return [B], the mean over unmasked tokens; 0 in a row without unmasked tokens."""
    return masked_sum(values_BT, mask_BT) / mask_BT.sum(1).clamp(min=1)


def masked_difference(a_BT: Tensor, b_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return [B, T], a - b (of log-probabilities: the log-ratio) at unmasked tokens, 0 elsewhere."""
    return torch.where(mask_BT, to_float32_or_wider(a_BT) - to_float32_or_wider(b_BT), 0.0)


def to_float32_or_wider(values: Tensor) -> Tensor:
    """Return the same numbers in float32 or wider."""
    return values.to(torch.promote_types(values.dtype, torch.float32))
