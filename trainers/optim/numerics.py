"""Who is to blame when a number is not finite."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence

import torch
from torch import Tensor, nn

from marl.errors import NonFinite
from marl.types import Sample
from trainers.batching.rows import Row

SPARSE = frozenset({"targets"})
"""Columns that are absent at some tokens, where they hold what is not a number."""


def check_inputs(policy: str, rows: Iterable[Row]) -> None:
    """Refuse numbers that are not finite: clipping could hide them from the loss."""
    bad = [sample for row in rows if not _whole(row) for sample in row.samples]
    if bad:
        raise NonFinite(policy, "loss", [sample for sample in bad if not _sound(sample)] or bad)


def loss_error(policy: str, rows: Sequence[Row], losses: Sequence[float]) -> NonFinite:
    """Blames the rows whose own loss is not finite."""
    bad = [row for row, loss in zip(rows, losses, strict=True) if not math.isfinite(loss)]
    return NonFinite(policy, "loss", [sample for row in bad for sample in row.samples])


def gradient_error(
    policy: str, rows: Sequence[Row], loss_of: Callable[[list[Row]], Tensor], parameters: Sequence[nn.Parameter]
) -> NonFinite:
    """Blames the units whose own gradient is not finite, which takes one backward pass a unit."""

    def explodes(unit: list[Row]) -> bool:
        gradients = torch.autograd.grad(loss_of(unit), parameters, allow_unused=True)
        return not math.isfinite(sum(float(g.square().sum()) for g in gradients if g is not None))

    bad = [row for unit in units_of(rows) if explodes(unit) for row in unit]
    return NonFinite(policy, "gradient", [sample for row in bad for sample in row.samples])


def units_of(rows: Iterable[Row]) -> list[list[Row]]:
    """Rows that must be computed together, in order of first appearance; one without a unit is alone."""
    units: dict[Hashable, list[Row]] = {}
    for index, row in enumerate(rows):
        units.setdefault(index if row.unit is None else ("unit", row.unit), []).append(row)
    return list(units.values())


def _whole(row: Row) -> bool:
    columns = (values for name, values in row.columns.items() if name not in SPARSE)
    sparse = (tuple(v for v in row.columns[n] if not math.isnan(v)) for n in SPARSE & row.columns.keys())
    return _finite(*columns, *sparse, tuple(row.facts.values()))


def _sound(sample: Sample) -> bool:
    read = sample.reading.logprobs if sample.reading else ()
    return _finite((sample.advantage.value,), sample.advantage.tokens, sample.logprobs, read)


def _finite(*numbers: Sequence[float]) -> bool:
    return all(math.isfinite(sum(values)) for values in numbers)
