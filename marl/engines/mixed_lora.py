"""Several LoRA adapters on one base in one batch: each row is computed with the adapter of its policy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from marl.engines.lora import adapter_layers, adapter_tensors
from marl.engines.weights import copy_tensors, peft_weights

if TYPE_CHECKING:
    from marl.protocols import Weights


class Gate:
    """How much each of the R rows of all adapters' matrices counts in each row of a forward."""

    def __init__(self, gates_VR: Tensor) -> None:
        self._gates_VR = gates_VR
        self._voices_N = np.empty(0, np.int64)
        self.open_N1R = gates_VR[:0, None]

    def aim(self, voices_N: NDArray[np.int64]) -> None:
        """Open it for voice n in row n."""
        if not np.array_equal(voices_N, self._voices_N):
            self._voices_N = voices_N.copy()
            self.open_N1R = self._gates_VR[torch.from_numpy(self._voices_N).to(self._gates_VR.device)][:, None]


class MixedLayer(nn.Module):
    """A layer with the adapters of several policies: W x + B (g ∘ A x), their matrices side by side.

    One row's gate g is alpha / rank at its own adapter and 0 at all others, so rows of all policies take one pass.
    """

    def __init__(self, layer: nn.Module, gate: Gate, a_RI: Tensor, b_RO: Tensor) -> None:
        super().__init__()
        self.layer, self.gate, self.a_RI, self.b_RO = layer, gate, a_RI, b_RO

    def forward(self, x_NQI: Tensor) -> Tensor:
        """[N, Q, O]; the adapters' part is computed in their own type."""
        said_NQO = self.layer(x_NQI)
        low_NQR = functional.linear(x_NQI.to(self.a_RI.dtype), self.a_RI) * self.gate.open_N1R
        return (said_NQO + low_NQR @ self.b_RO).to(said_NQO.dtype)


@dataclass(frozen=True, slots=True)
class Block:
    """Where a policy's adapter lies in the common matrices."""

    layers: Mapping[str, Any]
    """Place in the base -> PEFT's layer."""
    rank: int
    scale: float
    """alpha / rank"""
    first: int

    @property
    def rows(self) -> slice:
        """Of the R rows, its own."""
        return slice(self.first, self.first + self.rank)


class MixedLora:
    """The voices of policies with adapters on one base.

    `base`: modules that may be changed, holding tensors that may not; `models`: policy -> the base with its adapter.
    """

    def __init__(self, base: Any, models: Mapping[str, Any]) -> None:
        self.model, self.versions = base, [0] * len(models)
        self._voices = {policy: voice for voice, policy in enumerate(models)}
        blocks = list(_blocks(models.values()))
        self._gate = Gate(_gates(blocks).to(base.device))
        self._tensors: list[dict[str, Tensor]] = [{} for _ in blocks]
        """Each voice's tensors by the names that its learner publishes: views into the common matrices."""
        for place in dict.fromkeys(place for block in blocks for place in block.layers):
            self._adapt(place, blocks)
        for policy, model in models.items():
            self.load(policy, adapter_tensors(model).items(), 0)

    def of(self, policy: str) -> int:
        if policy not in self._voices:
            raise ValueError(f"policy {policy!r} has no adapter here; this engine speaks for {', '.join(self._voices)}")
        return self._voices[policy]

    def aim(self, voices_N: NDArray[np.int64]) -> None:
        self._gate.aim(voices_N)

    def load(self, policy: str, weights: Weights, version: int) -> None:
        voice, what = self.of(policy), f"the adapter of policy {policy!r}"
        given = peft_weights(weights) if isinstance(weights, Path) else dict(weights)
        # What is no number would reach the rows of other policies: their gates are 0, and 0 * nan is nan.
        if given and not bool(torch.stack([tensor.isfinite().all() for tensor in given.values()]).all()):
            raise FloatingPointError(f"version {version} of {what} holds what is no finite number")
        copy_tensors(self._tensors[voice], given, what)
        self.versions[voice] = version

    def _adapt(self, place: str, blocks: Sequence[Block]) -> None:
        """Replace a layer by one with all adapters; where a policy's leaves it alone, that policy's rows stay zero."""
        like = next(block.layers[place] for block in blocks if place in block.layers)
        a_rI, b_Or, rank = like.lora_A["default"].weight, like.lora_B["default"].weight, blocks[-1].rows.stop
        a_RI, b_RO = a_rI.new_zeros(rank, a_rI.shape[1]), b_Or.new_zeros(rank, b_Or.shape[0])
        self.model.set_submodule(place, MixedLayer(self.model.get_submodule(place), self._gate, a_RI, b_RO))
        for block, tensors in zip(blocks, self._tensors, strict=True):
            if place in block.layers:
                tensors[f"{place}.lora_A.default.weight"] = a_RI[block.rows]
                tensors[f"{place}.lora_B.default.weight"] = b_RO[block.rows].T


def _blocks(models: Iterable[Any]) -> Iterator[Block]:
    first = 0
    for model in models:
        layers = dict(adapter_layers(model))
        layer: Any = next(iter(layers.values()))
        yield Block(layers, layer.r["default"], layer.scaling["default"], first)
        first += layer.r["default"]


def _gates(blocks: Sequence[Block]) -> Tensor:
    """[voices, R]"""
    gates_VR = torch.zeros(len(blocks), blocks[-1].rows.stop)
    for gates_R, block in zip(gates_VR, blocks, strict=True):
        gates_R[block.rows] = block.scale
    return gates_VR
