"""Rows -> tensors.

Shape suffixes: B = rows, T = completion tokens, N = completion tokens of all rows in one line, U = units.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trainers.batching.rows import Floats, Row
from trainers.forward.model_inputs import Texts, whole_texts


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one forward pass. Column t of a [B, T] tensor is completion token t."""

    texts: Texts
    mask_BT: Tensor
    """Where there is a token."""
    counted_BT: Tensor
    """Where there is one that the loss looks at."""
    counts_B: Tensor
    """Samples that each row stands for."""
    lengths_B: Tensor
    """Tokens of each row that the loss looks at."""
    tokens_N: Tensor
    """The completion tokens' ids."""
    sampling_N3: Tensor | None
    """Temperature, top-p and top-k; None if it is the model's own distribution throughout."""
    units_B: Tensor
    """Number of each row's unit, from 0."""
    unit_names: tuple[Hashable, ...]
    """What `Row.unit` is of each of them; None for a row alone."""
    columns: dict[str, Tensor]
    """[B, T] each, float32, 0 where there is no token."""
    facts: dict[str, Tensor]
    """[B] each, float32."""

    @property
    def units(self) -> int:
        """How many units the rows belong to."""
        return int(self.units_B.max()) + 1

    def spread(self, values_N: Tensor) -> Tensor:
        """[B, T], zero where there is no token."""
        return values_N.new_zeros(self.mask_BT.shape).masked_scatter(self.mask_BT, values_N)

    def by_unit(self, values_B: Tensor) -> Tensor:
        """[U] sums over the rows of each unit."""
        return values_B.new_zeros(self.units).index_add(0, self.units_B, values_B)


Layout = Callable[[Sequence[Row], Tensor, Tensor, torch.device], Texts]


def collate(rows: Sequence[Row], device: torch.device, layout: Layout = whole_texts) -> Batch:
    """Rows of different lengths as one batch. `layout` says what is computed of them, and what once only.

    Raises:
        ValueError: if a prompt is empty, or a row was sampled at temperature 0.
    """
    if any(not row.prompt_ids for row in rows):
        raise ValueError("a completion needs a prompt of at least one token")
    lengths_B = torch.tensor([len(row.token_ids) for row in rows])
    mask_BT = torch.arange(int(lengths_B.max())) < lengths_B[:, None]
    counted_BT = mask_BT & _pad([_counted(row) for row in rows], mask_BT).bool()
    rows_N, t_N = mask_BT.nonzero(as_tuple=True)
    units_B, names = _units(rows)
    return Batch(
        texts=layout(rows, rows_N, t_N, device),
        mask_BT=mask_BT.to(device),
        counted_BT=counted_BT.to(device),
        counts_B=torch.tensor([float(row.count) for row in rows], device=device),
        lengths_B=counted_BT.sum(1).to(device),
        tokens_N=torch.tensor([token for row in rows for token in row.token_ids], device=device),
        sampling_N3=_sampling(rows, rows_N, device),
        units_B=units_B.to(device),
        unit_names=tuple(names),
        columns={name: _pad([row.columns[name] for row in rows], mask_BT).to(device) for name in rows[0].columns},
        facts={name: torch.tensor([row.facts[name] for row in rows], device=device) for name in rows[0].facts},
    )


def _counted(row: Row) -> Floats:
    return (1.0,) * len(row.token_ids) if row.counted is None else tuple(map(float, row.counted))


def _pad(rows: Sequence[Floats], like_BT: Tensor) -> Tensor:
    width = like_BT.shape[1]
    return torch.tensor([[*row, *[0.0] * (width - len(row))] for row in rows], dtype=torch.float32)


def _units(rows: Sequence[Row]) -> tuple[Tensor, list[Hashable]]:
    """[B] numbers of units, and their names. A row without a unit is one of its own."""
    number: dict[object, int] = {}
    keys = [index if row.unit is None else ("unit", row.unit) for index, row in enumerate(rows)]
    names: list[Hashable] = []
    for key, row in zip(keys, rows, strict=True):
        if key not in number:
            number[key] = len(names)
            names.append(row.unit)
    return torch.tensor([number[key] for key in keys]), names


def _sampling(rows: Sequence[Row], rows_N: Tensor, device: torch.device) -> Tensor | None:
    settings: list[Floats] = [(s.temperature, s.top_p, s.top_k) for s in (row.sampling for row in rows)]
    if any(temperature == 0 for temperature, _, _ in settings):
        raise ValueError("temperature=0 has no log-probabilities to learn from or to read; choose one above 0")
    if all(setting == (1, 1, 0) for setting in settings):
        return None
    return torch.tensor(settings, dtype=torch.float32)[rows_N].to(device)
