"""Concatenation of the completions of a unit's rows, such as an agent's turns in an episode."""

import torch
from torch import Tensor

from marl.trainers.batching.batches import Batch


class UnitSequenceConverter:
    """Conversion between values of B rows, [B, T], and values of U units, [U, T], whose rows are concatenated.

    A unit is one turn, or all turns of an agent in an episode. Its sequence holds completion tokens alone, without
    prompts and other agents' turns. If each row is a unit of its own, nothing changes.
    """

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._has_joint_rows = len(batch.units) < len(batch.units_B)
        if self._has_joint_rows:
            units_N = batch.units_B[batch.mask_BT.nonzero(as_tuple=True)[0]]
            lengths_U = units_N.bincount()
            self._order_N = units_N.argsort(stable=True)
            self._mask_UT = torch.arange(int(lengths_U.max()), device=lengths_U.device) < lengths_U[:, None]

    def concatenate_rows_of_units(self, row_values_BT: Tensor) -> Tensor:
        """Return each unit's rows, [B, T], concatenated to one sequence, [U, T], with zeros as padding."""
        if not self._has_joint_rows:
            return row_values_BT
        values_N = row_values_BT[self._batch.mask_BT][self._order_N]
        return values_N.new_zeros(self._mask_UT.shape).masked_scatter(self._mask_UT, values_N)

    def split_units_into_rows(self, unit_values_UT: Tensor) -> Tensor:
        """Return values of units [U, T] as values of rows [B, T], zero at padding."""
        if not self._has_joint_rows:
            return unit_values_UT
        return self._batch.scatter_token_values(unit_values_UT[self._mask_UT][self._order_N.argsort()])

    def loss_tokens_in_unit_of_each_row(self) -> Tensor:
        """Return [B], for each row, the number of tokens in the loss over all rows of its unit."""
        lengths_B, units_B = self._batch.lengths_B, self._batch.units_B
        return lengths_B.new_zeros(len(self._batch.units)).index_add(0, units_B, lengths_B)[units_B]
