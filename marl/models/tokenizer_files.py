"""Tokenizers read from a model's files alone. Unlike `marl.models.weights`, this module does not import torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast  # unlike AutoTokenizer, it does not import torch
from transformers.utils import logging

from marl.models.chat_template import ChatTokenizer


def load_chat_tokenizer(folder: Path, gguf_file: str | None) -> ChatTokenizer:
    """Return the tokenizer and chat template of a Hugging Face folder, or of its GGUF file."""
    logging.set_verbosity_error()
    options: dict[str, Any] = {"gguf_file": gguf_file} if gguf_file else {}
    return ChatTokenizer(PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True, **options), frozenset())
