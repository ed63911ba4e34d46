"""How numbers of tokens become the loss of a minibatch. Denominators are those of the whole minibatch.

Shape suffixes: B = rows, T = completion tokens. What a mask hides changes neither a value nor a gradient, even if it is
not a number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Totals:
    """What a whole minibatch holds on all ranks, whatever it is split into: samples, not merged rows."""

    samples: int
    """With at least one token that counts."""
    tokens: int
    """That count."""
    units: int = 0
    """Units (pairs, say), each once."""
    columns: Mapping[str, int] = field(default_factory=dict)
    """Column -> tokens at which it is not absent."""
    facts: Mapping[str, float] = field(default_factory=dict)
    """Fact -> its sum over rows, as often as they count."""


def row_scale(aggregation: str, lengths_B: Tensor, totals: Totals, norm: int | None = None) -> Tensor:
    """[B] factor of each row's sum over tokens, such that the minibatch's sum is the aggregate.

    `seq_mean_token_mean` is GRPO's own (arXiv 2402.03300), `token_mean` DAPO's (2503.14476), `seq_mean_token_sum_norm`
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


def masked_sum(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """[B] sum over the tokens that count, in float32 or wider."""
    return torch.where(mask_BT, widened(values_BT), 0.0).sum(1)


def masked_mean(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """[B] mean over the tokens that count; 0 in a row without one."""
    return masked_sum(values_BT, mask_BT) / mask_BT.sum(1).clamp(min=1)


def difference(above_BT: Tensor, below_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """[B, T] above - below (of log-probabilities: the log-ratio) where tokens count, 0 elsewhere."""
    return torch.where(mask_BT, widened(above_BT) - widened(below_BT), 0.0)


def widened(values: Tensor) -> Tensor:
    """The same numbers, in float32 if they come in less."""
    return values.to(torch.promote_types(values.dtype, torch.float32))
