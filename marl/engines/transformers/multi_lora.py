"""Several adapters on one base in one batch: each row is computed with the adapter of its policy.

Shape suffixes: N = rows, Q = tokens per row, I, O = inputs, outputs of a layer, K = policies, R = sum of ranks,
r = rank of one adapter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from marl.engines.adapter_checks import adapter_of, check_new_policy, expect_adapter_on, lowest_free
from marl.models.adapter import AdapterSource
from marl.models.lora import adapter_layers, adapter_matrices, copy_sharing_tensors, dora_row_norms
from marl.models.weights import check_finite, copy_adapter_weights
from marl.protocols import ModelSource, Weights


class AdapterGate:
    """Factors of the R adapter dimensions in each row of a forward: the scaling of the row's adapter, 0 elsewhere."""

    def __init__(self, gates_KR: Tensor, ranges: Mapping[int, slice]) -> None:
        """`ranges`: policy index -> range of its adapter within R."""
        self.gates_KR, self._ranges = gates_KR, ranges
        self.range = slice(None)
        """Range of R in use: a batch of a single policy computes its adapter only."""
        self._policies_N = np.empty(0, np.int64)
        self.policies_N = torch.empty(0, dtype=torch.long, device=gates_KR.device)
        self.gates_N1R = gates_KR[:0, None]

    def select(self, policies_N: NDArray[np.int64]) -> None:
        """Use the adapter of policy `policies_N[n]` in row n."""
        # Most steps repeat the policies of the step before; copying indices to a GPU would cost a synchronisation.
        if np.array_equal(policies_N, self._policies_N):
            return
        self._policies_N = policies_N.copy()
        self.policies_N = torch.from_numpy(self._policies_N).to(self.gates_KR.device)
        is_single = len(policies_N) > 0 and bool((policies_N == policies_N[0]).all())
        self.range = self._ranges[int(policies_N[0])] if is_single else slice(None)
        self.gates_N1R = self.gates_KR[self.policies_N, self.range][:, None]


class MultiLoraLayer(nn.Module):
    """A layer with the adapters of several policies: W x + B (g ∘ A x), where A and B concatenate all adapters.

    A row's gate g is alpha / rank at the row's adapter and 0 elsewhere, so one pass serves rows of all policies.
    DoRA (arXiv 2402.09353) computes s ∘ (W x + B (g ∘ A x)), where s is the adapter's magnitude divided by the row
    norms of W + B (g ∘ A), and 1 for other adapters. The bias is not scaled.
    """

    def __init__(self, layer: nn.Module, gate: AdapterGate, a_RI: Tensor, b_RO: Tensor, dora_policies: int) -> None:
        """`dora_policies`: number of policies if any adapter of this layer is a DoRA, else 0."""
        super().__init__()
        self.layer, self.gate, self.a_RI, self.b_RO = layer, gate, a_RI, b_RO
        # Tables without rows mark a layer without DoRA.
        self.magnitude_KO = b_RO.new_ones(dora_policies, b_RO.shape[1], dtype=torch.float32)
        self.scale_KO = torch.ones_like(self.magnitude_KO)

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, Q, O] for inputs [N, Q, I] or token ids [N, Q], in the dtype of the layer's outputs."""
        if x.is_floating_point():
            x = x.to(self.a_RI.dtype)  # once, for the products of the layer and of the adapters
        base_NQO = self.layer(x)
        is_embedding = isinstance(self.layer, nn.Embedding)
        a_RI, b_RO = self.a_RI[self.gate.range], self.b_RO[self.gate.range]
        projected_NQR = functional.embedding(x, a_RI.T) if is_embedding else functional.linear(x, a_RI)
        low_NQR = (projected_NQR * self.gate.gates_N1R).to(b_RO.dtype)
        if not len(self.scale_KO) and base_NQO.dtype == b_RO.dtype:
            # In place: saves a pass over the outputs.
            base_NQO.view(-1, base_NQO.shape[-1]).addmm_(low_NQR.flatten(0, 1), b_RO)
            return base_NQO
        added_NQO = low_NQR @ b_RO
        if not len(self.scale_KO):
            return (base_NQO + added_NQO).to(base_NQO.dtype)
        scale_N1O = self.scale_KO[self.gate.policies_N][:, None]
        bias: Any = None if is_embedding else self.layer.bias
        product_NQO = base_NQO if bias is None else base_NQO - bias
        return (base_NQO + (scale_N1O - 1) * product_NQO + scale_N1O * added_NQO).to(base_NQO.dtype)

    def rescale(self, adapter: AdapterSlot) -> None:
        """Recompute a DoRA's scale after a change of the adapter's tensors."""
        change_OI = adapter.scaling * (self.b_RO[adapter.range].T.float() @ self.a_RI[adapter.range].float())
        self.scale_KO[adapter.index] = self.magnitude_KO[adapter.index] / dora_row_norms(self.layer, change_OI)

    @property
    def weight(self) -> Any:
        """Weight of the base layer: models read dtype and device from a layer's weight."""
        return self.layer.weight


@dataclass(slots=True)
class AdapterSlot:
    """A policy's adapter, and its range in the concatenated matrices."""

    index: int
    """Policy index."""
    rank: int
    scaling: float
    """alpha / rank, or with rsLoRA alpha / sqrt(rank)."""
    tensors: dict[str, dict[str, Tensor]]
    """Layer path in the base -> name in the layer -> tensor. Tensors become views into the concatenated matrices."""
    range: slice = field(default_factory=lambda: slice(0))


