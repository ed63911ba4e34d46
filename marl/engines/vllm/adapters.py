"""Several adapters on one base in vLLM. Requests share a batch, and each request uses the adapter of its policy."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import save_file
from torch import Tensor
from vllm.lora.request import LoRARequest

from marl.engines.adapter_checks import (
    check_policy_is_new,
    get_policy_adapter,
    lowest_unused_integer,
    require_adapter_on_base,
)
from marl.engines.token_engine import context_length
from marl.engines.vllm.checkpoint_layout import CheckpointLayout
from marl.engines.vllm.full_weights import overwrite_vllm_weights
from marl.engines.vllm.limits import DEFAULT_SPARE_ADAPTER_SLOTS, DORA_UNSUPPORTED_MESSAGE, round_up_to_supported_rank
from marl.models.adapter import AdapterSource
from marl.models.hf_folder import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from marl.models.lora import adapter_tensors
from marl.models.weights import check_finite, overwrite_adapter_tensors
from marl.protocols import ModelSource, Weights

if TYPE_CHECKING:
    # Imported for types only, because both modules import this module when they build an engine.
    from marl.engines.vllm.server_settings import VLLMServer
    from marl.engines.vllm.settings import VLLM


@dataclass(slots=True)
class LoadedAdapter:
    """Adapter of one policy, as it is loaded in vLLM."""

    source: AdapterSource
    tensors: dict[str, Tensor]
    """Tensors of the adapter, by the names under which learners publish them."""
    request: LoRARequest
    """vLLM's request that selects the adapter: its name, number and folder."""
    version: int = 0


