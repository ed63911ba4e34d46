"""Sequence classifiers, the format in which reward models are saved."""

import copy
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification


def empty_classifier(model: Any, pad: int | None = None) -> Any:
    """Return the sequence classifier of `model`'s architecture, with one label and no data (on torch's `meta` device).

    Raises:
        ValueError: if no classifier has `model`'s body and a head of a single weight matrix.
    """
    config = copy.deepcopy(model.config)
    config.num_labels, config.pad_token_id, config.dtype = 1, pad, model.dtype
    with torch.device("meta"):
        classifier = AutoModelForSequenceClassification.from_config(config)
    if classifier.base_model_prefix != model.base_model_prefix or len(head_parameters(classifier)) != 1:
        raise ValueError(
            f"{type(classifier).__name__} is not {type(model).__name__} with a head of nothing but weights"
        )
    return classifier


def head_parameters(classifier: Any) -> list[Tensor]:
    """Return the parameters of `classifier` outside its body."""
    body = {id(parameter) for parameter in classifier.base_model.parameters()}
    return [parameter for parameter in classifier.parameters() if id(parameter) not in body]