class MultiLora:
    """Policies with adapters on one base. The base's tensors are in memory once."""

    def __init__(self, sources: Mapping[str, AdapterSource]) -> None:
        """`sources`: policy -> adapter; all adapters have the same base."""
        first = next(iter(sources.values()))
        self.model: Any = copy_sharing_tensors(first.base)
        self.versions: list[int] = []
        self._base, self._adapters = first.base_source, dict[str, AdapterSlot]()
        for policy, source in sources.items():
            self._read_adapter(policy, source)
        self._concatenate()

    def index(self, policy: str) -> int:
        """Return the index of a policy with an adapter in this model."""
        return adapter_of(policy, self._adapters).index

    def select(self, policies_N: NDArray[np.int64]) -> None:
        """Compute row n of the next forwards with the adapter of policy index `policies_N[n]`."""
        self.gate.select(policies_N)

    def tensors(self, policy: str) -> dict[str, Tensor]:
        """Return the tensors of a policy's adapter, under the names published by learners."""
        named: dict[str, Tensor] = {}
        for path, tensors in adapter_of(policy, self._adapters).tensors.items():
            for name, tensor in tensors.items():
                named[f"{path}.{name}"] = tensor
        return named

    def load(self, policy: str, weights: Weights, version: int) -> None:
        """Copy a policy's weights in place. Errors are those of `copy_adapter_weights` and change nothing."""
        adapter = adapter_of(policy, self._adapters)
        copy_adapter_weights(self.tensors(policy), weights, f"version {version} of the adapter of policy {policy!r}")
        for path, tensors in adapter.tensors.items():
            if len(tensors) > 2:  # A, B and the magnitude of a DoRA
                self.model.get_submodule(path).rescale(adapter)
        self.versions[adapter.index] = version

    def add(self, policy: str, source: ModelSource | None) -> None:
        """Add an adapter.

        Raises:
            ValueError: if the adapter has another base, or the policy was added before; nothing is changed then.
        """
        check_new_policy(policy, self._adapters)
        self._read_adapter(policy, expect_adapter_on(self._base, policy, source))
        self._concatenate()

    def remove(self, policy: str) -> None:
        """Free a policy's adapter and its index. Indices of other policies stay."""
        adapter_of(policy, self._adapters)
        del self._adapters[policy]
        self._concatenate()

    def _read_adapter(self, policy: str, source: AdapterSource) -> None:
        """Load the adapter of `policy` and give it the lowest free index."""
        layers: dict[str, Any] = dict(adapter_layers(source.model()))
        tensors = {path: adapter_matrices(layer) for path, layer in layers.items()}
        matrices: list[Tensor] = []
        for layer_tensors in tensors.values():
            matrices += layer_tensors.values()
        check_finite(matrices, f"the adapter of policy {policy!r}")
        index = lowest_free({adapter.index for adapter in self._adapters.values()}, first=0)
        first = next(iter(layers.values()))
        self._adapters[policy] = AdapterSlot(index, first.r["default"], first.scaling["default"], tensors)
        # Replaces the version of a removed policy, or appends.
        self.versions[index : index + 1] = [0]

    @torch.no_grad()
    def _concatenate(self) -> None:
        """Concatenate the matrices of all adapters, layer by layer, and insert the layers into the model."""
        adapters, stop = list(self._adapters.values()), 0
        for adapter in adapters:
            adapter.range = slice(stop, stop + adapter.rank)
            stop = adapter.range.stop
        gates_KR = torch.zeros(len(self.versions), stop)
        for adapter in adapters:
            gates_KR[adapter.index, adapter.range] = adapter.scaling
        ranges = {adapter.index: adapter.range for adapter in adapters}
        self.gate = AdapterGate(gates_KR.to(self.model.device), ranges)
        # A list, as the loop changes the modules.
        for path, layer in [*self.model.named_modules()]:
            if isinstance(layer, MultiLoraLayer):
                self.model.set_submodule(path, layer.layer)
        users: dict[str, list[AdapterSlot]] = {}
        for adapter in adapters:
            for path in adapter.tensors:
                users.setdefault(path, []).append(adapter)
        for path, path_adapters in users.items():
            self._insert_layer(path, path_adapters)

    def _insert_layer(self, path: str, adapters: Sequence[AdapterSlot]) -> None:
        """Replace the layer at `path` by a layer with these adapters; rows of other policies stay zero."""
        a_rI, b_Or = [*adapters[0].tensors[path].values()][:2]
        ranks, base = self.gate.gates_KR.shape[1], self.model.get_submodule(path)
        # Learners keep adapters in float32, and round them for every product with a base in half precision.
        a_RI = base.weight.new_zeros(ranks, a_rI.shape[1])
        b_RO = base.weight.new_zeros(ranks, b_Or.shape[0])
        has_dora = any(len(adapter.tensors[path]) > 2 for adapter in adapters)
        layer = MultiLoraLayer(base, self.gate, a_RI, b_RO, len(self.versions) * has_dora)
        for adapter in adapters:
            tensors, views = adapter.tensors[path], [a_RI[adapter.range], b_RO[adapter.range].T]
            if len(tensors) > 2:
                views.append(layer.magnitude_KO[adapter.index])
            for (name, tensor), view in zip(tensors.items(), views, strict=True):
                tensors[name] = view.copy_(tensor)
            if len(tensors) > 2:
                layer.rescale(adapter)
        self.model.set_submodule(path, layer)
