"""Real vLLM engines for tests, on models that vLLM has attention for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import setuptools  # noqa: F401  # vLLM imports it late, and it refuses to come after Python's own distutils

from marl.engines.vllm.engine import VLLMEngine
from marl.engines.vllm.settings import VLLM
from marl.models.pretrained import PretrainedSource
from marl.models.tiny import Tiny
from marl.models.tiny_build import build_tiny_model

VLLM_KIND = "marl.engines.vllm.settings:VLLM"
SETTINGS: dict[str, Any] = {"kv_cache_mib": 64, "max_sequences": 32}


def wide_headed(folder: Path) -> PretrainedSource:
    """A two-layer Qwen3 with tied embeddings, shared key heads and heads 32 wide that reads any text."""
    tiny = Tiny(architecture="qwen3", hidden=48, layers=2, heads=4, kv_heads=2, head_dim=32, vocabulary="bytes")
    build_tiny_model(tiny, folder, ())
    return tiny.source("actor", folder)


def vllm_engine(source: PretrainedSource, **settings: Any) -> VLLMEngine:
    engine = VLLM(**SETTINGS | settings).build(source)
    assert isinstance(engine, VLLMEngine)
    return engine
