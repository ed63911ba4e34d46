"""Names and shapes of a model's tensors, read from its configuration without loading weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from marl.models.pretrained import PretrainedSource
from marl.models.weights import LOADING_ERRORS, gguf_arguments


class CheckpointLayout:
    """Shapes of a model's saved tensors, and the alternative names of tied tensors."""

    def __init__(self, source: PretrainedSource) -> None:
        """Read the model's configuration.

        Raises:
            ValueError: if there is no readable configuration.
        """
        trusted = source.trust_remote_code
        try:
            self.config: Any = AutoConfig.from_pretrained(
                source.path, trust_remote_code=trusted, **gguf_arguments(source)
            )
        except LOADING_ERRORS as error:
            raise source.error(f"has no readable settings: {error}") from error
        # On the meta device: shapes without memory.
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(self.config, trust_remote_code=trusted)
        # `keep_vars` returns the parameters themselves, so that tied ones are the same object.
        tensors = model.state_dict(keep_vars=True)
        self._shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        self._tied: dict[str, list[str]] = {}
        """Name of a tensor -> all names of the same tensor."""
        for name, tensor in tensors.items():
            self._tied[name] = [other for other in tensors if tensors[other] is tensor]
        self.eos_token_ids: Any = model.generation_config.eos_token_id
        """Ids of the end tokens in the model's configuration: an id, a list of them, or None."""

    def complete(self, tensors: Mapping[str, Tensor], label: str) -> dict[str, Tensor]:
        """Return the tensors under all names of tied tensors. `label` is the owner of the tensors, for messages.

        Raises:
            ValueError: if names are missing or unknown, or shapes differ.
        """
        completed: dict[str, Tensor] = {}
        unknown: list[str] = []
        misshapen: list[str] = []
        for name, tensor in tensors.items():
            if name not in self._shapes:
                unknown.append(name)
            elif self._shapes[name] != tuple(tensor.shape):
                misshapen.append(f"{name} {tuple(tensor.shape)} instead of {self._shapes[name]}")
            for alias in self._tied.get(name, ()):
                completed[alias] = tensor
        missing = [name for name in self._shapes if name not in completed]
        faults: list[str] = []
        for fault, names in (("missing", missing), ("unknown", unknown), ("of another shape", misshapen)):
            if names:
                faults.append(f"{fault}: {', '.join(names[:5])} ({len(names)})")
        if faults:
            raise ValueError(f"weights of {label}: {'; '.join(faults)}")
        return completed
