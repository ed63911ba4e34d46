"""New weights for a model that is in use: copied in place, all or nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from torch import Tensor

if TYPE_CHECKING:
    from marl.protocols import Weights


def copy_weights(model: Any, weights: Weights) -> None:
    """Overwrite every parameter of `model`.

    Raises:
        ValueError: if names are missing or unknown, or shapes differ; nothing is changed then.
    """
    if isinstance(weights, Path):
        return _copy_folder(model, weights)
    given = dict(weights)
    _compare(model, {name: tuple(tensor.shape) for name, tensor in given.items()}, "the given weights")
    return _copy(model, iter(given.items()))


@torch.no_grad()
def _copy(model: Any, weights: Iterator[tuple[str, Tensor]]) -> None:
    targets = model.state_dict(keep_vars=True)
    for name, tensor in weights:
        targets[name].copy_(tensor)


def _copy_folder(model: Any, folder: Path) -> None:
    with ExitStack() as stack:
        files = [stack.enter_context(safe_open(path, framework="pt")) for path in _files(folder)]
        where = {name: file for file in files for name in file.keys()}  # noqa: SIM118
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name, file in where.items()}
        _compare(model, shapes, str(folder))
        _copy(model, ((name, file.get_tensor(name)) for name, file in where.items()))


def _files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    names = {"model.safetensors"}
    if index.is_file():
        names = set(json.loads(index.read_text())["weight_map"].values())
    absent = sorted(name for name in names if not (folder / name).is_file())
    if absent:
        raise ValueError(f"{folder}: no {', '.join(absent)} to load weights from")
    return [folder / name for name in sorted(names)]


def _compare(model: Any, shapes: Mapping[str, tuple[int, ...]], origin: str) -> None:
    """Tied names stand for one tensor: any one of them will do."""
    targets: dict[str, Tensor] = model.state_dict(keep_vars=True)
    held = {targets[name].data_ptr() for name in shapes if name in targets}
    missing = [name for name, tensor in targets.items() if tensor.data_ptr() not in held]
    unknown = [name for name in shapes if name not in targets]
    odd = [
        f"{name} {shape} instead of {tuple(targets[name].shape)}"
        for name, shape in shapes.items()
        if name in targets and shape != tuple(targets[name].shape)
    ]
    faults = {"missing": missing, "unknown": unknown, "of another shape": odd}
    said = "; ".join(f"{what}: {', '.join(names[:5])} ({len(names)})" for what, names in faults.items() if names)
    if said:
        raise ValueError(f"weights of {type(model).__name__} from {origin}: {said}")
