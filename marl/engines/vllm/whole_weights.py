"""All weights of a model in vLLM, which are replaced in place."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import save_file
from torch import Tensor

from marl.engines.vllm.checkpoint_names import CheckpointNames
from marl.engines.vllm.limits import context_of
from marl.engines.weight_owner import WeightOwner
from marl.models.weights import read_tensors

if TYPE_CHECKING:
    from marl.engines.vllm.core import Core
    from marl.engines.vllm.settings import VLLM
    from marl.models.pretrained import PretrainedSource
    from marl.protocols import ModelSource, Weights


class WholeWeights:
    """Weights of one policy, or of several that share all of them until one of them has learnt."""

    def __init__(self, source: PretrainedSource, settings: VLLM) -> None:
        self._names = CheckpointNames(source)
        self.context = context_of(self._names.config, settings.max_context)
        self.ends: Any = self._names.ends
        self.core = settings.start(source, self._names.config, self.context, {})
        self._owner = WeightOwner(source)
        self._version = self._loads = 0

    def version(self, policy: str) -> int:
        """Return the version of a policy's weights."""
        return self._version

    def salt(self, policy: str) -> str:
        """Return a name for the weights that are held now: no two have the same."""
        return str(self._loads)

    def adapter(self, policy: str) -> None:
        """Return None: there are no adapters."""

    def load(self, policy: str, weights: Weights, version: int) -> None:
        """Replace the weights in place.

        Raises:
            ValueError: if they do not fit, or other policies use those held here; nothing is changed then.
        """
        self._owner.check(policy)
        self._put(self._names.complete(read_tensors(weights), f"version {version} of policy {policy!r}"))
        self._owner.take(policy)
        self._version = version

    def add(self, policy: str, source: ModelSource | None) -> None:
        """Let a further policy use these weights.

        Raises:
            ValueError: if its source is another one, or if these weights have learnt.
        """
        self._owner.add(policy, source)

    def remove(self, policy: str) -> None:
        """Forget a policy; weights that it has learnt give way to those of the source."""
        if self._owner.remove(policy):
            self._put(self._owner.source.model().state_dict())
            self._version = 0

    def _put(self, tensors: Mapping[str, Tensor]) -> None:
        self._loads += 1
        replace_weights(self.core, tensors)


def replace_weights(core: Core, tensors: Mapping[str, Tensor]) -> None:
    """Overwrite all weights in place, tied ones under each of their names."""
    if core.takes_tensors:
        core.reload(tensors)
        return
    with core.exchange() as folder:
        # Tied tensors share their memory, which a file of safetensors must not.
        apart = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
        save_file(apart, Path(folder) / "model.safetensors")
        core.reload(folder)
