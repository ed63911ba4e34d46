"""Several adapters on one base in one batch: each row is computed with the adapter of its policy.

Shape suffixes: N = rows, Q = tokens per row, I, O = inputs, outputs of a layer, K = policies, R = sum of ranks,
r = rank of one adapter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from marl.engines.adapter_checks import (
    check_policy_is_new,
    get_policy_adapter,
    lowest_unused_integer,
    require_adapter_on_base,
)
from marl.models.adapter import AdapterSource
from marl.models.lora import adapter_layers, adapter_matrices, copy_model_sharing_tensors, dora_row_norms
from marl.models.weights import check_finite, overwrite_adapter_tensors
from marl.protocols import ModelSource, Weights


class RowAdapterGates:
    """Gates [rows, R] of a forward pass: the scaling of the row's own adapter at its dimensions, 0 elsewhere."""

    def __init__(self, gates_KR: Tensor, ranges: Mapping[int, slice]) -> None:
        """`gates_KR`: gate of each policy; `ranges`: policy index -> range of the policy's adapter within R."""
        self.gates_KR, self._ranges = gates_KR, ranges
        self.range = slice(None)
        """Range of R in use, which is one adapter's if all rows have the same policy."""
        self._policies_N = np.empty(0, np.int64)
        self.policies_N = torch.empty(0, dtype=torch.long, device=gates_KR.device)
        self.gates_N1R = gates_KR[:0, None]
        self._fixed: dict[int, tuple[NDArray[np.int64], Tensor, Tensor]] = {}
        """Number of rows -> their policies, and `policies_N` and `gates_N1R` that captured forwards read."""

    def set_row_policies(self, policy_indices_N: NDArray[np.int64]) -> None:
        """Use the adapter of the policy with index `policy_indices_N[n]` in row n of the next forwards."""
        # Most steps repeat the last step's policies, and copying indices to a GPU would cost a synchronisation.
        if np.array_equal(policy_indices_N, self._policies_N):
            return
        self._policies_N = policy_indices_N.copy()
        self.policies_N = torch.from_numpy(self._policies_N).to(self.gates_KR.device)
        is_single = len(policy_indices_N) > 0 and bool((policy_indices_N == policy_indices_N[0]).all())
        self.range = self._ranges[int(policy_indices_N[0])] if is_single else slice(None)
        self.gates_N1R = self.gates_KR[self.policies_N, self.range][:, None]

    def set_row_policies_in_place(self, policy_indices_N: NDArray[np.int64]) -> None:
        """Do the same in tensors that stay at their addresses for this number of rows, over all of R."""
        rows = len(policy_indices_N)
        seen, self.policies_N, self.gates_N1R = self._fixed.get(rows) or (
            np.empty(0, np.int64),
            torch.zeros(rows, dtype=torch.long, device=self.gates_KR.device),
            self.gates_KR.new_zeros(rows, 1, self.gates_KR.shape[1]),
        )
        self.range, self._policies_N = slice(None), policy_indices_N.copy()
        if not np.array_equal(seen, policy_indices_N):
            self.policies_N.copy_(torch.from_numpy(self._policies_N))
            self.gates_N1R.copy_(self.gates_KR[self.policies_N][:, None])
            self._fixed[rows] = self._policies_N, self.policies_N, self.gates_N1R


