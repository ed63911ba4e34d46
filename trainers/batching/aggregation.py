"""Masked sums, and the aggregation of per-token losses. Denominators are counts over the whole minibatch."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class MinibatchTotals:
    """Counts over a whole minibatch (all micro-batches, all ranks), of samples rather than merged rows."""

    samples: float
    """Samples with at least one token in the loss."""
    tokens: float
    """Tokens in the loss."""
    units: float = 0
    """Units of rows that are computed together, such as the turns of an episode, with at least one token in the loss. A
    row without a unit counts as its samples."""
    column_counts: Mapping[str, float] = field(default_factory=dict)
    """Number of tokens with a value (not NaN), by column."""
    scalar_sums: Mapping[str, float] = field(default_factory=dict)
    """Sum over samples, by name of the scalar."""


def row_weights(aggregation: str, lengths_B: Tensor, totals: MinibatchTotals, norm: int | None = None) -> Tensor:
    """Return [B], the factor of each row's sum over tokens; the scaled sums add up to the loss of the minibatch.

    `seq_mean_token_mean` is from GRPO (arXiv 2402.03300), `token_mean` from DAPO (2503.14476),
    `seq_mean_token_sum_norm` from Dr. GRPO (2503.20783).
    """
    ones_B = torch.ones_like(lengths_B, dtype=torch.float32)
    match aggregation:
        case "token_mean":
            return ones_B / totals.tokens
        case "token_sum":
            return ones_B
        case "seq_mean_token_sum":
            return ones_B / totals.samples
        case "seq_mean_token_mean":
            return ones_B / (totals.samples * lengths_B.clamp(min=1))
        case "seq_mean_token_sum_norm" if norm:
            return ones_B / (totals.samples * norm)
    raise ValueError(f"aggregation={aggregation!r} with norm={norm} is not known")


def aggregate(losses_BT: Tensor, mask_BT: Tensor, mode: str = "token_mean", norm: int | None = None) -> Tensor:
    """Return [], the loss of a whole minibatch; 0 if no token is in the loss.

    Args:
        losses_BT: loss of each token.
        mask_BT: True at tokens in the loss. Rows without such tokens are in no denominator.
        mode: `token_mean`, `token_sum`, `seq_mean_token_sum`, `seq_mean_token_mean` or `seq_mean_token_sum_norm`.
        norm: constant (tokens) of `seq_mean_token_sum_norm`.

    Raises:
        ValueError: for another mode, or if `norm` is missing.
    """
    totals = MinibatchTotals(samples=max(int(mask_BT.any(1).sum()), 1), tokens=max(int(mask_BT.sum()), 1))
    return (row_weights(mode, mask_BT.sum(1), totals, norm) * masked_sum(losses_BT, mask_BT)).sum()


def masked_sum(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return [B], the sum over unmasked tokens, in float32 or wider."""
    return torch.where(mask_BT, to_float32(values_BT), 0.0).sum(1)


def masked_mean(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return [B], the mean over unmasked tokens; 0 in a row without unmasked tokens."""
    return masked_sum(values_BT, mask_BT) / mask_BT.sum(1).clamp(min=1)


def masked_difference(a_BT: Tensor, b_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return [B, T], a - b (of log-probabilities: the log-ratio) at unmasked tokens, 0 elsewhere."""
    return torch.where(mask_BT, to_float32(a_BT) - to_float32(b_BT), 0.0)


def to_float32(values: Tensor) -> Tensor:
    """Return the same numbers in float32 or wider."""
    return values.to(torch.promote_types(values.dtype, torch.float32))
