"""Several adapters on one base in one batch: each row is computed with the adapter of its policy.

Shape suffixes: N = rows, Q = tokens of each, I, O = inputs, outputs of a layer, K = policies, R = sum of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from marl.models.adapter import AdapterSource
from marl.models.lora import adapter_layers, copy_modules, matrices, row_norms
from marl.models.weights import check_finite, copy_adapter_weights

if TYPE_CHECKING:
    from marl.protocols import ModelSource, Weights


class AdapterGate:
    """Factors of the R rows of all adapters' matrices, for each row of a forward."""

    def __init__(self, gates_KR: Tensor, rows: Mapping[int, slice]) -> None:
        """`rows`: index of a policy -> rows of its adapter's matrices, which alone are computed where it is alone."""
        self.gates_KR, self._rows = gates_KR, rows
        self.rows = slice(None)
        self._policies_N = np.empty(0, np.int64)
        self.policies_N = torch.empty(0, dtype=torch.long, device=gates_KR.device)
        self.gates_N1R = gates_KR[:0, None]

    def select(self, policies_N: NDArray[np.int64]) -> None:
        """Use the adapter of policy `policies_N[n]` in row n."""
        if not np.array_equal(policies_N, self._policies_N):
            self._policies_N = policies_N.copy()
            self.policies_N = torch.from_numpy(self._policies_N).to(self.gates_KR.device)
            alone = len(policies_N) > 0 and bool((policies_N == policies_N[0]).all())
            self.rows = self._rows[int(policies_N[0])] if alone else slice(None)
            self.gates_N1R = self.gates_KR[self.policies_N, self.rows][:, None]


class MixedLayer(nn.Module):
    """A layer with the adapters of several policies: W x + B (g ∘ A x), their matrices side by side.

    A row's gate g is alpha / rank at its own adapter and 0 at all others, so rows of all policies take one pass.
    DoRA (arXiv 2402.09353) turns that into s ∘ (W x + B (g ∘ A x)), where s is the adapter's magnitude over the norms
    of the rows of W + B (g ∘ A), and 1 for the others; a bias is left as it is.
    """

    def __init__(self, layer: nn.Module, gate: AdapterGate, a_RI: Tensor, b_RO: Tensor, policies: int) -> None:
        """`policies`: their number if the adapter of any of them is a DoRA here, else 0."""
        super().__init__()
        self.layer, self.gate, self.a_RI, self.b_RO = layer, gate, a_RI, b_RO
        shape = policies, b_RO.shape[1]
        self.magnitude_KO, self.scale_KO = (b_RO.new_ones(shape, dtype=torch.float32) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, Q, O] for [N, Q, I] or token ids [N, Q]; the adapters' products are of the layer's own type."""
        if x.is_floating_point():
            x = x.to(self.a_RI.dtype)  # once, for the products of the layer and of the adapters
        base_NQO, b_RO = self.layer(x), self.b_RO[self.gate.rows]
        low_NQR = (self._project(x) * self.gate.gates_N1R).to(b_RO.dtype)
        if not len(self.scale_KO) and base_NQO.dtype == b_RO.dtype:
            base_NQO.view(-1, base_NQO.shape[-1]).addmm_(low_NQR.flatten(0, 1), b_RO)
            return base_NQO
        added_NQO = low_NQR @ b_RO
        if not len(self.scale_KO):
            return (base_NQO + added_NQO).to(base_NQO.dtype)
        scale_N1O = self.scale_KO[self.gate.policies_N][:, None]
        product_NQO = base_NQO if self._bias is None else base_NQO - self._bias
        return (base_NQO + (scale_N1O - 1) * product_NQO + scale_N1O * added_NQO).to(base_NQO.dtype)

    def rescale(self, adapter: HeldAdapter) -> None:
        """Compute a DoRA's scale anew, after its tensors have changed."""
        change_OI = adapter.gain * (self.b_RO[adapter.rows].T.float() @ self.a_RI[adapter.rows].float())
        self.scale_KO[adapter.index] = self.magnitude_KO[adapter.index] / row_norms(self.layer, change_OI)

    @property
    def weight(self) -> Any:
        """The base's weight, which models ask for its type and device."""
        return self.layer.weight

    @property
    def _bias(self) -> Any:
        return None if isinstance(self.layer, nn.Embedding) else self.layer.bias

    def _project(self, x: Tensor) -> Tensor:
        a_RI = self.a_RI[self.gate.rows]
        return functional.embedding(x, a_RI.T) if isinstance(self.layer, nn.Embedding) else functional.linear(x, a_RI)


@dataclass(slots=True)
class HeldAdapter:
    """A policy's adapter, and its place in the common matrices."""

    index: int
    """Index of the policy."""
    rank: int
    gain: float
    """alpha / rank, or with rsLoRA alpha / sqrt(rank)."""
    tensors: dict[str, dict[str, Tensor]]
    """Path of a layer in the base -> name in the layer -> tensor; views into the common matrices once these exist."""
    rows: slice = field(default_factory=lambda: slice(0))


