"""CUDA graphs on a processor: the operations of a step are recorded once, and repeated on the same tensors later.

As on a GPU, everything that Python decides or computes while a step is recorded is fixed: numbers, shapes, addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from marl.engines.transformers.static_decoding import EagerSteps

_HOST_READS = {"_local_scalar_dense", "nonzero", "item", "equal", "is_nonzero"}
"""Operations that give the host a number or a shape from a tensor's contents, which no capture allows."""


class _Recorder(TorchDispatchMode):
    """Keeps each operation with its arguments and its outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func.overloadpacket.__name__ not in _HOST_READS, f"{func} waits for the device"
        outputs = func(*args, **(kwargs or {}))
        self.operations.append((func, args, kwargs or {}, outputs))
        return outputs


class RecordedSteps(EagerSteps):
    """Steps that are recorded at their first run of a key, and repeated from the record afterwards."""

    def __init__(self) -> None:
        self.records: dict[Hashable, list[tuple[Any, Any, Any, Any]]] = {}
        self.repeated = 0
        self.cleared = 0

    def run(self, key: Hashable, step: Callable[[], None]) -> None:
        if key in self.records:
            self.repeated += 1
            for func, args, kwargs, outputs in self.records[key]:
                _overwrite(outputs, func(*args, **kwargs))
            return
        with _Recorder() as recorder:
            step()
        self.records[key] = recorder.operations

    def clear(self) -> None:
        self.records.clear()
        self.cleared += 1


def _overwrite(recorded: Any, computed: Any) -> None:
    """Copy new outputs into the recorded ones; views and results in place are the same memory already."""
    for old, new in zip(tree_leaves(recorded), tree_leaves(computed), strict=True):
        if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
            assert old.shape == new.shape
            old.copy_(new)
