"""All weights of a model in vLLM, replaced in place by updates."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from safetensors.torch import save_file
from torch import Tensor

from marl.engines.token_engine import context_length
from marl.engines.vllm.checkpoint_layout import CheckpointLayout
from marl.engines.vllm.core import LocalCore
from marl.engines.vllm.server import ServerCore
from marl.engines.weight_owner import WeightOwner
from marl.models.pretrained import PretrainedSource
from marl.models.weights import read_tensors
from marl.protocols import Weights


class VLLMOptions(Protocol):
    """Settings of an engine or a server. `VLLM` and `VLLMServer` explain the fields."""

    max_context: int | None
    max_adapters: int | None

    def start(
        self, source: PretrainedSource, config: Any, context: int, adapters: Mapping[str, Any]
    ) -> LocalCore | ServerCore: ...


class VLLMFullWeights(WeightOwner):
    """All weights of a model, for one policy or for several until the first update."""

    def __init__(self, source: PretrainedSource, settings: VLLMOptions) -> None:
        super().__init__(source)
        self._layout = CheckpointLayout(source)
        self.context = context_length(self._layout.config, settings.max_context)
        self.eos_token_ids: Any = self._layout.eos_token_ids
        self.core = settings.start(source, self._layout.config, self.context, {})
        # Counts every replacement, as a removed update returns to version 0.
        self._loads = 0
        if not self.core.has_source_weights:
            self._loads += 1
            replace_weights(self.core, source.model().state_dict())

    def version(self, policy: str) -> int:
        """Return the version of the weights."""
        return self.versions[0]

    def cache_salt(self, policy: str) -> str:
        """Return a name for the current weights. It differs after every replacement."""
        return str(self._loads)

    def adapter(self, policy: str) -> None:
        """Return None: no policy has an adapter."""

    def _overwrite(self, weights: Weights, label: str) -> None:
        tensors = self._layout.complete(read_tensors(weights), label)
        self._loads += 1
        replace_weights(self.core, tensors)


def replace_weights(core: LocalCore | ServerCore, tensors: Mapping[str, Tensor]) -> None:
    """Overwrite all weights in place. `tensors` holds tied tensors under each of their names."""
    if core.accepts_tensors:
        core.reload(tensors)
        return
    with core.transfer_folder() as folder:
        separate: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            # Tied tensors share their memory, which a safetensors file must not.
            separate[name] = tensor.detach().cpu().clone().contiguous()
        save_file(separate, Path(folder) / "model.safetensors")
        core.reload(folder)
