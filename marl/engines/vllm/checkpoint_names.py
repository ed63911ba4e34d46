"""Names and shapes of the tensors of a model, known without its weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from marl.models.weights import UNREADABLE, gguf_file

if TYPE_CHECKING:
    from marl.models.pretrained import PretrainedSource


class CheckpointNames:
    """Names under which a model's tensors are saved; tied ones have several."""

    def __init__(self, source: PretrainedSource) -> None:
        """Read the model's settings.

        Raises:
            ValueError: if there are none that can be read.
        """
        trusted = source.trust_remote_code
        try:
            self.config: Any = AutoConfig.from_pretrained(source.path, trust_remote_code=trusted, **gguf_file(source))
        except UNREADABLE as error:
            raise source.fault(f"has no readable settings: {error}") from error
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(self.config, trust_remote_code=trusted)
        held = model.state_dict(keep_vars=True)
        self._shapes = {name: tuple(tensor.shape) for name, tensor in held.items()}
        self._tied = {name: [other for other in held if held[other] is tensor] for name, tensor in held.items()}
        self.ends: Any = model.generation_config.eos_token_id
        """Tokens that end a completion, as the model's settings have them."""

    def complete(self, tensors: Mapping[str, Tensor], label: str) -> dict[str, Tensor]:
        """Return the tensors under all their names. `label`: their owner, for messages.

        Raises:
            ValueError: if names are missing or unknown, or shapes differ.
        """
        whole = {name: tensor for saved, tensor in tensors.items() for name in self._tied.get(saved, ())}
        faults = {
            "missing": [name for name in self._shapes if name not in whole],
            "unknown": [name for name in tensors if name not in self._shapes],
            "of another shape": [
                f"{name} {tuple(tensor.shape)} instead of {self._shapes[name]}"
                for name, tensor in tensors.items()
                if self._shapes.get(name, tensor.shape) != tuple(tensor.shape)
            ],
        }
        if lines := [f"{fault}: {', '.join(names[:5])} ({len(names)})" for fault, names in faults.items() if names]:
            raise ValueError(f"weights of {label}: {'; '.join(lines)}")
        return whole
