"""Metrics of an update, and the check for numbers that are not finite."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from marl.core.errors import NonFiniteError
from marl.core.types import Metrics, Sample
from marl.trainers.batching.batches import Batch
from marl.trainers.batching.rows import BatchRow
from marl.trainers.objective import LossTerms

# Metrics of this module (name | unit | meaning), which `tests/bench/figures.py` copies into marl/README.md.
METRICS = """
policy/POLICY/rows | rows | rows of the update after identical samples were merged, summed over optimizer steps
policy/POLICY/tokens | tokens | completion tokens in the loss, summed over optimizer steps
policy/POLICY/memory_gib | GiB | peak of GPU memory during the update; on a GPU only
policy/POLICY/mfu | fraction | model FLOPs per second over a GPU's peak in bfloat16; each text whole, no padding
"""

FIRST_STEP_STATS: tuple[str, ...] = ("kl_sampler",)
"""Statistics that are reported for the first optimizer step alone, before the update has moved the weights."""
LAST_STEP_STATS: tuple[str, ...] = ("kl_update",)
"""Statistics that are reported for the last optimizer step alone, when the update has moved the weights furthest."""
SPARSE_COLUMNS = frozenset({"targets"})
"""Columns that are NaN at tokens without a value."""


@dataclass(slots=True)
class StepMetrics:
    """Metrics of one optimizer step, summed on the device and copied to the host once."""

    rows: int
    sums_S: Tensor
    """[S]: sums over tokens of the per-token statistics, then the terms of the loss, then the number of tokens."""
    loss: float = 0.0
    grad_norm: float = 0.0
    ends_update: bool = False
    """True if the step was not taken, because the policy had moved beyond the objective's limit."""

    @torch.no_grad()
    def add_forward_pass(self, terms: LossTerms, batch: Batch) -> None:
        """Add the statistics and loss terms of one forward pass."""
        weights_BT = batch.loss_mask_BT * batch.counts_B[:, None]
        sums = [(torch.where(batch.loss_mask_BT, stat, 0.0) * weights_BT).sum() for stat in terms.token_stats]
        numbers = [*sums, *terms.loss_terms.values(), weights_BT.sum()]
        self.sums_S += torch.stack([number.detach().double() for number in numbers])


def mean_step_metrics(
    steps: Sequence[StepMetrics], loss_term_names: Sequence[str], token_stat_names: Sequence[str]
) -> Metrics:
    """Return the means over tokens of `token_stat_names`, and the means over steps of `loss_term_names`; zeros without
    a step."""
    if not steps:
        return dict.fromkeys(("loss", "grad_norm", *loss_term_names, "tokens", "rows", *token_stat_names), 0.0)
    table = [step.sums_S.tolist() for step in steps]
    sums = [sum(column) for column in zip(*table, strict=True)]
    sums_by_name = dict.fromkeys(FIRST_STEP_STATS, table[0]) | dict.fromkeys(LAST_STEP_STATS, table[-1])
    metrics = {
        "loss": sum(step.loss for step in steps) / len(steps),
        "grad_norm": sum(step.grad_norm for step in steps) / len(steps),
    }
    for name, value in zip(loss_term_names, sums[len(token_stat_names) : -1], strict=True):
        metrics[name] = value / len(steps)
    metrics["tokens"] = sums[-1]
    metrics["rows"] = float(sum(step.rows for step in steps))
    for index, name in enumerate(token_stat_names):
        stat_sums = sums_by_name.get(name, sums)
        metrics[name] = stat_sums[index] / max(stat_sums[-1], 1)
    return metrics


def check_finite(policy: str, rows: Iterable[BatchRow]) -> None:
    """Check the columns and scalars of `rows` before the loss, whose clipping could hide a number that is not finite.

    Raises:
        NonFiniteError: if a number is not finite; it names the samples.
    """
    bad: list[Sample] = []
    for row in rows:
        numbers = [tuple(row.scalars.values())]
        for name, values in row.columns.items():
            if name in SPARSE_COLUMNS:
                values = tuple(value for value in values if not math.isnan(value))
            numbers.append(values)
        if not _all_finite(*numbers):
            bad += row.samples
    if not bad:
        return
    # A row may merge several samples, so only those with a non-finite number are blamed.
    blamed: list[Sample] = []
    for sample in bad:
        read = sample.reading.logprobs if sample.reading else ()
        if not _all_finite((sample.advantage.value,), sample.advantage.tokens, sample.logprobs, read):
            blamed.append(sample)
    raise NonFiniteError(policy, "loss", blamed or bad)


def check_finite_rewards(policy: str, samples: Iterable[Sample]) -> None:
    """Check rewards and credit of `samples`, because a comparison with NaN is silently false.

    Raises:
        NonFiniteError: if a number is not finite; it names the samples.
    """
    if bad := [sample for sample in samples if not _all_finite((sample.paid, sample.earned))]:
        raise NonFiniteError(policy, "reward", bad)


def _all_finite(*numbers: Sequence[float]) -> bool:
    return all(math.isfinite(sum(values)) for values in numbers)
