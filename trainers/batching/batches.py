"""Conversion of rows to tensors."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from marl.trainers.batching.rows import Row, sampling_distribution, unit_keys
from marl.trainers.forward.model_inputs import ModelInputs, padded_inputs


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one forward pass. Column t of a [B, T] tensor is completion token t."""

    inputs: ModelInputs
    mask_BT: Tensor
    """True where there is a token."""
    loss_mask_BT: Tensor
    """True where there is a token in the loss."""
    counts_B: Tensor
    """Number of samples merged into each row."""
    lengths_B: Tensor
    """Number of tokens in the loss of each row."""
    tokens_N: Tensor
    """Ids of the completion tokens."""
    sampling_N3: Tensor | None
    """Temperature, top-p and top-k; None if all tokens were sampled from the model's own distribution."""
    units_B: Tensor
    """Index of each row's unit in `units`."""
    units: tuple[Hashable, ...]
    """`Row.unit` of each unit; None for a row alone."""
    columns: dict[str, Tensor]
    """[B, T] each, float32, 0 where there is no token."""
    scalars: dict[str, Tensor]
    """[B] each, float32."""

    def scatter_tokens(self, values_N: Tensor) -> Tensor:
        """Return [B, T], zero where there is no token."""
        return values_N.new_zeros(self.mask_BT.shape).masked_scatter(self.mask_BT, values_N)


InputLayout = Callable[[Sequence[Row], Tensor, Tensor, torch.device], ModelInputs]


def collate(rows: Sequence[Row], device: torch.device, layout: InputLayout = padded_inputs) -> Batch:
    """Return rows of different lengths as one batch; `layout` arranges the inputs of the forward pass.

    Raises:
        ValueError: if a prompt is empty, or a row was sampled at temperature 0.
    """
    if any(not row.prompt_ids for row in rows):
        raise ValueError("a completion needs a prompt of at least one token")
    lengths_B = torch.tensor([len(row.token_ids) for row in rows])
    mask_BT = torch.arange(int(lengths_B.max())) < lengths_B[:, None]
    loss_mask_BT = mask_BT & _pad([row.loss_mask or (True,) * len(row.token_ids) for row in rows], mask_BT).bool()
    rows_N, t_N = mask_BT.nonzero(as_tuple=True)
    keys = unit_keys(rows)
    units = {key: row.unit for key, row in zip(keys, rows, strict=True)}
    unit_index = {key: index for index, key in enumerate(units)}
    return Batch(
        inputs=layout(rows, rows_N, t_N, device),
        mask_BT=mask_BT.to(device),
        loss_mask_BT=loss_mask_BT.to(device),
        counts_B=torch.tensor([float(row.count) for row in rows], device=device),
        lengths_B=loss_mask_BT.sum(1).to(device),
        tokens_N=torch.tensor([token for row in rows for token in row.token_ids], device=device),
        sampling_N3=_sampling(rows, rows_N, device),
        units_B=torch.tensor([unit_index[key] for key in keys]).to(device),
        units=tuple(units.values()),
        columns={name: _pad([row.columns[name] for row in rows], mask_BT).to(device) for name in rows[0].columns},
        scalars={name: torch.tensor([row.scalars[name] for row in rows], device=device) for name in rows[0].scalars},
    )


def _pad(rows: Sequence[Sequence[float]], like_BT: Tensor) -> Tensor:
    width = like_BT.shape[1]
    return torch.tensor([[*row, *[0.0] * (width - len(row))] for row in rows], dtype=torch.float32)


def _sampling(rows: Sequence[Row], rows_N: Tensor, device: torch.device) -> Tensor | None:
    settings = [sampling_distribution(row.sampling) for row in rows]
    if any(temperature == 0 for temperature, _, _ in settings):
        raise ValueError("temperature=0 has no log-probabilities to learn from or to read; choose one above 0")
    if all(setting == (1, 1, 0) for setting in settings):
        return None
    return torch.tensor(settings, dtype=torch.float32)[rows_N].to(device)
