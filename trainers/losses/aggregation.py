"""Masked sums, and how per-token losses become the loss of a minibatch. Denominators are the whole minibatch's."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts over a whole minibatch (all micro-batches, all ranks), of samples rather than merged rows."""

    samples: float
    """Samples with at least one token in the loss."""
    tokens: float
    """Tokens in the loss."""
    units: float = 0
    """Units of rows that are computed together, such as the turns of an episode, with at least one such token; of rows
    alone, the samples."""
    columns: Mapping[str, float] = field(default_factory=dict)
    """Column -> number of tokens that have a value (are not NaN) in it."""
    facts: Mapping[str, float] = field(default_factory=dict)
    """Fact -> its sum over samples."""


def row_scale(aggregation: str, lengths_B: Tensor, totals: Totals, norm: int | None = None) -> Tensor:
    """Return [B], the factor of each row's sum over tokens; the scaled sums add up to the minibatch's loss.

    `seq_mean_token_mean` is GRPO's (arXiv 2402.03300), `token_mean` DAPO's (2503.14476), `seq_mean_token_sum_norm`
    Dr. GRPO's (2503.20783).
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
    """Return [], one loss of a whole minibatch; 0 if no token is in it.

    Args:
        losses_BT: one for each token.
        mask_BT: True at tokens that count. Rows without any are in no denominator.
        mode: `token_mean`, `token_sum`, `seq_mean_token_sum`, `seq_mean_token_mean` or `seq_mean_token_sum_norm`.
        norm: constant (tokens) that the last of them divides by.

    Raises:
        ValueError: for another mode, or a `norm` that is missing.
    """
    totals = Totals(samples=max(int(mask_BT.any(1).sum()), 1), tokens=max(int(mask_BT.sum()), 1))
    return (row_scale(mode, mask_BT.sum(1), totals, norm) * masked_sum(losses_BT, mask_BT)).sum()


def masked_sum(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return [B], the sum over unmasked tokens, in float32 or wider."""
    return torch.where(mask_BT, widened(values_BT), 0.0).sum(1)


def masked_mean(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return [B], the mean over unmasked tokens; 0 in a row without any."""
    return masked_sum(values_BT, mask_BT) / mask_BT.sum(1).clamp(min=1)


def difference(a_BT: Tensor, b_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return [B, T], a - b (of log-probabilities: the log-ratio) at unmasked tokens, 0 elsewhere."""
    return torch.where(mask_BT, widened(a_BT) - widened(b_BT), 0.0)


def widened(values: Tensor) -> Tensor:
    """Return the same numbers in float32 or wider."""
    return values.to(torch.promote_types(values.dtype, torch.float32))
