"""States of data-parallel learners in shares: each process stores one share, and any number of processes reads them.

Rows of sharded tensors are stored by the process that holds them. A tensor that all processes hold in full is stored by
one of them. A share becomes a safetensors file, with the state's JSON and the positions of rows in its metadata; unlike
`torch.distributed.checkpoint`, no file holds a pickle, and the processes need no common disk.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from marl.core.state_tree import extract_leaves, insert_leaves

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_HEADER_KEY = "share"
"""Only key of a file's metadata. Safetensors writes several keys in random order, so that equal shares would make
different files."""


@dataclass(frozen=True, slots=True)
class TensorShard:
    """Rows of a tensor whose other rows are in other processes."""

    tensor: Tensor
    """Rows of the full tensor [rows, ...], in main memory."""
    first_row: int
    """Index of the first of these rows in the full tensor."""
    row_count: int
    """Number of rows of the full tensor."""


@dataclass(frozen=True, slots=True)
class StateShare:
    """Share of a learner's state that one process stores."""

    structure: str
    """State as JSON, without its tensors, in the share of rank 0; empty in other shares."""
    tensors: Mapping[str, Tensor]
    """Name -> full tensor, or this share's rows of it."""
    positions: Mapping[str, tuple[int, int]]
    """Name of each tensor of which this share has some rows -> index of its first row, rows of the full tensor."""


class _ShareHeader(BaseModel):
    """Metadata of a share's file: its fields without the tensors, and the state's name."""

    state: str
    """Name of the state."""
    structure: str
    """As in `StateShare`."""
    positions: dict[str, tuple[int, int]]
    """As in `StateShare`."""


def make_state_share(state: Mapping[str, Any], rank: int, world_size: int) -> StateShare:
    """Return the share that the process `rank` of `world_size` stores of `state`, its view of the learner's state.

    Each tensor that is no `TensorShard` goes to the process with the fewest bytes of such tensors so far, so that the
    processes of a learner without sharded weights store about equally much.
    """
    leaves: dict[str, Any] = {}
    structure = json.dumps(extract_leaves(state, _is_tensor_or_shard, leaves))
    tensors: dict[str, Tensor] = {}
    positions: dict[str, tuple[int, int]] = {}
    stored_bytes = [0] * world_size
    for name, leaf in leaves.items():
        if isinstance(leaf, TensorShard):
            tensors[name], positions[name] = leaf.tensor, (leaf.first_row, leaf.row_count)
            continue
        owner = stored_bytes.index(min(stored_bytes))
        stored_bytes[owner] += leaf.nbytes
        if owner == rank:
            tensors[name] = leaf.detach().cpu()
    return StateShare("" if rank else structure, tensors, positions)


class ShardedTensor:
    """Tensor whose rows are spread over the shares of a state. Its rows are copied when they are asked for."""

    def __init__(self, name: str, shards: Sequence[TensorShard]) -> None:
        """Join the `shards` of the tensor `name`.

        Raises:
            ValueError: if rows are missing or stored twice, or if the shards do not fit together.
        """
        # A share without rows still tells the shape, so that a tensor of no rows at all can be read.
        self._shards = sorted(shards, key=lambda shard: (shard.first_row, len(shard.tensor)))
        row_count, next_row = self._shards[0].row_count, 0
        for shard in self._shards:
            if (shard.row_count, shard.tensor.dtype, shard.tensor.shape[1:]) != (row_count, self.dtype, self.shape[1:]):
                raise ValueError(f"the shards of {name!r} do not fit together")
            if len(shard.tensor) and shard.first_row != next_row:
                raise ValueError(f"{name!r} lacks rows from row {next_row} on, or has them twice")
            next_row += len(shard.tensor)
        if next_row != row_count:
            raise ValueError(f"{name!r} has {next_row} rows of {row_count}")

    @property
    def shape(self) -> tuple[int, ...]:
        return (self._shards[0].row_count, *self._shards[0].tensor.shape[1:])

    @property
    def dtype(self) -> torch.dtype:
        return self._shards[0].tensor.dtype

    def rows(self, start: int, stop: int) -> Tensor:
        """Return a copy of the rows `start` to `stop` - 1."""
        import torch

        parts: list[Tensor] = []
        for shard in self._shards:
            first, last = max(start - shard.first_row, 0), max(stop - shard.first_row, 0)
            parts.append(shard.tensor[first:last])
        return torch.cat(parts)

    def full(self) -> Tensor:
        """Return a copy of the whole tensor."""
        return self.rows(0, self.shape[0])