class MultiLoraLayer(nn.Module):
    """A layer with the adapters of several policies: W x + B (g ∘ A x), where A and B concatenate all adapters.

    A row's gate g is alpha / rank at the row's adapter and 0 elsewhere, so one pass serves rows of all policies.
    DoRA (arXiv 2402.09353) computes s ∘ (W x + B (g ∘ A x)), where s is the adapter's magnitude divided by the row
    norms of W + B (g ∘ A), and 1 for other adapters. The bias is not scaled.
    """

    def __init__(self, layer: nn.Module, gate: RowAdapterGates, a_RI: Tensor, b_RO: Tensor, dora_policies: int) -> None:
        """`dora_policies`: number of policies if any adapter of this layer is a DoRA, else 0."""
        super().__init__()
        self.layer, self.gate, self.a_RI, self.b_RO = layer, gate, a_RI, b_RO
        # These tables have one row per policy if any adapter of this layer is a DoRA, and none otherwise.
        self.magnitude_KO = b_RO.new_ones(dora_policies, b_RO.shape[1], dtype=torch.float32)
        self.scale_KO = torch.ones_like(self.magnitude_KO)

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, Q, O] for inputs [N, Q, I] or token ids [N, Q], in the dtype of the layer's outputs."""
        if x.is_floating_point():
            # The base layer and the adapters multiply the same inputs, so these are cast once.
            x = x.to(self.a_RI.dtype)
        base_NQO = self.layer(x)
        is_embedding = isinstance(self.layer, nn.Embedding)
        a_RI, b_RO = self.a_RI[self.gate.range], self.b_RO[self.gate.range]
        projected_NQR = functional.embedding(x, a_RI.T) if is_embedding else functional.linear(x, a_RI)
        low_NQR = (projected_NQR * self.gate.gates_N1R).to(b_RO.dtype)
        if not len(self.scale_KO) and base_NQO.dtype == b_RO.dtype:
            # Adding in place saves a pass over the outputs.
            base_NQO.view(-1, base_NQO.shape[-1]).addmm_(low_NQR.flatten(0, 1), b_RO)
            return base_NQO
        added_NQO = low_NQR @ b_RO
        if not len(self.scale_KO):
            return (base_NQO + added_NQO).to(base_NQO.dtype)
        scale_N1O = self.scale_KO[self.gate.policies_N][:, None]
        bias: Any = None if is_embedding else self.layer.bias
        product_NQO = base_NQO if bias is None else base_NQO - bias
        return (base_NQO + (scale_N1O - 1) * product_NQO + scale_N1O * added_NQO).to(base_NQO.dtype)

    def update_dora_scale(self, adapter: StackedAdapter) -> None:
        """Recompute the DoRA scale of `adapter` in this layer, after a change of its tensors."""
        change_OI = adapter.scaling * (self.b_RO[adapter.range].T.float() @ self.a_RI[adapter.range].float())
        self.scale_KO[adapter.index] = self.magnitude_KO[adapter.index] / dora_row_norms(self.layer, change_OI)

    @property
    def weight(self) -> Any:
        """Weight of the base layer, from which models read dtype and device."""
        return self.layer.weight


@dataclass(slots=True)
class StackedAdapter:
    """Adapter of one policy, with its range in the concatenated matrices."""

    index: int
    """Policy index."""
    rank: int
    scaling: float
    """alpha / rank, or with rsLoRA alpha / sqrt(rank)."""
    tensors: dict[str, dict[str, Tensor]]
    """Layer path in the base -> name in the layer -> tensor. Tensors become views into the concatenated matrices."""
    range: slice = field(default_factory=lambda: slice(0))
    """Range of the adapter within R, the sum of all ranks."""


