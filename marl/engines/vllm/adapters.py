"""Several adapters on one base in vLLM: requests of all policies share a batch, each with its policy's adapter."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import save_file
from torch import Tensor

from marl.engines.vllm.checkpoint_names import CheckpointNames
from marl.engines.vllm.limits import NO_DORA, context_of, rank_room
from marl.models.adapter import AdapterSource
from marl.models.hf_folder import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from marl.models.lora import adapter_tensors
from marl.models.weights import check_finite, copy_adapter_weights

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest

    from marl.engines.vllm.settings import VLLM
    from marl.protocols import ModelSource, Weights

_SPARE = 2
"""Places for adapters that are added later."""


@dataclass(slots=True)
class LoadedAdapter:
    """A policy's adapter as vLLM knows it."""

    source: AdapterSource
    tensors: dict[str, Tensor]
    """By the names under which its learner publishes them."""
    request: LoRARequest
    version: int = 0


class Adapters:
    """Policies with adapters on one base, and such as speak with the base as it is.

    Each policy keeps its number, and one place more than there may be adapters stays empty: on processors, version
    0.32 computes rows without an adapter with the one in the last place (vllm-project/vllm#48421).
    """

    def __init__(self, sources: Mapping[str, AdapterSource], settings: VLLM) -> None:
        """`sources`: policy -> its adapter; all on the same base."""
        first = next(iter(sources.values()))
        names = CheckpointNames(first.base_source)
        self.context = context_of(names.config, settings.max_context)
        self.ends: Any = names.ends
        self._base = first.base_source
        self._most = settings.max_adapters or len(sources) + _SPARE
        self._rank = rank_room(max(source.adapter.rank for source in sources.values()))
        self._adapters: dict[str, LoadedAdapter] = {}
        self._plain: set[str] = set()
        """Policies that speak with the base."""
        self._loads = 0
        for source in sources.values():
            _check(source)
        room = {"enable_lora": True, "max_loras": self._most + 1, "max_lora_rank": self._rank}
        self.core = settings.start(self._base, names.config, self.context, room)
        self._folder = self.core.exchange()
        for policy, source in sources.items():
            self.add(policy, source)

    def version(self, policy: str) -> int:
        """Return the version of a policy's adapter."""
        return 0 if policy in self._plain else self._held(policy).version

    def salt(self, policy: str) -> str:
        """Return a name for a policy's weights that they have only as long as they stay as they are."""
        return "" if policy in self._plain else self._held(policy).request.lora_name

    def adapter(self, policy: str) -> LoRARequest | None:
        """Return a policy's adapter; None if it speaks with the base."""
        return None if policy in self._plain else self._held(policy).request

    def load(self, policy: str, weights: Weights, version: int) -> None:
        """Replace a policy's adapter; errors as of `copy_adapter_weights`, which change nothing."""
        held = self._held(policy)
        copy_adapter_weights(held.tensors, weights, f"version {version} of the adapter of policy {policy!r}")
        held.request = self._load(policy, held.source, held.tensors, held.request.lora_int_id)
        held.version = version

    def add(self, policy: str, source: ModelSource | None) -> None:
        """Hold a further adapter, or let a policy speak with the base itself.

        Raises:
            ValueError: if it is on another base, or there is no place for it.
        """
        if policy in self._adapters or policy in self._plain:
            raise ValueError(f"policy {policy!r} has an adapter here already; remove it first")
        if source == self._base:
            self._plain.add(policy)
            return
        if not isinstance(source, AdapterSource) or source.base_source != self._base:
            base = f"{self._base.path!r} in {self._base.dtype}"
            raise ValueError(f"policy {policy!r}: this engine holds adapters on {base}, and no other weights")
        _check(source)
        if len(self._adapters) >= self._most or source.adapter.rank > self._rank:
            room = f"{self._most} adapters of rank {self._rank} at most"
            raise ValueError(f"policy {policy!r}: this engine holds {room}; give it more max_adapters, or a lower rank")
        tensors = {name: tensor.detach() for name, tensor in adapter_tensors(source.model()).items()}
        check_finite(tensors.values(), f"the adapter of policy {policy!r}")
        taken = {held.request.lora_int_id for held in self._adapters.values()}
        number = min({*range(1, len(taken) + 2)} - taken)
        self._adapters[policy] = LoadedAdapter(source, tensors, self._load(policy, source, tensors, number))

    def remove(self, policy: str) -> None:
        """Free a policy's adapter and its number."""
        if policy in self._plain:
            self._plain.remove(policy)
            return
        held = self._held(policy)
        self.core.drop_adapter(held.request.lora_int_id)
        del self._adapters[policy]

    def _held(self, policy: str) -> LoadedAdapter:
        if policy not in self._adapters:
            names = ", ".join(self._adapters)
            raise ValueError(f"policy {policy!r} has no adapter here; this engine speaks for {names}")
        return self._adapters[policy]

    def _load(self, policy: str, source: AdapterSource, tensors: Mapping[str, Tensor], number: int) -> LoRARequest:
        """Let vLLM read an adapter from files, which are in memory; return what names it in requests."""
        from vllm.lora.request import LoRARequest

        self._loads += 1
        # What it read before is found in its cache of prompts by name and folder: neither is used twice.
        folder = Path(self._folder.name) / f"{number}-{self._loads}"
        _write(source, tensors, folder)
        name = f"{policy}.{self._loads}"
        self.core.load_adapter(LoRARequest(name, number, str(folder), load_inplace=True))
        for old in Path(self._folder.name).glob(f"{number}-*"):
            if old != folder:
                shutil.rmtree(old)
        return LoRARequest(name, number, str(folder))


def _check(source: AdapterSource) -> None:
    if source.adapter.use_dora:
        raise source.fault(NO_DORA)


def _write(source: AdapterSource, tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Write an adapter as PEFT does."""
    folder.mkdir()
    renamed = {
        f"base_model.model.{name.replace('.default', '')}": tensor.cpu().contiguous()
        for name, tensor in tensors.items()
    }
    save_file(renamed, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    settings = source.adapter
    layers = sorted({name.split(".lora_")[0].rpartition(".")[2] for name in tensors})
    config = {
        "peft_type": "LORA",
        "r": settings.rank,
        "lora_alpha": settings.alpha,
        "use_rslora": settings.use_rslora,
        "target_modules": layers,
        "bias": "none",
    }
    (folder / ADAPTER_CONFIG).write_text(json.dumps(config))
