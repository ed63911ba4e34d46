"""The full weights of a model in vLLM, which updates replace in place."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import save_file
from torch import Tensor

from marl.engines.token_engine import context_length
from marl.engines.vllm.checkpoint_layout import CheckpointLayout
from marl.engines.vllm.core import LocalVLLM
from marl.engines.vllm.server_pool import VLLMServerPool
from marl.engines.weight_owner import SinglePolicyWeights
from marl.models.pretrained import PretrainedSource
from marl.models.weights import load_weight_tensors
from marl.protocols import Weights

if TYPE_CHECKING:
    # Imported for types only, because both modules import this module when they build an engine.
    from marl.engines.vllm.server_settings import VLLMServer
    from marl.engines.vllm.settings import VLLM


class VLLMFullWeights(SinglePolicyWeights):
    """All weights of a model in vLLM, shared by its policies until the first update, and then owned by one policy."""

    def __init__(self, source: PretrainedSource, settings: VLLM | VLLMServer) -> None:
        super().__init__(source)
        self._layout = CheckpointLayout(source)
        self.context = context_length(self._layout.config, settings.max_context)
        self.eos_token_ids: Any = self._layout.eos_token_ids
        self.core = settings.start_vllm(source, self._layout.config, self.context, {})
        # `_loads` counts replacements of weights; version numbers can repeat, as after removing an update (version 0).
        self._loads = 0
        if not self.core.has_source_weights:
            self._loads += 1
            overwrite_vllm_weights(self.core, source.model().state_dict())

    def weights_version(self, policy: str) -> int:
        """Return the version of the only weights in memory, which `policy` uses."""
        return self.versions[0]

    def prefix_cache_salt(self, policy: str) -> str:
        """Return a salt of the prefix cache for the current weights. Every replacement of weights changes the salt."""
        return str(self._loads)

    def lora_request(self, policy: str) -> None:
        """Return None, because no policy has an adapter."""

    def reload_after_restart(self) -> None:
        """Do nothing, because the update that follows a restart replaces all weights."""

    def _overwrite_weights(self, weights: Weights, owner_in_errors: str) -> None:
        tensors = self._layout.expand_tied_names(load_weight_tensors(weights), owner_in_errors)
        self._loads += 1
        overwrite_vllm_weights(self.core, tensors)


def overwrite_vllm_weights(core: LocalVLLM | VLLMServerPool, tensors: Mapping[str, Tensor]) -> None:
    """Overwrite all weights of vLLM in place. `tensors` holds each tied tensor under all of its names."""
    if core.accepts_tensors:
        core.overwrite_all_weights(tensors)
        return
    with core.create_transfer_folder() as folder:
        separate: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            # Tied tensors share their memory, which a safetensors file must not.
            separate[name] = tensor.detach().cpu().clone().contiguous()
        save_file(separate, Path(folder) / "model.safetensors")
        core.overwrite_all_weights(folder)
