"""Merging an adapter into its base: one ordinary model, which needs neither PEFT nor another folder."""

from __future__ import annotations

import warnings
from typing import Any, cast

from peft import PeftModel
from peft.tuners.lora import LoraLayer

from marl.models.adapter import AdapterSource
from marl.models.lora import adapter_layers


def merged(source: AdapterSource) -> Any:
    """Return the base, in its own precision, with the adapter's change added to its weights.

    Raises:
        ValueError: if the adapter changes one of two layers that share their weights, as one tensor cannot be both.
    """
    model = source.base_source.model()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PEFT uses an attribute that Transformers is about to rename
        adapted = cast("Any", PeftModel.from_pretrained(model, str(source.adapter.folder)))
    tied = _tied_layers(model)
    changed = [name.rpartition(".")[2] for name, layer in adapter_layers(model) if layer.base_layer in tied]
    if changed:
        raise source.fault(
            f"cannot be merged: its adapter changes {', '.join(changed)}, and the base's input and output share their "
            "weights; export the adapter as it is"
        )
    return adapted.merge_and_unload(safe_merge=True)


def _tied_layers(model: Any) -> list[Any]:
    """Return the layers of input and output, without their adapters, if they share their weights."""
    layers: list[Any] = [model.get_input_embeddings(), model.get_output_embeddings()]
    there: list[Any] = [layer for layer in layers if layer is not None]
    plain: list[Any] = [layer.base_layer if isinstance(layer, LoraLayer) else layer for layer in there]
    return plain if len({layer.weight.data_ptr() for layer in plain}) < len(plain) else []
