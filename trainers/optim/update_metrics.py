"""Metrics of an update, and the samples to blame when a number is not finite."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from marl.core.errors import NonFiniteError
from marl.core.types import Metrics, Sample
from marl.trainers.batching.batches import Batch
from marl.trainers.batching.rows import Row, group_by_unit
from marl.trainers.objective import LossTerms

FIRST_STEP_STATS = ("kl_sampler",)
"""Statistics of the first optimizer step's samples alone, before the update has moved the weights."""
SPARSE_COLUMNS = frozenset({"targets"})
"""Columns that are absent (NaN) at some tokens."""


@dataclass(slots=True)
class StepMetrics:
    """Figures of one optimizer step, summed on the device and read once."""

    rows: int
    sums_S: Tensor
    """Sums over tokens of the statistics, then the terms of the loss, then the number of tokens; zeros at first."""
    loss: float = 0.0
    grad_norm: float = 0.0

    @torch.no_grad()
    def add(self, terms: LossTerms, batch: Batch) -> None:
        """Add the figures of one forward pass."""
        weights_BT = batch.loss_mask_BT * batch.counts_B[:, None]
        sums = [(torch.where(batch.loss_mask_BT, stat, 0.0) * weights_BT).sum() for stat in terms.token_stats]
        numbers = [*sums, *terms.loss_terms.values(), weights_BT.sum()]
        self.sums_S += torch.stack([number.detach().double() for number in numbers])


def update_metrics(steps: Sequence[StepMetrics], loss_terms: Sequence[str], stats: Sequence[str]) -> Metrics:
    """Return means over tokens of `stats`, and means over steps of `loss_terms`; zeros if nothing was learned."""
    if not steps:
        return dict.fromkeys(("loss", "grad_norm", *loss_terms, "tokens", "rows", *stats), 0.0)
    table = [step.sums_S.tolist() for step in steps]
    sums, first_sums = [sum(column) for column in zip(*table, strict=True)], table[0]
    metrics = {
        "loss": sum(step.loss for step in steps) / len(steps),
        "grad_norm": sum(step.grad_norm for step in steps) / len(steps),
    }
    for name, value in zip(loss_terms, sums[len(stats) : -1], strict=True):
        metrics[name] = value / len(steps)
    metrics["tokens"] = sums[-1]
    metrics["rows"] = float(sum(step.rows for step in steps))
    for index, name in enumerate(stats):
        stat_sums = first_sums if name in FIRST_STEP_STATS else sums
        metrics[name] = stat_sums[index] / max(stat_sums[-1], 1)
    return metrics


def memory_metrics(device: torch.device) -> Metrics:
    """Return `memory_gib`, the peak on a GPU since `reset_peak_memory_stats`; no metric on a CPU."""
    # On a CPU only the peak since the process started is known: a resumed run's metrics would differ.
    return {"memory_gib": torch.cuda.max_memory_allocated(device) / 2**30} if device.type == "cuda" else {}


def check_finite(policy: str, rows: Iterable[Row]) -> None:
    """Check the numbers of rows before the loss is computed, whose clipping could hide them.

    Raises:
        NonFiniteError: naming the samples.
    """
    bad: list[Sample] = []
    for row in rows:
        numbers = [tuple(row.scalars.values())]
        for name, values in row.columns.items():
            sparse = name in SPARSE_COLUMNS
            numbers.append(tuple(value for value in values if not math.isnan(value)) if sparse else values)
        if not _finite(*numbers):
            bad += row.samples
    if not bad:
        return
    # Of merged samples, only some may be to blame.
    blamed: list[Sample] = []
    for sample in bad:
        read = sample.reading.logprobs if sample.reading else ()
        if not _finite((sample.advantage.value,), sample.advantage.tokens, sample.logprobs, read):
            blamed.append(sample)
    raise NonFiniteError(policy, "loss", blamed or bad)


def find_non_finite_rows(
    rows: Sequence[Row], losses: Sequence[float], norm_of: Callable[[list[Row]], float]
) -> tuple[Literal["loss", "gradient"], list[Row]]:
    """Return the rows whose loss is not finite, or the rows of the units whose gradient norm is not finite.

    Norms are computed only if all losses are finite, because they take a backward pass for each unit.
    """
    if not math.isfinite(sum(losses)):
        return "loss", [row for row, loss in zip(rows, losses, strict=True) if not math.isfinite(loss)]
    bad: list[Row] = []
    for unit in group_by_unit(rows):
        if not math.isfinite(norm_of(unit)):
            bad += unit
    return "gradient", bad


def _finite(*numbers: Sequence[float]) -> bool:
    return all(math.isfinite(sum(values)) for values in numbers)