class MultiLora:
    """Policies with adapters on one base, whose tensors are in memory once."""

    def __init__(self, sources: Mapping[str, AdapterSource]) -> None:
        """`sources`: policy -> its adapter; all on the same base."""
        first = next(iter(sources.values()))
        self.model: Any = copy_modules(first.base)
        self.versions: list[int] = []
        self._base, self._adapters = first.base_source, dict[str, HeldAdapter]()
        for policy, source in sources.items():
            self._hold(policy, source)
        self._lay_out()

    def index(self, policy: str) -> int:
        """Return the index of a policy, which must have an adapter here."""
        return self._held(policy).index

    def select(self, policies_N: NDArray[np.int64]) -> None:
        """Compute row n of the next forwards with the adapter of the policy with index `policies_N[n]`."""
        self.gate.select(policies_N)

    def tensors(self, policy: str) -> dict[str, Tensor]:
        """Return the tensors of a policy's adapter, by the names under which its learner publishes them."""
        layers = self._held(policy).tensors.items()
        return {f"{path}.{name}": tensor for path, tensors in layers for name, tensor in tensors.items()}

    def load(self, policy: str, weights: Weights, version: int) -> None:
        """Copy a policy's weights in place; errors as of `copy_adapter_weights`, which change nothing."""
        adapter = self._held(policy)
        copy_adapter_weights(self.tensors(policy), weights, f"version {version} of the adapter of policy {policy!r}")
        for path, tensors in adapter.tensors.items():
            if len(tensors) > 2:
                self.model.get_submodule(path).rescale(adapter)
        self.versions[adapter.index] = version

    def add(self, policy: str, source: ModelSource | None) -> None:
        """Hold a further adapter.

        Raises:
            ValueError: if it is not on the same base, or the policy has one here; nothing is changed then.
        """
        if policy in self._adapters:
            raise ValueError(f"policy {policy!r} has an adapter here already; remove it first")
        if not isinstance(source, AdapterSource) or source.base_source != self._base:
            base = f"{self._base.path!r} in {self._base.dtype}"
            raise ValueError(f"policy {policy!r}: this engine holds adapters on {base}, and no other weights")
        self._hold(policy, source)
        self._lay_out()

    def remove(self, policy: str) -> None:
        """Free a policy's adapter and its index; the others keep theirs."""
        self._held(policy)
        del self._adapters[policy]
        self._lay_out()

    def _held(self, policy: str) -> HeldAdapter:
        if policy not in self._adapters:
            names = ", ".join(self._adapters)
            raise ValueError(f"policy {policy!r} has no adapter here; this engine speaks for {names}")
        return self._adapters[policy]

    def _hold(self, policy: str, source: AdapterSource) -> None:
        layers = dict(adapter_layers(source.model()))
        layer: Any = next(iter(layers.values()))
        tensors = {path: matrices(layer) for path, layer in layers.items()}
        check_finite([t for each in tensors.values() for t in each.values()], f"the adapter of policy {policy!r}")
        index = min({*range(len(self._adapters) + 1)} - {adapter.index for adapter in self._adapters.values()})
        self._adapters[policy] = HeldAdapter(index, layer.r["default"], layer.scaling["default"], tensors)
        self.versions[index : index + 1] = [0]

    @torch.no_grad()
    def _lay_out(self) -> None:
        """Place the matrices of all adapters side by side, each layer's in one tensor, and mix them into the model."""
        adapters, stop = list(self._adapters.values()), 0
        for adapter in adapters:
            adapter.rows = slice(stop, stop + adapter.rank)
            stop = adapter.rows.stop
        gates_KR = torch.zeros(len(self.versions), stop)
        for adapter in adapters:
            gates_KR[adapter.index, adapter.rows] = adapter.gain
        rows = {adapter.index: adapter.rows for adapter in adapters}
        self.gate = AdapterGate(gates_KR.to(self.model.device), rows)
        for path, layer in [*self.model.named_modules()]:
            if isinstance(layer, MixedLayer):
                self.model.set_submodule(path, layer.layer)
        for path in dict.fromkeys(path for adapter in adapters for path in adapter.tensors):
            self._mix(path, [adapter for adapter in adapters if path in adapter.tensors])

    def _mix(self, path: str, adapters: Sequence[HeldAdapter]) -> None:
        """Replace a layer by one with these adapters; rows of the other policies stay zero."""
        a_rI, b_Or = [*adapters[0].tensors[path].values()][:2]
        ranks, base = self.gate.gates_KR.shape[1], self.model.get_submodule(path)
        # Learners keep adapters in float32, and round them for every product with a base in half precision.
        a_RI = base.weight.new_zeros(ranks, a_rI.shape[1])
        b_RO = base.weight.new_zeros(ranks, b_Or.shape[0])
        has_dora = any(len(adapter.tensors[path]) > 2 for adapter in adapters)
        layer = MixedLayer(base, self.gate, a_RI, b_RO, len(self.versions) * has_dora)
        for adapter in adapters:
            tensors, views = adapter.tensors[path], [a_RI[adapter.rows], b_RO[adapter.rows].T]
            if len(tensors) > 2:
                views.append(layer.magnitude_KO[adapter.index])
            for (name, tensor), view in zip(tensors.items(), views, strict=True):
                tensors[name] = view.copy_(tensor)
            if len(tensors) > 2:
                layer.rescale(adapter)
        self.model.set_submodule(path, layer)