class VLLMAdapters:
    """Weights of policies with adapters on one base in vLLM, and of policies that sample from the base itself."""

    def __init__(self, sources: Mapping[str, AdapterSource], settings: VLLM | VLLMServer) -> None:
        """`sources`: policy -> adapter; all adapters have the same base."""
        first = next(iter(sources.values()))
        layout = CheckpointLayout(first.base_source)
        self.context = context_length(layout.config, settings.max_context)
        self.eos_token_ids: Any = layout.eos_token_ids
        self._base = first.base_source
        self._max_adapters = settings.max_adapters or len(sources) + DEFAULT_SPARE_ADAPTER_SLOTS
        self._max_rank = round_up_to_supported_rank(max(source.adapter.rank for source in sources.values()))
        self._adapters: dict[str, LoadedAdapter] = {}
        self._base_policies: set[str] = set()
        """Policies that sample from the base itself."""
        self._loads = 0
        for source in sources.values():
            if source.adapter.use_dora:
                raise source.error_naming_policy_and_model(DORA_UNSUPPORTED_MESSAGE)
        # The LoRA table gets one slot more than there are adapters, because its last slot must stay empty on CPUs.
        # vLLM 0.32 applies the adapter of the last slot to rows without an adapter (vllm-project/vllm#48421).
        limits = {"enable_lora": True, "max_loras": self._max_adapters + 1, "max_lora_rank": self._max_rank}
        self.core = settings.start_vllm(self._base, layout.config, self.context, limits)
        self._folder = self.core.create_transfer_folder()
        if not self.core.has_source_weights:
            overwrite_vllm_weights(self.core, self._base.model().state_dict())
        for policy, source in sources.items():
            self.add_policy(policy, source)

    def weights_version(self, policy: str) -> int:
        """Return the version of the adapter of `policy`, or 0 if the policy samples from the base."""
        return 0 if policy in self._base_policies else get_policy_adapter(policy, self._adapters).version

    def prefix_cache_salt(self, policy: str) -> str:
        """Return a salt of the prefix cache for the current weights of `policy`. Every load changes the salt."""
        request = self.lora_request(policy)
        return request.lora_name if request else ""

    def lora_request(self, policy: str) -> LoRARequest | None:
        """Return vLLM's request for the adapter of `policy`, or None if the policy samples from the base."""
        return None if policy in self._base_policies else get_policy_adapter(policy, self._adapters).request

    def load_weights(self, policy: str, weights: Weights, version: int) -> None:
        """Replace the adapter of `policy` in vLLM.

        Raises:
            ValueError: as `overwrite_adapter_tensors`; nothing is changed then.
        """
        loaded = get_policy_adapter(policy, self._adapters)
        overwrite_adapter_tensors(loaded.tensors, weights, f"version {version} of the adapter of policy {policy!r}")
        loaded.request = self._load_adapter(policy, loaded.source, loaded.tensors, loaded.request.lora_int_id)
        loaded.version = version

    def send_discarded_weights(self) -> None:
        """Raise an error, because adapters need `sleep_level: 1`."""
        raise ValueError("engine.sleep_level: 2 discards the base of adapters; choices: 1")

    def reload_after_restart(self) -> None:
        """Load all adapters into new processes of vLLM, from the folders of their newest versions."""
        for loaded in self._adapters.values():
            self.core.load_adapter(loaded.request)

    def add_policy(self, policy: str, source: ModelSource | None) -> None:
        """Add `policy`, which samples with the adapter in `source`, or without adapter if `source` is the base model.

        Raises:
            ValueError: if the adapter has another base, or exceeds the number or rank of adapters.
        """
        check_policy_is_new(policy, self._adapters.keys() | self._base_policies)
        if source == self._base:
            self._base_policies.add(policy)
            return
        source = require_adapter_on_base(self._base, policy, source)
        if source.adapter.use_dora:
            raise source.error_naming_policy_and_model(DORA_UNSUPPORTED_MESSAGE)
        if len(self._adapters) >= self._max_adapters or source.adapter.rank > self._max_rank:
            limit = f"{self._max_adapters} adapters of rank {self._max_rank} at most"
            raise ValueError(
                f"policy {policy!r}: this engine holds {limit}; give it more max_adapters, or a lower rank"
            )
        tensors = {name: tensor.detach() for name, tensor in adapter_tensors(source.model()).items()}
        check_finite(tensors.values(), f"the adapter of policy {policy!r}")
        # A new adapter gets the lowest free number, so that the last slot stays empty.
        used = {loaded.request.lora_int_id for loaded in self._adapters.values()}
        request = self._load_adapter(policy, source, tensors, lowest_unused_integer(used, first=1))
        self._adapters[policy] = LoadedAdapter(source, tensors, request)

    def remove_policy(self, policy: str) -> None:
        """Unload the adapter of `policy` and free its number."""
        if policy in self._base_policies:
            self._base_policies.remove(policy)
            return
        self.core.unload_adapter(get_policy_adapter(policy, self._adapters).request.lora_int_id)
        del self._adapters[policy]

    def _load_adapter(
        self, policy: str, source: AdapterSource, tensors: Mapping[str, Tensor], adapter_id: int
    ) -> LoRARequest:
        """Write `tensors` as a PEFT folder, load it into vLLM, and return vLLM's request that selects the adapter."""
        self._loads += 1
        # vLLM's prefix cache distinguishes adapters by name and folder, so neither is used twice.
        name = f"{policy}.{self._loads}"
        folder = Path(self._folder.name) / f"{adapter_id}-{self._loads}"
        folder.mkdir()
        saved: dict[str, Tensor] = {}
        layers: set[str] = set()
        for tensor_name, tensor in tensors.items():
            saved[f"base_model.model.{tensor_name.replace('.default', '')}"] = tensor.cpu().contiguous()
            layers.add(tensor_name.split(".lora_")[0].rpartition(".")[2])
        save_file(saved, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
        config = {
            "peft_type": "LORA",
            "r": source.adapter.rank,
            "lora_alpha": source.adapter.alpha,
            "use_rslora": source.adapter.use_rslora,
            "target_modules": sorted(layers),
            "bias": "none",
        }
        (folder / ADAPTER_CONFIG).write_text(json.dumps(config))
        # Without `load_inplace`, vLLM silently keeps the adapter that it loaded before under this number.
        self.core.load_adapter(LoRARequest(name, adapter_id, str(folder), load_inplace=True))
        # The current folder is kept, because vLLM reads it again if it has unloaded the adapter.
        for old in Path(self._folder.name).glob(f"{adapter_id}-*"):
            if old != folder:
                shutil.rmtree(old)
        return LoRARequest(name, adapter_id, str(folder))
