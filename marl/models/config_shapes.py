"""Configuration and weight shapes of a model, read from its config.json or from the header of its GGUF file."""

from __future__ import annotations

import struct
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from marl.models.hf_folder import is_gguf

_MOST_LAYERS = 1024
"""Maximum number of layers: building each layer takes milliseconds, and the number comes from outside."""

_UNREADABLE = (OSError, ValueError, KeyError, IndexError, AttributeError, TypeError, ImportError, struct.error)
"""Errors raised by Transformers and the package gguf for unreadable files."""


@cache
def load_config(file: Path) -> Any:
    """Return the configuration in a config.json or a GGUF file, without reading tensors.

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
def parameter_shapes(config: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of each weight by name, with tied weights listed once.

    Raises:
        ValueError: if Transformers cannot build the model.
    """
    settings = load_config(config)
    try:
        if settings.get_text_config().num_hidden_layers > _MOST_LAYERS:
            raise ValueError(f"more than {_MOST_LAYERS:,} layers")
        with torch.device("meta"):  # shapes without memory for the numbers
            model = AutoModelForCausalLM.from_config(settings)
    except (*_UNREADABLE, RuntimeError, ZeroDivisionError) as error:
        raise ValueError(f"{config}: no settings of a causal language model: {error}") from error
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
