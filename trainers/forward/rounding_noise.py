"""Rounding noise: the change of a model's log-probabilities if its numbers were rounded differently.

Monte Carlo arithmetic (Parker, Pierce, Eggert 2000): embeddings are perturbed at random by at most one unit of
rounding. All later numbers then round differently, as with another kernel, batch or engine. The change is distributed
like the difference of two correct computations of the same model.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from operator import sub
from typing import Any

import torch
from torch import Tensor, nn

from marl.trainers.batching.planner import BatchPlanner
from marl.trainers.batching.rows import BatchRow, TokenValues
from marl.trainers.forward.token_outputs import token_outputs

DRAWS = 3
"""Number of readings with perturbed embeddings; several, so that the maximum does not rest on few tokens."""


@dataclass(frozen=True, slots=True)
class MaxAndMeanGap:
    """Maximum and mean absolute difference of log-probabilities (nats), as a limit or as a measurement."""

    max: float
    mean: float


def unit_roundoff(model: nn.Module) -> float:
    """Return the maximum relative error of one rounding to the dtype of the model's least precise weights."""
    return max(torch.finfo(p.dtype).eps for p in model.parameters() if p.is_floating_point()) / 2


@torch.no_grad()
def read_logprobs(
    model: Any, planner: BatchPlanner, rows: Sequence[BatchRow], context: AbstractContextManager[Any] | None = None
) -> list[TokenValues]:
    """Return the log-probabilities (nats) of each row's tokens, computed within `context` in the model's current
    mode."""
    logprobs: dict[int, TokenValues] = {}
    with context or nullcontext():
        for chunk, batch in planner.collated_batches(rows):
            for row, values in zip(chunk, token_outputs(model, batch).logprobs_BT.tolist(), strict=True):
                logprobs[id(row)] = tuple(values[: len(row.token_ids)])
    return [logprobs[id(row)] for row in rows]


def rounding_noise(model: Any, planner: BatchPlanner, rows: Sequence[BatchRow]) -> MaxAndMeanGap:
    """Return the maximum and mean change of the log-probabilities of `rows` by rounding alone; deterministic."""
    training = model.training
    model.eval()
    unperturbed = read_logprobs(model, planner, rows)
    gaps: list[float] = []
    for seed in range(DRAWS):
        perturbed = read_logprobs(model, planner, rows, _perturbed_embeddings(model, seed))
        for row, perturbed_row in zip(unperturbed, perturbed, strict=True):
            gaps += map(abs, map(sub, row, perturbed_row))
    model.train(training)
    return MaxAndMeanGap(max(gaps), sum(gaps) / len(gaps))


@contextmanager
def _perturbed_embeddings(model: Any, seed: int) -> Iterator[None]:
    """Perturb the model's input embeddings at random, by at most one unit of rounding, within this context."""
    embeddings, unit = model.get_input_embeddings(), unit_roundoff(model)
    generator = torch.Generator(next(embeddings.parameters()).device).manual_seed(seed)

    def add_rounding_noise(_: nn.Module, __: Any, output: Tensor) -> Tensor:
        offsets = torch.rand(output.shape, generator=generator, device=output.device) * 2 - 1
        return (output.float() * (1 + unit * offsets)).to(output.dtype)

    handle = embeddings.register_forward_hook(add_rounding_noise)
    try:
        yield
    finally:
        handle.remove()
