"""Build tiny models from a seed, as ordinary Hugging Face folders with one token a word or a byte."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging

from marl.models.hf_folder import TINY_MARK, publish_folder
from marl.models.word_tokenizer import word_tokenizer

if TYPE_CHECKING:
    from marl.models.tiny import Tiny

_ARCHITECTURES = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen3": (Qwen3Config, Qwen3ForCausalLM)}
PAD, UNKNOWN, END, ASSISTANT = "<pad>", "<unk>", "<eos>", "<assistant>"

CHAT = (
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
"""Messages as they are, answers between two tokens. An empty system message takes no token, a tool its name's."""


def build_tiny(settings: Tiny, folder: Path, corpus: Iterable[str]) -> int:
    """Make model and tokenizer and save them as `folder`; return the number of parameters.

    The folder is written elsewhere and renamed, so that a killed build leaves nothing half.
    """
    logging.disable_progress_bar()
    tokenizer = make_tokenizer(settings.vocabulary, corpus)
    model = make_model(settings, tokenizer)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as temporary:
        made = Path(temporary) / "made"
        model.save_pretrained(made)
        tokenizer.save_pretrained(made)
        publish_folder(made, folder)
    return model.num_parameters()


def make_model(settings: Tiny, tokenizer: PreTrainedTokenizerFast) -> Any:
    """Return a model with random weights, which depend on the settings and the vocabulary's size alone."""
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
        **{TINY_MARK: True},
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        return model_class(config)


def make_tokenizer(vocabulary: Literal["words", "bytes"], corpus: Iterable[str] = ()) -> PreTrainedTokenizerFast:
    """Return a tokenizer for the words of `corpus`, or for any text."""
    inner = word_tokenizer(corpus, (PAD, UNKNOWN, END, ASSISTANT), UNKNOWN) if vocabulary == "words" else _bytes()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token=PAD,
        unk_token=UNKNOWN if vocabulary == "words" else None,
        eos_token=END,
        additional_special_tokens=[ASSISTANT],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT
    return tokenizer


def _bytes() -> Tokenizer:
    symbols = [PAD, END, ASSISTANT, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    inner = Tokenizer(models.BPE(vocab={symbol: index for index, symbol in enumerate(symbols)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    return inner
