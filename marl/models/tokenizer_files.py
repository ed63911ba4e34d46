"""Loading of tokenizers from a model's files. Unlike `marl.models.weights`, this module does not import torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

# PreTrainedTokenizerFast does not import torch, but AutoTokenizer does.
from transformers import PreTrainedTokenizerFast
from transformers.utils import logging

from marl.models.chat_template import ChatTokenizer


def load_chat_tokenizer(folder: Path, gguf_file: str | None) -> ChatTokenizer:
    """Return the tokenizer with the chat template from a Hugging Face folder, or from `gguf_file` in it if given."""
    logging.set_verbosity_error()
    options: dict[str, Any] = {"gguf_file": gguf_file} if gguf_file else {}
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True, **options)
    return ChatTokenizer(tokenizer, frozenset({tokenizer.eos_token_id} - {None}))
