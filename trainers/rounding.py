"""Noise of rounding: how far a model's log-probabilities move if its numbers were rounded otherwise.

Monte Carlo arithmetic (Parker, Pierce, Eggert 2000): the embeddings are moved by at most one rounding each, at random.
What follows then rounds at other places, as another kernel, batch or engine does, and the distance to the numbers read
without that has the law of the distance between two faithful computations of the same model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trainers.batching.planner import BatchPlanner
from trainers.batching.rows import Floats, Row
from trainers.forward.token_outputs import token_outputs

DRAWS = 3
"""Readings with other roundings, so that a greatest difference does not rest on few tokens."""


@dataclass(frozen=True, slots=True)
class Noise:
    """Sizes of differences of log-probabilities (nats)."""

    max: float
    mean: float


def coarsest_unit(model: nn.Module) -> float:
    """Return the greatest relative error of one rounding to the type of the model's coarsest weights."""
    return max(torch.finfo(p.dtype).eps for p in model.parameters() if p.is_floating_point()) / 2


@torch.no_grad()
def read_rows(
    model: Any, planner: BatchPlanner, rows: Sequence[Row], how: AbstractContextManager[Any] | None = None
) -> list[Floats]:
    """Return log-probabilities (nats) of each row's tokens, with the model in its present mode."""
    read: dict[int, Floats] = {}
    with how or nullcontext():
        for chunk, batch in planner.batches(rows):
            for row, values in zip(chunk, token_outputs(model, batch).logprobs_BT.tolist(), strict=True):
                read[id(row)] = tuple(values[: len(row.token_ids)])
    return [read[id(row)] for row in rows]


def rounding_noise(model: Any, planner: BatchPlanner, rows: Sequence[Row]) -> Noise:
    """Return the differences that roundings alone make on these texts. The same texts, the same numbers."""
    training = model.training
    model.eval()
    plain = read_rows(model, planner, rows)
    gaps = [
        abs(one - other)
        for seed in range(DRAWS)
        for row, moved in zip(plain, read_rows(model, planner, rows, _rounded_otherwise(model, seed)), strict=True)
        for one, other in zip(row, moved, strict=True)
    ]
    model.train(training)
    return Noise(max(gaps), sum(gaps) / len(gaps))


@contextmanager
def _rounded_otherwise(model: Any, seed: int) -> Iterator[None]:
    embeddings, unit = model.get_input_embeddings(), coarsest_unit(model)
    generator = torch.Generator(next(embeddings.parameters()).device).manual_seed(seed)

    def move(_: nn.Module, __: Any, output: Tensor) -> Tensor:
        offsets = torch.rand(output.shape, generator=generator, device=output.device) * 2 - 1
        return (output.float() * (1 + unit * offsets)).to(output.dtype)

    handle = embeddings.register_forward_hook(move)
    try:
        yield
    finally:
        handle.remove()
