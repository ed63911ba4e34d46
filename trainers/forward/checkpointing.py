"""How a model is run while it learns: layers recomputed in the backward pass, layers compiled."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from transformers.modeling_layers import GradientCheckpointingLayer

if TYPE_CHECKING:
    from trainers.settings import Optimisation


def apply_modes(model: Any, settings: Optimisation) -> None:
    """Switch on what the settings ask for. Names of weights stay as they are.

    Raises:
        ValueError: if the model has no layers that can be recomputed or compiled one by one.
    """
    switches = {"gradient_checkpointing": settings.gradient_checkpointing, "compile": settings.compile}
    asked = [name for name, on in switches.items() if on]
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if asked and not layers:
        raise ValueError(
            f"{', '.join(asked)}: {type(model).__name__} has no layers to which this could be done; use false"
        )
    if settings.gradient_checkpointing:
        with warnings.catch_warnings():  # late versions 5 of Transformers have another name for it, early ones do not
            warnings.simplefilter("ignore", FutureWarning)
            model.gradient_checkpointing_enable({"use_reentrant": False})
    if settings.compile:
        for layer in layers:
            layer.compile(dynamic=True)
