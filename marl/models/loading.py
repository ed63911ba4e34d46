"""Loads models and tokenizers with Transformers; says whose and which when it cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

if TYPE_CHECKING:
    from marl.models.pretrained import Checkpoint


UNREADABLE = (OSError, ValueError, RuntimeError, KeyError, SafetensorError)
"""What Transformers raises for folders and names that it cannot load."""


def device_of(name: str) -> torch.device:
    """`auto` is `cuda` where there is one, else `cpu`."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(name)


def load_model(checkpoint: Checkpoint) -> Any:
    """The model in eval mode, on its device.

    Raises:
        ValueError: if it cannot be read, or lacks weights (Transformers would make them up at random).
    """
    logging.disable_progress_bar()
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            checkpoint.path,
            dtype=checkpoint.dtype,
            attn_implementation=checkpoint.attention,
            trust_remote_code=checkpoint.trust_remote_code,
            output_loading_info=True,
        )
    except UNREADABLE as error:
        raise checkpoint.fault(f"cannot be loaded: {error}") from error
    model, report = loaded
    if report["missing_keys"]:
        missing = sorted(report["missing_keys"])
        raise checkpoint.fault(f"has no weights for {', '.join(missing[:5])} ({len(missing)} in all)")
    return model.to(device_of(checkpoint.device)).eval()


def load_tokenizer(checkpoint: Checkpoint) -> Any:
    """The tokenizer.

    Raises:
        ValueError: if it cannot be read.
    """
    try:
        return AutoTokenizer.from_pretrained(checkpoint.path, trust_remote_code=checkpoint.trust_remote_code)
    except UNREADABLE as error:
        raise checkpoint.fault(f"has no readable tokenizer: {error}") from error
