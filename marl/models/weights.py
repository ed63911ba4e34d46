"""New weights for a model that is in use: copied in place, all or nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from marl.models.hf_folder import ADAPTER_WEIGHTS

if TYPE_CHECKING:
    from marl.protocols import Weights


def copy_weights(model: Any, weights: Weights) -> None:
    """Overwrite every parameter of `model`.

    Raises:
        ValueError: if names are missing or unknown, or shapes differ; nothing is changed then.
    """
    targets, name = model.state_dict(keep_vars=True), type(model).__name__
    if isinstance(weights, Path):
        return _copy_folder(targets, weights, name)
    return copy_tensors(targets, dict(weights), f"{name} from the given weights")


def copy_tensors(targets: Mapping[str, Tensor], given: Mapping[str, Tensor], what: str) -> None:
    """Overwrite all of `targets` in place. `what`: whose they are, for error messages.

    Raises:
        ValueError: as `copy_weights`.
    """
    _compare(targets, {name: tuple(tensor.shape) for name, tensor in given.items()}, what)
    _copy(targets, given.items())


def peft_weights(folder: Path) -> dict[str, Tensor]:
    """An adapter's tensors, from the names in a PEFT folder to those in a model that it was added to.

    Raises:
        ValueError: if there are none.
    """
    file = folder / ADAPTER_WEIGHTS
    if not file.is_file():
        raise ValueError(f"{folder}: no {file.name} to load an adapter from")
    # Where embeddings are adapted, PEFT saves those of the base, too.
    return {_held(name): tensor for name, tensor in load_file(file).items() if ".lora_" in name}


def _held(name: str) -> str:
    place = name.removeprefix("base_model.model.").removesuffix(".weight") + ".default"
    return place if ".lora_embedding_" in place else place + ".weight"


@torch.no_grad()
def _copy(targets: Mapping[str, Tensor], weights: Iterable[tuple[str, Tensor]]) -> None:
    for name, tensor in weights:
        targets[name].copy_(tensor)


def _copy_folder(targets: Mapping[str, Tensor], folder: Path, name: str) -> None:
    with ExitStack() as stack:
        files = [stack.enter_context(safe_open(path, framework="pt")) for path in _files(folder)]
        where = {name: file for file in files for name in file.keys()}  # noqa: SIM118
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name, file in where.items()}
        _compare(targets, shapes, f"{name} from {folder}")
        _copy(targets, ((name, file.get_tensor(name)) for name, file in where.items()))


def _files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    names = {"model.safetensors"}
    if index.is_file():
        names = set(json.loads(index.read_text())["weight_map"].values())
    absent = sorted(name for name in names if not (folder / name).is_file())
    if absent:
        raise ValueError(f"{folder}: no {', '.join(absent)} to load weights from")
    return [folder / name for name in sorted(names)]


def _compare(targets: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], what: str) -> None:
    """Tied names stand for one tensor: any one of them will do."""
    held = {targets[name].data_ptr() for name in shapes if name in targets}
    missing = [name for name, tensor in targets.items() if tensor.data_ptr() not in held]
    unknown = [name for name in shapes if name not in targets]
    odd = [
        f"{name} {shape} instead of {tuple(targets[name].shape)}"
        for name, shape in shapes.items()
        if name in targets and shape != tuple(targets[name].shape)
    ]
    faults = {"missing": missing, "unknown": unknown, "of another shape": odd}
    said = "; ".join(f"{fault}: {', '.join(names[:5])} ({len(names)})" for fault, names in faults.items() if names)
    if said:
        raise ValueError(f"weights of {what}: {said}")
