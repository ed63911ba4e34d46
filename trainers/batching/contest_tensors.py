"""Rows of contests as tensors: which rows are one side, and which sides are a pair.

Shape suffixes: B = rows, S = sides, U = pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trainers.batching.batches import Batch
from trainers.batching.pairs import Contest


@dataclass(frozen=True, slots=True)
class Sides:
    """Of all contests of a batch, numbered through."""

    sides_B: Tensor
    """The side that each row is of."""
    many: int
    """How many sides there are."""
    better_U: Tensor
    worse_U: Tensor
    """The sides of each pair."""

    def sum(self, values_B: Tensor) -> Tensor:
        """[S] sums over the rows of each side."""
        return values_B.new_zeros(self.many).index_add(0, self.sides_B, values_B)

    def shares(self, losses_U: Tensor) -> Tensor:
        """[B] each row's share of its pairs' losses, so that one that is not finite is found; their sum is the same."""
        halves_S = losses_U.new_zeros(self.many)
        halves_S = halves_S.index_add(0, self.better_U, losses_U / 2).index_add(0, self.worse_U, losses_U / 2)
        return (halves_S / self.sum(torch.ones_like(self.sides_B)))[self.sides_B]


def sides_of(batch: Batch) -> Sides:
    """Of rows made by `paired_rows`, whole contests of them."""
    starts: list[int] = []
    pairs: list[tuple[int, int]] = []
    many = 0
    for contest in batch.unit_names:
        assert isinstance(contest, Contest)
        starts.append(many)
        pairs += [(many + better, many + worse) for better, worse in contest.pairs]
        many += len(contest.sides)
    device = batch.units_B.device
    pairs_U2 = torch.tensor(pairs, device=device)
    sides_B = torch.tensor(starts, device=device)[batch.units_B] + batch.facts["side"].long()
    return Sides(sides_B, many, pairs_U2[:, 0], pairs_U2[:, 1])
