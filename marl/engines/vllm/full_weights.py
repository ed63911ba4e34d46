"""The full weights of a model in vLLM, which updates replace in place."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import save_file
from torch import Tensor

from marl.core.errors import EngineError
from marl.engines.token_engine import context_length
from marl.engines.vllm.checkpoint_layout import CheckpointLayout
from marl.engines.vllm.core import LocalVLLM
from marl.engines.vllm.server_pool import VLLMServerPool
from marl.engines.weight_owner import SinglePolicyWeights
from marl.models.pretrained import PretrainedSource
from marl.models.weights import load_weight_tensors
from marl.protocols import SharedWeights, Weights

if TYPE_CHECKING:
    # Imported for types only, because both modules import this module when they build an engine.
    from marl.engines.vllm.server_settings import VLLMServer
    from marl.engines.vllm.settings import VLLM

_DISCARDED = "vLLM has discarded its weights while it slept (engine.sleep_level: 2), and they cannot be sent again"


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
        self._last = WeightsForWaking(source)
        if not self.core.has_source_weights:
            self._loads += 1
            overwrite_vllm_weights(self.core, source.model().state_dict())

    def weights_version(self, policy: str) -> int:
        """Return the version of the only weights in memory, which `policy` uses."""
        return self.versions[0]

    def send_discarded_weights(self) -> None:
        """Send the newest weights again, which vLLM discarded when it slept.

        Raises:
            EngineError: if a learner has changed or removed them since they were sent.
        """
        overwrite_vllm_weights(self.core, self._layout.expand_tied_names(self._last.tensors(), "the newest weights"))

    def prefix_cache_salt(self, policy: str) -> str:
        """Return a salt of the prefix cache for the current weights. Every replacement of weights changes the salt."""
        return str(self._loads)

    def lora_request(self, policy: str) -> None:
        """Return None, because no policy has an adapter."""

    def reload_after_restart(self) -> None:
        """Do nothing, because the update that follows a restart replaces all weights."""

    def _overwrite_weights(self, weights: Weights, owner_in_errors: str) -> None:
        loaded = load_weight_tensors(weights)
        tensors = self._layout.expand_tied_names(loaded, owner_in_errors)
        self._loads += 1
        overwrite_vllm_weights(self.core, tensors)
        if self.core.discards_weights:
            self._last = WeightsForWaking(weights if isinstance(weights, Path | SharedWeights) else loaded)


class WeightsForWaking:
    """Newest weights of vLLM, for sending them again after a sleep that discards weights. Nothing is copied."""

    def __init__(self, weights: PretrainedSource | Path | SharedWeights | Mapping[str, Tensor]) -> None:
        self._weights = weights
        # PyTorch counts the changes of a tensor in place, as by an optimizer.
        self._changes = self._count_changes()

    def tensors(self) -> dict[str, Tensor]:
        """Return the weights by name.

        Raises:
            EngineError: if a learner has changed or removed them since they were sent.
        """
        weights = self._weights
        if isinstance(weights, PretrainedSource):
            return weights.model().state_dict()
        if isinstance(weights, SharedWeights) and not weights.file.exists():
            raise EngineError(f"{_DISCARDED}: {weights.file} was removed since; set sleep_level: 1")
        if self._count_changes() != self._changes:
            raise EngineError(f"{_DISCARDED}: a learner has changed them since; set sleep_level: 1")
        return load_weight_tensors(weights.items() if isinstance(weights, Mapping) else weights)

    def _count_changes(self) -> int:
        if not isinstance(self._weights, Mapping):
            return 0
        return sum([tensor._version for tensor in self._weights.values()])


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
