"""Builder of tiny models: ordinary Hugging Face folders with one token for each word or byte."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging

from marl.models.hf_folder import TINY_KEY, move_into_place
from marl.models.word_tokenizer import make_word_tokenizer

if TYPE_CHECKING:
    # Imported for type checkers only: `tiny` imports this module, so a second import would be circular.
    from marl.models.tiny import Tiny

_ARCHITECTURES = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen3": (Qwen3Config, Qwen3ForCausalLM)}
PAD, UNKNOWN, END, ASSISTANT = "<pad>", "<unk>", "<eos>", "<assistant>"

CHAT_TEMPLATE = (
    "{%- if tools -%}{{ tools | map(attribute='function.name') | join(' ') }}{{ '\\n' }}{%- endif -%}"
    "{%- for message in messages -%}"
    "{%- if message.role == 'assistant' -%}"
    + ASSISTANT
    + "{{ message.content }}"
    + END
    + "{%- elif message.content -%}"
    "{{ message.content }}{%- if loop.nextitem and loop.nextitem.role != 'assistant' -%}{{ '\\n' }}{%- endif -%}"
    "{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}" + ASSISTANT + "{%- endif -%}"
)
"""Chat template of tiny models: messages as they are, answers between two tokens, tools by their names.

An empty system message takes no token.
"""


def build_tiny_model(settings: Tiny, folder: Path, corpus_texts: Iterable[str]) -> int:
    """Build a tiny model and its tokenizer, save them in `folder`, and return the number of the model's parameters."""
    logging.disable_progress_bar()
    tokenizer = make_tiny_tokenizer(settings.vocabulary, corpus_texts)
    model = make_tiny_model(settings, tokenizer)
    folder.parent.mkdir(parents=True, exist_ok=True)
    # The folder appears by a rename, so that a killed build leaves no incomplete folder.
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as temporary:
        built = Path(temporary) / "made"
        model.save_pretrained(built)
        tokenizer.save_pretrained(built)
        move_into_place(built, folder)
    return model.num_parameters()


def make_tiny_model(settings: Tiny, tokenizer: PreTrainedTokenizerFast) -> Any:
    """Return a tiny model with random weights, which depend on `settings` and the size of the vocabulary only."""
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
        **{TINY_KEY: True},
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        return model_class(config)


def make_tiny_tokenizer(
    vocabulary: Literal["words", "bytes"], corpus_texts: Iterable[str] = ()
) -> PreTrainedTokenizerFast:
    """Return a tokenizer for the words in `corpus_texts`, or a byte-level tokenizer, which encodes any text."""
    if vocabulary == "words":
        inner = make_word_tokenizer(corpus_texts, (PAD, UNKNOWN, END, ASSISTANT), UNKNOWN)
    else:
        symbols = [PAD, END, ASSISTANT, *sorted(pre_tokenizers.ByteLevel.alphabet())]
        inner = Tokenizer(models.BPE(vocab={symbol: index for index, symbol in enumerate(symbols)}, merges=[]))
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        inner.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token=PAD,
        unk_token=UNKNOWN if vocabulary == "words" else None,
        eos_token=END,
        additional_special_tokens=[ASSISTANT],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer
