"""Adapters with made-up weights, on bases that tests can afford."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from marl.engines.transformers.engine import TransformersEngine
from marl.engines.transformers.settings import Transformers
from marl.models.adapter import Adapter, AdapterSource
from marl.models.lora import adapter_tensors, save_adapter
from marl.models.pretrained import Pretrained, PretrainedSource


def adapted(checkpoint: PretrainedSource, policy: str = "actor", **settings: Any) -> AdapterSource:
    """An adapter that changes nothing yet."""
    return AdapterSource(policy, Adapter(base=Pretrained(path=checkpoint.path), **settings), checkpoint)


def random_adapter_weights(source: AdapterSource, seed: int) -> dict[str, Tensor]:
    """Weights for an adapter with which it matters."""
    generator = torch.Generator().manual_seed(seed)
    tensors = adapter_tensors(source.model())
    return {name: torch.randn(tensor.shape, generator=generator) * 0.3 for name, tensor in tensors.items()}


def merged_model(source: AdapterSource, weights: Mapping[str, Tensor]) -> Any:
    """The PEFT model with these weights."""
    model = source.model()
    with torch.no_grad():
        for name, tensor in adapter_tensors(model).items():
            tensor.copy_(weights[name])
    return model


def write_adapter(source: AdapterSource, weights: Mapping[str, Tensor], folder: Path) -> Path:
    """A PEFT folder with these weights."""
    save_adapter(merged_model(source, weights), folder)
    source.tokenizer().save_pretrained(folder)
    return folder


def build_sampler(*sources: AdapterSource, **settings: Any) -> TransformersEngine:
    """One engine for all."""
    engine = Transformers(**settings).build_shared({source.policy: source for source in sources})
    assert isinstance(engine, TransformersEngine)
    return engine


def tensor_bytes(tensors: Mapping[str, Tensor]) -> dict[str, bytes]:
    return {name: tensor.detach().contiguous().numpy().tobytes() for name, tensor in tensors.items()}
