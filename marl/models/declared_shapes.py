"""Settings of a model, and the shapes of its weights, from its config.json or the head of its GGUF file alone."""

from __future__ import annotations

import struct
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from marl.models.hf_folder import is_gguf

_MOST_LAYERS = 1024
"""Each layer takes milliseconds to make."""


_UNREADABLE = (OSError, ValueError, KeyError, IndexError, AttributeError, TypeError, ImportError, struct.error)
"""Errors that Transformers and the package gguf raise for files that they cannot read."""


@cache
def declared_settings(file: Path) -> Any:
    """Return the configuration that a config.json or a GGUF file holds; the latter's tensors are not read.

    Raises:
        ValueError: if Transformers cannot read it.
    """
    try:
        if is_gguf(file):
            return AutoConfig.from_pretrained(str(file.parent), gguf_file=file.name)
        return AutoConfig.from_pretrained(str(file))
    except _UNREADABLE as error:
        raise ValueError(f"{file}: no settings of a causal language model: {error}") from error


@cache
def declared_shapes(config: Path) -> dict[str, tuple[int, ...]]:
    """Return name -> shape of each weight, tied ones once: those of a model without numbers.

    Raises:
        ValueError: if Transformers knows no such model.
    """
    settings = declared_settings(config)
    try:
        if settings.get_text_config().num_hidden_layers > _MOST_LAYERS:
            raise ValueError(f"more than {_MOST_LAYERS:,} layers")
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(settings)
    except (*_UNREADABLE, RuntimeError, ZeroDivisionError) as error:
        raise ValueError(f"{config}: no settings of a causal language model: {error}") from error
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
