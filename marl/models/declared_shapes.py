"""Shapes of the weights of a model of which there is only its config.json."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

_MOST_LAYERS = 1024
"""Each layer takes milliseconds to make."""


@cache
def declared_shapes(config: Path) -> dict[str, tuple[int, ...]]:
    """Return name -> shape of each weight, tied ones once: those of a model without numbers.

    Raises:
        ValueError: if Transformers knows no such model.
    """
    try:
        settings = AutoConfig.from_pretrained(str(config))
        if settings.get_text_config().num_hidden_layers > _MOST_LAYERS:
            raise ValueError(f"more than {_MOST_LAYERS:,} layers")
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(settings)
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RuntimeError, ZeroDivisionError) as error:
        raise ValueError(f"{config}: no settings of a causal language model: {error}") from error
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
