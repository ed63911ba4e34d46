"""Metrics of an update, and the samples to blame when a number is not finite."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from marl.errors import NonFinite
from marl.types import Metrics, Sample
from trainers.batching.batches import Batch
from trainers.batching.rows import Row, units_of
from trainers.objectives.objective import LossTerms

AT_START = ("kl_sampler",)
"""Statistics of the first optimizer step's samples alone, before the update has moved the weights."""
SPARSE = frozenset({"targets"})
"""Columns that are absent (NaN) at some tokens."""


@dataclass(slots=True)
class StepMetrics:
    """Figures of one optimizer step, summed on the device and read once."""

    rows: int
    sums_S: Tensor
    """Sums over tokens of the statistics, then the parts of the loss, then the number of tokens; zeros at first."""
    loss: float = 0.0
    grad_norm: float = 0.0

    @torch.no_grad()
    def add(self, terms: LossTerms, batch: Batch) -> None:
        """Add one forward pass."""
        weights_BT = batch.loss_mask_BT * batch.counts_B[:, None]
        sums = [(torch.where(batch.loss_mask_BT, stat, 0.0) * weights_BT).sum() for stat in terms.stats]
        numbers = [*sums, *terms.parts.values(), weights_BT.sum()]
        self.sums_S += torch.stack([number.detach().double() for number in numbers])


def update_metrics(steps: Sequence[StepMetrics], parts: Sequence[str], stats: Sequence[str]) -> Metrics:
    """Return means over tokens of the statistics, means over steps of the rest; zeros if nothing was learned."""
    if not steps:
        return dict.fromkeys(("loss", "grad_norm", *parts, "tokens", "rows", *stats), 0.0)
    table = [step.sums_S.tolist() for step in steps]
    sums, start = [sum(column) for column in zip(*table, strict=True)], table[0]
    means = [
        start[i] / max(start[-1], 1) if name in AT_START else sums[i] / max(sums[-1], 1) for i, name in enumerate(stats)
    ]
    return {
        "loss": sum(step.loss for step in steps) / len(steps),
        "grad_norm": sum(step.grad_norm for step in steps) / len(steps),
        **{name: value / len(steps) for name, value in zip(parts, sums[len(stats) : -1], strict=True)},
        "tokens": sums[-1],
        "rows": float(sum(step.rows for step in steps)),
        **dict(zip(stats, means, strict=True)),
    }


def memory_metrics(device: torch.device) -> Metrics:
    """Return `memory_gib`, the peak on a GPU since `reset_peak_memory_stats`. Nothing on a CPU, where only the peak
    since the process started is known: a resumed run's metrics would differ."""
    return {"memory_gib": torch.cuda.max_memory_allocated(device) / 2**30} if device.type == "cuda" else {}


def check_finite(policy: str, rows: Iterable[Row]) -> None:
    """Check the numbers of rows before the loss, from which clipping could hide them.

    Raises:
        NonFinite: naming the samples.
    """
    bad = [sample for row in rows if not _row_finite(row) for sample in row.samples]
    if bad:
        raise NonFinite(policy, "loss", [sample for sample in bad if not _sample_finite(sample)] or bad)


def find_non_finite(
    rows: Sequence[Row], losses: Sequence[float], norm_of: Callable[[list[Row]], float]
) -> tuple[Literal["loss", "gradient"], list[Row]]:
    """Return the rows whose loss is not finite; if there are none, the units whose gradient's norm is not, which takes
    a backward pass for each unit."""
    if not math.isfinite(sum(losses)):
        return "loss", [row for row, loss in zip(rows, losses, strict=True) if not math.isfinite(loss)]
    return "gradient", [row for unit in units_of(rows) if not math.isfinite(norm_of(unit)) for row in unit]


def _row_finite(row: Row) -> bool:
    columns = (values for name, values in row.columns.items() if name not in SPARSE)
    sparse = (tuple(v for v in row.columns[n] if not math.isnan(v)) for n in SPARSE & row.columns.keys())
    return _finite(*columns, *sparse, tuple(row.facts.values()))


def _sample_finite(sample: Sample) -> bool:
    read = sample.reading.logprobs if sample.reading else ()
    return _finite((sample.advantage.value,), sample.advantage.tokens, sample.logprobs, read)


def _finite(*numbers: Sequence[float]) -> bool:
    return all(math.isfinite(sum(values)) for values in numbers)
