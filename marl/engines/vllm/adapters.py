"""Several adapters on one base in vLLM: requests of all policies share a batch, each with its policy's adapter."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor
from vllm.lora.request import LoRARequest

from marl.engines.adapter_checks import adapter_of, check_new_policy, expect_adapter_on, lowest_free
from marl.engines.token_engine import context_length
from marl.engines.vllm.checkpoint_layout import CheckpointLayout
from marl.engines.vllm.full_weights import VLLMOptions, replace_weights
from marl.engines.vllm.limits import NO_DORA, SPARE_ADAPTERS, supported_rank
from marl.models.adapter import AdapterSource
from marl.models.hf_folder import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from marl.models.lora import adapter_tensors
from marl.models.weights import check_finite, copy_adapter_weights
from marl.protocols import ModelSource, Weights


@dataclass(slots=True)
class LoadedAdapter:
    """A policy's adapter, and the request under which vLLM has loaded it."""

    source: AdapterSource
    tensors: dict[str, Tensor]
    """Tensors under the names published by learners."""
    request: LoRARequest
    version: int = 0


class VLLMAdapters:
    """Policies with adapters on one base, and policies that sample from the base itself."""

    def __init__(self, sources: Mapping[str, AdapterSource], settings: VLLMOptions) -> None:
        """`sources`: policy -> adapter; all adapters have the same base."""
        first = next(iter(sources.values()))
        layout = CheckpointLayout(first.base_source)
        self.context = context_length(layout.config, settings.max_context)
        self.eos_token_ids: Any = layout.eos_token_ids
        self._base = first.base_source
        self._max_adapters = settings.max_adapters or len(sources) + SPARE_ADAPTERS
        self._max_rank = supported_rank(max(source.adapter.rank for source in sources.values()))
        self._adapters: dict[str, LoadedAdapter] = {}
        self._base_policies: set[str] = set()
        """Policies without an adapter."""
        self._loads = 0
        for source in sources.values():
            _refuse_dora(source)
        # One slot more than there may be adapters, as the last slot must stay empty: on CPUs, vLLM 0.32 computes rows
        # without an adapter with the adapter in the last slot (vllm-project/vllm#48421).
        limits = {"enable_lora": True, "max_loras": self._max_adapters + 1, "max_lora_rank": self._max_rank}
        self.core = settings.start(self._base, layout.config, self.context, limits)
        self._folder = self.core.transfer_folder()
        if not self.core.has_source_weights:
            replace_weights(self.core, self._base.model().state_dict())
        for policy, source in sources.items():
            self.add(policy, source)

    def version(self, policy: str) -> int:
        """Return the version of a policy's adapter, or 0 for the base."""
        return 0 if policy in self._base_policies else adapter_of(policy, self._adapters).version

    def cache_salt(self, policy: str) -> str:
        """Return a name for a policy's current weights. It differs after every load of the adapter."""
        request = self.adapter(policy)
        return request.lora_name if request else ""

    def adapter(self, policy: str) -> LoRARequest | None:
        """Return the request for a policy's adapter, or None if the policy samples from the base."""
        return None if policy in self._base_policies else adapter_of(policy, self._adapters).request

    def load(self, policy: str, weights: Weights, version: int) -> None:
        """Replace a policy's adapter. Errors are those of `copy_adapter_weights` and change nothing."""
        loaded = adapter_of(policy, self._adapters)
        copy_adapter_weights(loaded.tensors, weights, f"version {version} of the adapter of policy {policy!r}")
        loaded.request = self._load(policy, loaded.source, loaded.tensors, loaded.request.lora_int_id)
        loaded.version = version

    def add(self, policy: str, source: ModelSource | None) -> None:
        """Add an adapter, or a policy that samples from the base.

        Raises:
            ValueError: if the adapter has another base, or exceeds the number or rank of adapters.
        """
        check_new_policy(policy, {*self._adapters, *self._base_policies})
        if source == self._base:
            self._base_policies.add(policy)
            return
        source = expect_adapter_on(self._base, policy, source)
        _refuse_dora(source)
        if len(self._adapters) >= self._max_adapters or source.adapter.rank > self._max_rank:
            limit = f"{self._max_adapters} adapters of rank {self._max_rank} at most"
            raise ValueError(
                f"policy {policy!r}: this engine holds {limit}; give it more max_adapters, or a lower rank"
            )
        tensors = {name: tensor.detach() for name, tensor in adapter_tensors(source.model()).items()}
        check_finite(tensors.values(), f"the adapter of policy {policy!r}")
        # Reused numbers keep the last slot empty.
        used = {loaded.request.lora_int_id for loaded in self._adapters.values()}
        request = self._load(policy, source, tensors, lowest_free(used, first=1))
        self._adapters[policy] = LoadedAdapter(source, tensors, request)

    def remove(self, policy: str) -> None:
        """Free a policy's adapter and its number."""
        if policy in self._base_policies:
            self._base_policies.remove(policy)
            return
        self.core.drop_adapter(adapter_of(policy, self._adapters).request.lora_int_id)
        del self._adapters[policy]

    def _load(self, policy: str, source: AdapterSource, tensors: Mapping[str, Tensor], number: int) -> LoRARequest:
        """Load an adapter into vLLM from files in memory; return the LoRA request that selects it."""
        self._loads += 1
        # vLLM's prefix cache knows an adapter by name and folder, so neither is used twice.
        name = f"{policy}.{self._loads}"
        folder = Path(self._folder.name) / f"{number}-{self._loads}"
        _write_peft_folder(source, tensors, folder)
        # Without `load_inplace`, vLLM silently keeps the old adapter of a number.
        self.core.load_adapter(LoRARequest(name, number, str(folder), load_inplace=True))
        # The folder in use stays: vLLM reads it again after it has unloaded the adapter.
        for old in Path(self._folder.name).glob(f"{number}-*"):
            if old != folder:
                shutil.rmtree(old)
        return LoRARequest(name, number, str(folder))


def _refuse_dora(source: AdapterSource) -> None:
    if source.adapter.use_dora:
        raise source.error(NO_DORA)


def _write_peft_folder(source: AdapterSource, tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Write an adapter as PEFT does."""
    folder.mkdir()
    saved: dict[str, Tensor] = {}
    layers: set[str] = set()
    for name, tensor in tensors.items():
        saved[f"base_model.model.{name.replace('.default', '')}"] = tensor.cpu().contiguous()
        layers.add(name.split(".lora_")[0].rpartition(".")[2])
    save_file(saved, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    settings = source.adapter
    config = {
        "peft_type": "LORA",
        "r": settings.rank,
        "lora_alpha": settings.alpha,
        "use_rslora": settings.use_rslora,
        "target_modules": sorted(layers),
        "bias": "none",
    }
    (folder / ADAPTER_CONFIG).write_text(json.dumps(config))
