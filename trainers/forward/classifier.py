"""Sequence classifiers of Hugging Face's kind, made of a language model's body and a head of one number."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from peft.tuners.lora import LoraLayer
from torch import Tensor
from transformers import AutoModelForSequenceClassification


def blank(model: Any, pad: int | None = None) -> Any:
    """The classifier of `model`'s architecture, with one label and no numbers in it (on torch's `meta` device).

    Raises:
        ValueError: if there is none that has `model`'s body and a head of nothing but weights.
    """
    config = copy.deepcopy(model.config)
    config.num_labels, config.pad_token_id, config.dtype = 1, pad, model.dtype
    with torch.device("meta"):
        classifier = AutoModelForSequenceClassification.from_config(config)
    if classifier.base_model_prefix != model.base_model_prefix or len(_head(classifier)) != 1:
        raise ValueError(
            f"{type(classifier).__name__} is not {type(model).__name__} with a head of nothing but weights"
        )
    return classifier


def save_classifier(folder: Path, model: Any, head_1H: Tensor, tokenizer: Any) -> None:
    """Weights in safetensors, settings and tokenizer. An adapter is added to the weights that it adapts."""
    classifier = blank(model, _pad(tokenizer)).to_empty(device="cpu")
    body = _merged(model).base_model.state_dict()
    with torch.no_grad():
        classifier.base_model.load_state_dict(body)
        next(iter(_head(classifier).values())).copy_(head_1H)
    classifier.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _head(classifier: Any) -> dict[str, Tensor]:
    body = {id(parameter) for parameter in classifier.base_model.parameters()}
    return {name: p for name, p in classifier.named_parameters() if id(p) not in body}


def _pad(tokenizer: Any) -> int | None:
    """Classifiers are read at the last token that is no padding: none may stand at the end of a text."""
    return None if tokenizer.pad_token_id == tokenizer.eos_token_id else tokenizer.pad_token_id


def _merged(model: Any) -> Any:
    """The model without adapters, which are added to a copy of the weights."""
    if not any(isinstance(module, LoraLayer) for module in model.modules()):
        return model
    merged = copy.deepcopy(model)
    for name, module in list(merged.named_modules()):
        if isinstance(module, LoraLayer):
            module.merge()  # type: ignore[operator]
            place, _, last = name.rpartition(".")
            setattr(merged.get_submodule(place), last, module.get_base_layer())
    return merged
