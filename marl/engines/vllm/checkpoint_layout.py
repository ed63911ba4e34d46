"""Names and shapes of a model's tensors, read from its configuration without loading weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from marl.models.pretrained import PretrainedSource
from marl.models.weights import LOADING_ERRORS, from_pretrained_gguf_arguments


class CheckpointLayout:
    """Names and shapes of a model's saved tensors, with all names of tied tensors."""

    def __init__(self, source: PretrainedSource) -> None:
        """Read the configuration of the model in `source`.

        Raises:
            ValueError: if there is no readable configuration.
        """
        trusted = source.trust_remote_code
        try:
            self.config: Any = AutoConfig.from_pretrained(
                source.path, trust_remote_code=trusted, **from_pretrained_gguf_arguments(source)
            )
        except LOADING_ERRORS as error:
            raise source.error_naming_policy_and_model(f"has no readable settings: {error}") from error
        # Tensors on the meta device have shapes but take no memory.
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(self.config, trust_remote_code=trusted)
        # With `keep_vars` the parameters themselves are returned, so that tied parameters are the same object.
        tensors = model.state_dict(keep_vars=True)
        self._shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        self._tied: dict[str, list[str]] = {}
        """Name of a tensor -> all names of this tensor."""
        for name, tensor in tensors.items():
            self._tied[name] = [other for other in tensors if tensors[other] is tensor]
        self.eos_token_ids: Any = model.generation_config.eos_token_id
        """Ids of the end tokens in the model's configuration: one id, a list of ids, or None."""

    def expand_tied_names(self, tensors: Mapping[str, Tensor], owner_in_errors: str) -> dict[str, Tensor]:
        """Return `tensors` with each tied tensor under all of its names. `owner_in_errors`: their owner, for messages.

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
        found = {"missing": missing, "unknown": unknown, "of another shape": misshapen}
        faults = [f"{fault}: {', '.join(names[:5])} ({len(names)})" for fault, names in found.items() if names]
        if faults:
            raise ValueError(f"weights of {owner_in_errors}: {'; '.join(faults)}")
        return completed