class MultiLoraModel:
    """Model that holds the adapters of several policies on one base, whose tensors are in memory once."""

    def __init__(self, sources: Mapping[str, AdapterSource]) -> None:
        """`sources`: policy -> adapter; all adapters have the same base."""
        first = next(iter(sources.values()))
        self.model: Any = copy_model_sharing_tensors(first.base)
        self.versions: list[int] = []
        self._base, self._adapters = first.base_source, dict[str, StackedAdapter]()
        for policy, source in sources.items():
            self._register_adapter(policy, source)
        self._concatenate_adapters()

    def policy_index(self, policy: str) -> int:
        """Return the index of `policy`, which has an adapter in this model."""
        return get_policy_adapter(policy, self._adapters).index

    def set_row_policies(self, policy_indices_N: NDArray[np.int64], *, in_place: bool = False) -> None:
        """Use the adapter of the policy with index `policy_indices_N[n]` in row n of the next forwards.

        With `in_place`, forwards read tensors that stay at their addresses for this number of rows.
        """
        if in_place:
            self.gate.set_row_policies_in_place(policy_indices_N)
        else:
            self.gate.set_row_policies(policy_indices_N)

    def adapter_tensors(self, policy: str) -> dict[str, Tensor]:
        """Return the tensors of the adapter of `policy`, by the names under which learners publish them."""
        named: dict[str, Tensor] = {}
        for path, tensors in get_policy_adapter(policy, self._adapters).tensors.items():
            for name, tensor in tensors.items():
                named[f"{path}.{name}"] = tensor
        return named

    def load_weights(self, policy: str, weights: Weights, version: int) -> None:
        """Copy new weights into the adapter of `policy` in place.

        Raises:
            ValueError: as `overwrite_adapter_tensors`; nothing is changed then.
        """
        adapter = get_policy_adapter(policy, self._adapters)
        overwrite_adapter_tensors(
            self.adapter_tensors(policy), weights, f"version {version} of the adapter of policy {policy!r}"
        )
        for path, tensors in adapter.tensors.items():
            # A LoRA has two tensors, A and B; a DoRA also has a magnitude.
            if len(tensors) > 2:
                self.model.get_submodule(path).update_dora_scale(adapter)
        self.versions[adapter.index] = version

    def add_policy(self, policy: str, source: ModelSource | None) -> None:
        """Add the adapter of `policy`.

        Raises:
            ValueError: if the adapter has another base, or the policy was added before; nothing is changed then.
        """
        check_policy_is_new(policy, self._adapters)
        self._register_adapter(policy, require_adapter_on_base(self._base, policy, source))
        self._concatenate_adapters()

    def remove_policy(self, policy: str) -> None:
        """Free the adapter and the index of `policy`. The indices of other policies do not change."""
        get_policy_adapter(policy, self._adapters)
        del self._adapters[policy]
        self._concatenate_adapters()

    def _register_adapter(self, policy: str, source: AdapterSource) -> None:
        """Load the adapter of `policy` and give it the lowest free index."""
        layers: dict[str, Any] = dict(adapter_layers(source.model()))
        tensors: dict[str, dict[str, Tensor]] = {}
        matrices: list[Tensor] = []
        for path, layer in layers.items():
            tensors[path] = adapter_matrices(layer)
            matrices += tensors[path].values()
        check_finite(matrices, f"the adapter of policy {policy!r}")
        index = lowest_unused_integer({adapter.index for adapter in self._adapters.values()}, first=0)
        first = next(iter(layers.values()))
        self._adapters[policy] = StackedAdapter(index, first.r["default"], first.scaling["default"], tensors)
        # `index` is either a removed policy's, whose version is replaced, or a new one at the end of the list.
        self.versions[index : index + 1] = [0]

    @torch.no_grad()
    def _concatenate_adapters(self) -> None:
        """Concatenate the matrices of all adapters, layer by layer, and insert the resulting layers into the model."""
        stop, ranges = 0, dict[int, slice]()
        users: dict[str, list[StackedAdapter]] = {}
        for adapter in self._adapters.values():
            ranges[adapter.index] = adapter.range = slice(stop, stop + adapter.rank)
            stop += adapter.rank
            for path in adapter.tensors:
                users.setdefault(path, []).append(adapter)
        gates_KR = torch.zeros(len(self.versions), stop)
        for adapter in self._adapters.values():
            gates_KR[adapter.index, adapter.range] = adapter.scaling
        self.gate = RowAdapterGates(gates_KR.to(self.model.device), ranges)
        # The modules are listed first, because the loop replaces modules.
        for path, layer in [*self.model.named_modules()]:
            if isinstance(layer, MultiLoraLayer):
                self.model.set_submodule(path, layer.layer)
        for path, adapters in users.items():
            a_rI, b_Or = [*adapters[0].tensors[path].values()][:2]
            base = self.model.get_submodule(path)
            # Adapters are cast to the base's dtype, as the learner does for a base in half precision.
            # Rows of policies without an adapter in this layer stay zero in A and B.
            a_RI = base.weight.new_zeros(stop, a_rI.shape[1])
            b_RO = base.weight.new_zeros(stop, b_Or.shape[0])
            has_dora = any(len(adapter.tensors[path]) > 2 for adapter in adapters)
            layer = MultiLoraLayer(base, self.gate, a_RI, b_RO, len(self.versions) * has_dora)
            for adapter in adapters:
                tensors, views = adapter.tensors[path], [a_RI[adapter.range], b_RO[adapter.range].T]
                if len(tensors) > 2:
                    views.append(layer.magnitude_KO[adapter.index])
                for (name, tensor), view in zip(tensors.items(), views, strict=True):
                    tensors[name] = view.copy_(tensor)
                if len(tensors) > 2:
                    layer.update_dora_scale(adapter)
            self.model.set_submodule(path, layer)
