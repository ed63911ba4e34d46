"""Who is to blame when a number is not finite."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

from marl.errors import NonFinite
from marl.types import Sample
from trainers.rows import Row


def check_inputs(policy: str, rows: Iterable[Row]) -> None:
    """Refuse advantages and log-probabilities that are not finite: clipping could hide them from the loss."""
    bad = [sample for row in rows if not _finite(row.advantages, row.old, row.sampled) for sample in row.samples]
    if bad:
        raise NonFinite(policy, "loss", [sample for sample in bad if not _sound(sample)] or bad)


def loss_error(policy: str, rows: Sequence[Row], losses: Sequence[float]) -> NonFinite:
    """Blames the rows whose own loss is not finite."""
    bad = [row for row, loss in zip(rows, losses, strict=True) if not math.isfinite(loss)]
    return NonFinite(policy, "loss", [sample for row in bad for sample in row.samples])


def gradient_error(
    policy: str, rows: Sequence[Row], loss_of: Callable[[Row], Tensor], parameters: Sequence[nn.Parameter]
) -> NonFinite:
    """Blames the rows whose own gradient is not finite, which takes one backward pass a row."""

    def explodes(row: Row) -> bool:
        gradients = torch.autograd.grad(loss_of(row), parameters, allow_unused=True)
        return not math.isfinite(sum(float(g.square().sum()) for g in gradients if g is not None))

    return NonFinite(policy, "gradient", [sample for row in rows if explodes(row) for sample in row.samples])


def _sound(sample: Sample) -> bool:
    read = sample.reading.logprobs if sample.reading else ()
    return _finite((sample.advantage.value,), sample.advantage.tokens, sample.logprobs, read)


def _finite(*numbers: Sequence[float]) -> bool:
    return all(math.isfinite(sum(values)) for values in numbers)
