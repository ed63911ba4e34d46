"""Several adapters on one base in one batch: each row is computed with the adapter of its policy.

Shape suffixes: N = rows, Q = tokens of each, I and O = what a layer reads and says, V = voices, R = their ranks' sum.
"""

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

from marl.models.lora import adapter_layers, adapter_tensors, lengths, matrices
from marl.models.weights import copy_tensors, peft_weights

if TYPE_CHECKING:
    from marl.protocols import Weights


class Gate:
    """How much each of the R rows of all adapters' matrices counts in each row of a forward."""

    def __init__(self, gates_VR: Tensor) -> None:
        self._gates_VR = gates_VR
        self._voices_N = np.empty(0, np.int64)
        self.voices_N = torch.empty(0, dtype=torch.long, device=gates_VR.device)
        self.open_N1R = gates_VR[:0, None]

    def aim(self, voices_N: NDArray[np.int64]) -> None:
        """Open it for voice n in row n."""
        if not np.array_equal(voices_N, self._voices_N):
            self._voices_N = voices_N.copy()
            self.voices_N = torch.from_numpy(self._voices_N).to(self._gates_VR.device)
            self.open_N1R = self._gates_VR[self.voices_N][:, None]


class MixedLayer(nn.Module):
    """A layer with the adapters of several policies: W x + B (g ∘ A x), their matrices side by side.

    One row's gate g is alpha / rank at its own adapter and 0 at all others, so rows of all policies take one pass.
    DoRA (arXiv 2402.09353) turns that into s ∘ (W x + B (g ∘ A x)), where s is the adapter's magnitude over the lengths
    of the rows of W + B (g ∘ A), and 1 for the others; a bias is left as it is.
    """

    def __init__(self, layer: nn.Module, gate: Gate, a_RI: Tensor, b_RO: Tensor, voices: int) -> None:
        """`voices`: how many there are, if any of them is a DoRA's here; else 0."""
        super().__init__()
        self.layer, self.gate, self.a_RI, self.b_RO = layer, gate, a_RI, b_RO
        self.magnitude_VO, self.scale_VO = (b_RO.new_ones(voices, b_RO.shape[1]) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """[N, Q, O] of [N, Q, I], or of token ids [N, Q]; the adapters' part is computed in their own type."""
        said_NQO = self.layer(x)
        added_NQO = (self._low(x) * self.gate.open_N1R) @ self.b_RO
        if not len(self.scale_VO):
            return (said_NQO + added_NQO).to(said_NQO.dtype)
        scale_N1O = self.scale_VO[self.gate.voices_N][:, None]
        turned_NQO = said_NQO if self._bias is None else said_NQO - self._bias
        return (said_NQO + (scale_N1O - 1) * turned_NQO + scale_N1O * added_NQO).to(said_NQO.dtype)

    def measure(self, voice: int, rows: slice, gain: float) -> None:
        """Take a DoRA's lengths anew: its matrices have changed."""
        change_OI = gain * (self.b_RO[rows].T @ self.a_RI[rows])
        self.scale_VO[voice] = self.magnitude_VO[voice] / lengths(self.layer, change_OI)

    @property
    def weight(self) -> Any:
        """The base's, which models ask for its type and place."""
        return self.layer.weight

    @property
    def _bias(self) -> Any:
        return None if isinstance(self.layer, nn.Embedding) else self.layer.bias

    def _low(self, x: Tensor) -> Tensor:
        if isinstance(self.layer, nn.Embedding):
            return functional.embedding(x, self.a_RI.T)
        return functional.linear(x.to(self.a_RI.dtype), self.a_RI)


@dataclass(frozen=True, slots=True)
class Block:
    """Where a policy's adapter lies in the common matrices."""

    layers: Mapping[str, Any]
    """Place in the base -> PEFT's layer."""
    rank: int
    scale: float
    """alpha / rank, or with rsLoRA alpha / sqrt(rank)."""
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
        self._blocks = blocks = list(_blocks(models.values()))
        self._gate = Gate(_gates(blocks).to(base.device))
        self._tensors: list[dict[str, Tensor]] = [{} for _ in blocks]
        """Each voice's tensors by the names that its learner publishes: views into the common matrices."""
        self._dora: list[list[MixedLayer]] = [[] for _ in blocks]
        """Each voice's layers whose lengths are to be taken when it has new weights."""
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
        for layer in self._dora[voice]:
            layer.measure(voice, self._blocks[voice].rows, self._blocks[voice].scale)
        self.versions[voice] = version

    def _adapt(self, place: str, blocks: Sequence[Block]) -> None:
        """Replace a layer by one with all adapters; where a policy's leaves it alone, that policy's rows stay zero."""
        own = {voice: matrices(block.layers[place]) for voice, block in enumerate(blocks) if place in block.layers}
        a_rI, b_Or = next([*each.values()][:2] for each in own.values())
        rank, doras = blocks[-1].rows.stop, [voice for voice, each in own.items() if len(each) > 2]
        a_RI, b_RO = a_rI.new_zeros(rank, a_rI.shape[1]), b_Or.new_zeros(rank, b_Or.shape[0])
        voices = len(blocks) if doras else 0
        layer = MixedLayer(self.model.get_submodule(place), self._gate, a_RI, b_RO, voices)
        self.model.set_submodule(place, layer)
        for voice, each in own.items():
            rows = blocks[voice].rows
            views = [a_RI[rows], b_RO[rows].T, *([layer.magnitude_VO[voice]] if voice in doras else [])]
            self._tensors[voice] |= {f"{place}.{name}": view for name, view in zip(each, views, strict=True)}
        for voice in doras:
            self._dora[voice].append(layer)


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
