"""Reading of a model's configuration and weight shapes, from its config.json or from the header of its GGUF file."""

from __future__ import annotations

import struct
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from marl.models.hf_folder import is_gguf

_MOST_LAYERS = 1024
"""Maximum number of layers of a model, because building a layer takes milliseconds and files come from outside."""

_CONFIG_READ_ERRORS = (OSError, ValueError, KeyError, IndexError, AttributeError, TypeError, ImportError, struct.error)
"""Errors that Transformers and the package gguf raise for unreadable files."""


@cache
def load_model_config(config_file: Path) -> Any:
    """Return the model configuration in `config_file`, a config.json or a GGUF file. Tensors are not read.

    Raises:
        ValueError: if Transformers cannot read the configuration.
    """
    try:
        if is_gguf(config_file):
            return AutoConfig.from_pretrained(str(config_file.parent), gguf_file=config_file.name)
        return AutoConfig.from_pretrained(str(config_file))
    except _CONFIG_READ_ERRORS as error:
        raise ValueError(f"{config_file}: no settings of a causal language model: {error}") from error


@cache
def parameter_shapes(config_file: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of each weight by name, for the model of `config_file`. Tied weights are listed once.

    Raises:
        ValueError: if Transformers cannot build the model.
    """
    config = load_model_config(config_file)
    try:
        if config.get_text_config().num_hidden_layers > _MOST_LAYERS:
            raise ValueError(f"more than {_MOST_LAYERS:,} layers")
        # Tensors on the meta device have shapes but take no memory.
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except (*_CONFIG_READ_ERRORS, RuntimeError, ZeroDivisionError) as error:
        raise ValueError(f"{config_file}: no settings of a causal language model: {error}") from error
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
