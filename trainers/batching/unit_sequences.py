"""Sequences of the completion tokens of a unit's rows, such as an agent's turns in an episode."""

import torch
from torch import Tensor

from marl.trainers.batching.batches import Batch


class UnitSequences:
    """The completions of each unit's rows, one after the other: [U, T] for U units, from [B, T] and back.

    Tokens between completions (prompts, other agents' turns) are left out, as a mask would leave them out of a text. A
    batch in which each row is a unit of its own is unchanged.
    """

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._joins = len(batch.units) < len(batch.units_B)
        if self._joins:
            units_N = batch.units_B[batch.mask_BT.nonzero(as_tuple=True)[0]]
            lengths_U = units_N.bincount()
            self._order_N = units_N.argsort(stable=True)
            self._mask_UT = torch.arange(int(lengths_U.max()), device=lengths_U.device) < lengths_U[:, None]

    def join(self, values_BT: Tensor) -> Tensor:
        """Return [U, T], zero where there is no token."""
        if not self._joins:
            return values_BT
        values_N = values_BT[self._batch.mask_BT][self._order_N]
        return values_N.new_zeros(self._mask_UT.shape).masked_scatter(self._mask_UT, values_N)

    def split(self, values_UT: Tensor) -> Tensor:
        """Return [B, T], zero where there is no token."""
        if not self._joins:
            return values_UT
        return self._batch.scatter_tokens(values_UT[self._mask_UT][self._order_N.argsort()])

    def lengths(self) -> Tensor:
        """Return [B], the number of tokens in the loss of each row's unit."""
        lengths_B, units_B = self._batch.lengths_B, self._batch.units_B
        return lengths_B.new_zeros(len(self._batch.units)).index_add(0, units_B, lengths_B)[units_B]
