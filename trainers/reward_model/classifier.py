"""Sequence classifiers, the format in which reward models are saved."""

import copy
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification


def sequence_classifier_on_meta_device(model: Any, pad_token_id: int | None = None) -> Any:
    """Return a sequence classifier of `model`'s architecture with one label, without data (on the `meta` device).

    Raises:
        ValueError: if Transformers' classifier is not `model`'s body with a head of a single weight matrix.
    """
    config = copy.deepcopy(model.config)
    config.num_labels, config.pad_token_id, config.dtype = 1, pad_token_id, model.dtype
    with torch.device("meta"):
        classifier = AutoModelForSequenceClassification.from_config(config)
    if classifier.base_model_prefix != model.base_model_prefix or len(classifier_head_parameters(classifier)) != 1:
        raise ValueError(
            f"{type(classifier).__name__} is not {type(model).__name__} with a head of nothing but weights"
        )
    return classifier


def classifier_head_parameters(classifier: Any) -> list[Tensor]:
    """Return the parameters of the classifier's head, those outside its body."""
    body = set(map(id, classifier.base_model.parameters()))
    return [parameter for parameter in classifier.parameters() if id(parameter) not in body]
