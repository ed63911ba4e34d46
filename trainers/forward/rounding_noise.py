"""Noise of rounding: the change of a model's log-probabilities if its numbers were rounded differently.

Monte Carlo arithmetic (Parker, Pierce, Eggert 2000): the embeddings are moved by at most one rounding each, at random.
Later numbers then round differently, as with another kernel, batch or engine. The distance to the unperturbed reading
has the distribution of the distance between two faithful computations of the same model.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from marl.trainers.batching.planner import BatchPlanner
from marl.trainers.batching.rows import Row, TokenValues
from marl.trainers.forward.token_outputs import token_outputs

DRAWS = 3
"""Readings with perturbed embeddings, so that the greatest difference does not rest on few tokens."""


@dataclass(frozen=True, slots=True)
class GapLimits:
    """Sizes of differences of log-probabilities (nats)."""

    max: float
    mean: float


def unit_roundoff(model: nn.Module) -> float:
    """Return the greatest relative error of one rounding to the dtype of the model's coarsest weights."""
    return max(torch.finfo(p.dtype).eps for p in model.parameters() if p.is_floating_point()) / 2


@torch.no_grad()
def read_logprobs(
    model: Any, planner: BatchPlanner, rows: Sequence[Row], context: AbstractContextManager[Any] | None = None
) -> list[TokenValues]:
    """Return log-probabilities (nats) of each row's tokens, read in `context` with the model in its present mode."""
    logprobs: dict[int, TokenValues] = {}
    with context or nullcontext():
        for chunk, batch in planner.batches(rows):
            for row, values in zip(chunk, token_outputs(model, batch).logprobs_BT.tolist(), strict=True):
                logprobs[id(row)] = tuple(values[: len(row.token_ids)])
    return [logprobs[id(row)] for row in rows]


def rounding_noise(model: Any, planner: BatchPlanner, rows: Sequence[Row]) -> GapLimits:
    """Return the differences of log-probabilities caused by rounding alone on `rows`; deterministic for given rows."""
    training = model.training
    model.eval()
    unperturbed = read_logprobs(model, planner, rows)
    gaps: list[float] = []
    for seed in range(DRAWS):
        perturbed = read_logprobs(model, planner, rows, _perturbed_embeddings(model, seed))
        for row, perturbed_row in zip(unperturbed, perturbed, strict=True):
            gaps += [abs(one - other) for one, other in zip(row, perturbed_row, strict=True)]
    model.train(training)
    return GapLimits(max(gaps), sum(gaps) / len(gaps))


@contextmanager
def _perturbed_embeddings(model: Any, seed: int) -> Iterator[None]:
    embeddings, unit = model.get_input_embeddings(), unit_roundoff(model)
    generator = torch.Generator(next(embeddings.parameters()).device).manual_seed(seed)

    def perturb(_: nn.Module, __: Any, output: Tensor) -> Tensor:
        offsets = torch.rand(output.shape, generator=generator, device=output.device) * 2 - 1
        return (output.float() * (1 + unit * offsets)).to(output.dtype)

    handle = embeddings.register_forward_hook(perturb)
    try:
        yield
    finally:
        handle.remove()
