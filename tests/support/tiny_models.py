"""Fixtures: tiny language models in folders, and one thread for torch."""

from __future__ import annotations

import pytest
import torch

from marl.models.pretrained import PretrainedSource
from marl.models.tiny import Tiny
from marl.models.tiny_build import build_tiny_model


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Models this small gain nothing from more, and wait for each other on a busy machine."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def words(tmp_path_factory: pytest.TempPathFactory) -> PretrainedSource:
    """A one-layer Llama that knows the words of Kuhn poker."""
    folder = tmp_path_factory.mktemp("models") / "words"
    build_tiny_model(Tiny(), folder, ["card J Q K . betting check bet fold call . moves [check] [bet]"])
    return Tiny().source("actor", folder)


@pytest.fixture(scope="session")
def bytewise(tmp_path_factory: pytest.TempPathFactory) -> PretrainedSource:
    """A two-layer Qwen3 with shared key heads that reads any text."""
    settings = Tiny(architecture="qwen3", hidden=48, layers=2, heads=4, kv_heads=2, head_dim=16, vocabulary="bytes")
    folder = tmp_path_factory.mktemp("models") / "bytes"
    build_tiny_model(settings, folder, ())
    return settings.source("actor", folder)
