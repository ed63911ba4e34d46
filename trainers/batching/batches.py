"""Batches: rows of one forward pass as tensors."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from marl.trainers.batching.rows import BatchRow, forward_pass_keys, temperature_top_p_and_top_k
from marl.trainers.forward.model_inputs import ModelInputs, padded_inputs


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one forward pass as tensors. Column t of a [B, T] tensor is for completion token t."""

    inputs: ModelInputs
    mask_BT: Tensor
    """[B, T], True at completion tokens, False at padding."""
    loss_mask_BT: Tensor
    """[B, T], True at completion tokens in the loss."""
    counts_B: Tensor
    """[B], number of samples merged into each row."""
    lengths_B: Tensor
    """[B], number of each row's tokens in the loss."""
    tokens_N: Tensor
    """[N], ids of all completion tokens, row after row."""
    sampling_N3: Tensor | None
    """[N, 3], each token's temperature, top-p and top-k. None: all tokens have temperature 1 and no truncation."""
    units_B: Tensor
    """[B], index in `units` of each row's unit."""
    units: tuple[Hashable, ...]
    """Key `BatchRow.unit` of each unit of the batch; None for a unit of a single row."""
    columns: dict[str, Tensor]
    """Name of a column of `BatchRow.columns` -> [B, T], float32, 0 at padding."""
    scalars: dict[str, Tensor]
    """Name of a scalar of `BatchRow.scalars` -> [B], float32."""

    def scatter_token_values(self, values_N: Tensor) -> Tensor:
        """Return the values of all completion tokens as [B, T], zero at padding."""
        return values_N.new_zeros(self.mask_BT.shape).masked_scatter(self.mask_BT, values_N)


InputBuilder = Callable[[Sequence[BatchRow], Tensor, Tensor, torch.device], ModelInputs]


def collate(rows: Sequence[BatchRow], device: torch.device, layout: InputBuilder = padded_inputs) -> Batch:
    """Return `rows` as one batch of tensors on `device`; `layout` arranges the model's inputs.

    Raises:
        ValueError: if a prompt is empty, or a row was sampled at temperature 0.
    """
    settings: list[tuple[float, float, int]] = []
    counts: list[float] = []
    tokens: list[int] = []
    values: dict[str, list[Sequence[float]]] = {name: [] for name in ("loss mask", *rows[0].columns)}
    units: dict[Hashable, Hashable] = {}
    keys = forward_pass_keys(rows)
    for key, row in zip(keys, rows, strict=True):
        if not row.prompt_ids:
            raise ValueError("a completion needs a prompt of at least one token")
        settings.append(temperature_top_p_and_top_k(row.sampling))
        counts.append(float(row.count))
        tokens += row.token_ids
        values["loss mask"].append(row.loss_mask or (True,) * len(row.token_ids))
        for name, column in row.columns.items():
            values[name].append(column)
        units[key] = row.unit
    if min(settings)[0] == 0:
        raise ValueError("temperature=0 has no log-probabilities to learn from or to read; choose one above 0")
    lengths_B = torch.tensor([len(row.token_ids) for row in rows])
    mask_BT = torch.arange(int(lengths_B.max())) < lengths_B[:, None]
    columns: dict[str, Tensor] = {}
    for name, column in values.items():
        flat_N = torch.tensor(list(chain.from_iterable(column)), dtype=torch.float32)
        columns[name] = torch.zeros(mask_BT.shape).masked_scatter(mask_BT, flat_N)
    loss_mask_BT = columns.pop("loss mask").bool()
    row_index_N, token_index_N = mask_BT.nonzero(as_tuple=True)
    # Tokens get the sampling settings of their row; None means that all rows have the model's own distribution.
    sampling_N3 = None
    if set(settings) != {(1, 1, 0)}:
        sampling_N3 = torch.tensor(settings, dtype=torch.float32)[row_index_N].to(device)
    unit_index = dict(zip(units, range(len(units)), strict=True))
    scalars: dict[str, Tensor] = {}
    for name in rows[0].scalars:
        scalars[name] = torch.tensor([row.scalars[name] for row in rows], device=device)
    return Batch(
        inputs=layout(rows, row_index_N, token_index_N, device),
        mask_BT=mask_BT.to(device),
        loss_mask_BT=loss_mask_BT.to(device),
        counts_B=torch.tensor(counts, device=device),
        lengths_B=loss_mask_BT.sum(1).to(device),
        tokens_N=torch.tensor(tokens, device=device),
        sampling_N3=sampling_N3,
        units_B=torch.tensor(list(map(unit_index.__getitem__, keys))).to(device),
        units=tuple(units.values()),
        columns={name: column.to(device) for name, column in columns.items()},
        scalars=scalars,
    )
