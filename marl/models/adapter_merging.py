"""Merging of an adapter into the base model. The result is an ordinary model, which needs no PEFT."""

from __future__ import annotations

import warnings
from typing import Any, cast

from peft import PeftModel
from peft.tuners.lora import LoraLayer

from marl.models.adapter import AdapterSource
from marl.models.lora import adapter_layers


def merge_adapter(source: AdapterSource) -> Any:
    """Return the base of `source`, in its own dtype, with the adapter's change added to its weights.

    Raises:
        ValueError: if the adapter changes an input or output layer of the base, and the two layers share one tensor.
    """
    model = source.base_source.model()
    with warnings.catch_warnings():
        # PEFT uses an attribute that Transformers will rename, and warns of in every call.
        warnings.simplefilter("ignore", FutureWarning)
        adapted = cast("Any", PeftModel.from_pretrained(model, str(source.adapter.folder)))
    layers: list[Any] = []
    for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
        if layer is not None:
            layers.append(layer.base_layer if isinstance(layer, LoraLayer) else layer)
    tied = layers if len({layer.weight.data_ptr() for layer in layers}) < len(layers) else []
    changed = [name.rpartition(".")[2] for name, layer in adapter_layers(model) if layer.base_layer in tied]
    if changed:
        raise source.error_naming_policy_and_model(
            f"cannot be merged: its adapter changes {', '.join(changed)}, and the base's input and output share their "
            "weights; export the adapter as it is"
        )
    return adapted.merge_and_unload(safe_merge=True)
