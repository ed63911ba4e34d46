"""Numbers to compare losses on: ragged rows with holes, an empty row, ratios from e^-2 to e^2."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

MASK = torch.tensor(
    [
        [1, 1, 1, 1, 1, 1],
        [1, 0, 1, 1, 0, 0],
        [0, 0, 0, 0, 0, 0],
        [0, 1, 1, 1, 1, 0],
        [1, 0, 0, 0, 0, 0],
    ],
    dtype=torch.bool,
)
FULL = [0, 1, 3, 4]
"""The rows that are not empty."""


@dataclass(frozen=True)
class LossCase:
    """Log-probabilities of four policies, advantages, and which tokens count."""

    logprobs: Tensor
    old: Tensor
    anchor: Tensor
    sampled: Tensor
    advantages: Tensor
    mask: Tensor

    def over(self, change: Callable[[Tensor], Tensor]) -> LossCase:
        """All tensors changed."""
        return LossCase(**{name: change(getattr(self, name)) for name in self.__dataclass_fields__})

    def hidden(self, value: float) -> LossCase:
        """With `value` where tokens do not count."""
        changed = self.over(
            lambda tensor: torch.where(self.mask, tensor, value) if tensor.is_floating_point() else tensor
        )
        return replace(changed, mask=self.mask)


def random_case(dtype: torch.dtype = torch.float64, rows: bool = False, seed: int = 0, full: bool = False) -> LossCase:
    """Random numbers; `rows`: one advantage a row; `full`: without the empty row."""
    generator = torch.Generator().manual_seed(seed)
    tensors: list[Any] = [
        -2 + 0.7 * torch.randn(MASK.shape, generator=generator, dtype=torch.float64) for _ in range(4)
    ]
    advantages = torch.randn(MASK.shape, generator=generator, dtype=torch.float64)
    if rows:
        advantages = advantages[:, :1].expand_as(advantages).clone()
    case = LossCase(*[*tensors, advantages, MASK])
    case = case.over(lambda tensor: tensor[FULL]) if full else case
    return case.over(lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)


def single_token_case(gap: float, advantage: float, dtype: torch.dtype = torch.float32) -> LossCase:
    """One token whose log-ratio to every other policy is `gap`."""
    below, above = torch.full((2, 1, 1), -25.0, dtype=dtype)
    above = above + gap
    one = torch.full((1, 1), advantage, dtype=dtype)
    return LossCase(above, below, below, below, one, torch.ones(1, 1, dtype=torch.bool))


Loss = Callable[[LossCase], Tensor]


def value_and_gradient(loss: Loss, case: LossCase) -> tuple[Tensor, Tensor]:
    """Of a scalar loss to its log-probabilities."""
    leaf = case.logprobs.clone().requires_grad_()
    value = loss(replace(case, logprobs=leaf))
    value.backward()
    assert leaf.grad is not None
    return value.detach(), leaf.grad


def expect_equal_losses(ours: Loss, theirs: Loss, case: LossCase, *, still: bool = False) -> None:
    """Ours on poison behind the mask equals theirs on zeros behind it, in value and gradient.

    verl divides by lengths + 1e-8, hence the tolerance. `still`: there is no gradient to compare.
    """
    tolerance: dict[str, Any] = (
        {"rtol": 1e-7, "atol": 1e-9} if case.logprobs.dtype == torch.float64 else {"rtol": 2e-6, "atol": 1e-7}
    )
    their_value, their_gradient = value_and_gradient(theirs, case.hidden(0.0))
    for poison in (math.nan, math.inf, -math.inf):
        value, gradient = value_and_gradient(ours, case.hidden(poison))
        torch.testing.assert_close(value, their_value, **tolerance)
        torch.testing.assert_close(gradient, torch.where(case.mask, their_gradient, 0.0), **tolerance)
    assert still or their_gradient.abs().sum() > 0
