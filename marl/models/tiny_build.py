"""Builds tiny models: an ordinary Hugging Face folder, made from a seed."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging

from marl.models.tiny_tokenizer import make_tokenizer
from marl.training.warm_up import publish

if TYPE_CHECKING:
    from marl.models.tiny import Tiny

_ARCHITECTURES = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen3": (Qwen3Config, Qwen3ForCausalLM)}


def build_tiny(settings: Tiny, folder: Path, corpus: Iterable[str]) -> int:
    """Make model and tokenizer and save them as `folder`; returns the number of parameters.

    Written beside and renamed, so that a killed build leaves nothing half.
    """
    logging.disable_progress_bar()
    tokenizer = make_tokenizer(settings.vocabulary, corpus)
    model = make_model(settings, tokenizer)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as beside:
        made = Path(beside) / "made"
        model.save_pretrained(made)
        tokenizer.save_pretrained(made)
        publish(made, folder)
    return model.num_parameters()


def make_model(settings: Tiny, tokenizer: PreTrainedTokenizerFast) -> Any:
    """Random weights that depend on the settings and the vocabulary's size alone."""
    config_class, model_class = _ARCHITECTURES[settings.architecture]
    config = config_class(
        vocab_size=len(tokenizer),
        hidden_size=settings.hidden,
        intermediate_size=settings.intermediate or 3 * settings.hidden,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.kv_heads or settings.heads,
        head_dim=settings.head_dim or settings.hidden // settings.heads,
        max_position_embeddings=settings.context,
        initializer_range=settings.initializer_range or settings.hidden**-0.5,
        tie_word_embeddings=settings.tied,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        return model_class(config)