class StateShares(Mapping[str, Any]):
    """State of a learner in shares. As a mapping, it is the state, in which sharded tensors are `ShardedTensor`s."""

    def __init__(self, sources: Sequence[Callable[[], StateShare]]) -> None:
        """Refer to the shares that `sources` return; they are called when a share is needed."""
        self._sources = sources

    def __len__(self) -> int:
        return len(self._state)

    def __iter__(self) -> Iterator[str]:
        return iter(self._state)

    def __getitem__(self, key: str) -> Any:
        return self._state[key]

    def shares(self) -> Iterator[StateShare]:
        """Yield the shares one after the other, so that they need not be in memory together."""
        for source in self._sources:
            yield source()

    def check(self) -> None:
        """Check that the shares are complete, without copying a tensor.

        Raises:
            ValueError: if they are not.
        """
        try:
            insert_leaves(*self._structure_and_leaves())
        except RecursionError:
            raise ValueError("the state is nested too deep") from None

    @cached_property
    def _state(self) -> dict[str, Any]:
        structure, leaves = self._structure_and_leaves()
        # Full tensors may be views of a file or of Ray's object store, which nothing may change, so they are cloned.
        copies = {name: leaf if isinstance(leaf, ShardedTensor) else leaf.clone() for name, leaf in leaves.items()}
        return insert_leaves(structure, copies)

    def _structure_and_leaves(self) -> tuple[Any, dict[str, Tensor | ShardedTensor]]:
        """Return the state's structure as JSON, and the tensors of all shares by name."""
        shares = list(self.shares())
        shards: dict[str, list[TensorShard]] = {}
        leaves: dict[str, Tensor | ShardedTensor] = {}
        for share in shares:
            for name, tensor in share.tensors.items():
                if name in share.positions:
                    shards.setdefault(name, []).append(TensorShard(tensor, *share.positions[name]))
                else:
                    leaves[name] = tensor
        leaves |= {name: ShardedTensor(name, pieces) for name, pieces in shards.items()}
        return json.loads(shares[0].structure), leaves


def write_shares(folder: Path, name: str, shares: StateShares) -> None:
    """Write the shares of the state `name` to `folder`, one file each; one share at a time is in memory."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    for index, share in enumerate(shares.shares()):
        header = _ShareHeader(state=name, structure=share.structure, positions=dict(share.positions))
        tensors = {name: tensor.contiguous() for name, tensor in share.tensors.items()}
        save_file(tensors, folder / f"{index:05d}.safetensors", {_HEADER_KEY: header.model_dump_json()})


def read_shares(folder: Path) -> tuple[str, StateShares]:
    """Return the name of the state whose shares `write_shares` wrote to `folder`, and the shares.

    The tensors of the shares are views of the files (`mmap`), which are read when their numbers are needed.

    Raises:
        ValueError: if the files hold no complete state.
    """
    files = sorted(folder.glob("*.safetensors"))
    names = {_read_header(file).state for file in files}
    if len(names) != 1:
        raise ValueError(f"{folder} holds shares of {len(names)} states: {sorted(names)}")
    shares = StateShares([partial(_read_share, file) for file in files])
    shares.check()
    return names.pop(), shares


def _read_share(file: Path) -> StateShare:
    from safetensors.torch import load_file

    header = _read_header(file)
    return StateShare(header.structure, load_file(file), header.positions)


def _read_header(file: Path) -> _ShareHeader:
    """Return the metadata of the share in `file`.

    Raises:
        ValueError: if it is missing, or not that of a share.
    """
    from safetensors import safe_open

    with safe_open(file, framework="pt") as opened:
        metadata = opened.metadata() or {}
    if _HEADER_KEY not in metadata:
        raise ValueError(f"{file.name} is no share of a state: its metadata lacks {_HEADER_KEY!r}")
    return _ShareHeader.model_validate_json(metadata[_HEADER_KEY])


def _is_tensor_or_shard(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor | TensorShard)
