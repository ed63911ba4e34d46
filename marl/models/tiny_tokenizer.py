"""Tokenizers of the tiny models: one token a word, or one a byte, with a chat template of few tokens."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

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
"""Text as it is; an answer between two tokens. An empty system message costs nothing, and a tool its name."""

_WORD = Regex(r"\w+|[^\w\s]")
_OPENERS, _CLOSERS = "([{", ")]}.,:;!?%"


def make_tokenizer(vocabulary: Literal["words", "bytes"], corpus: Iterable[str] = ()) -> PreTrainedTokenizerFast:
    """A tokenizer for the words of `corpus`, or for any text."""
    inner = _words(corpus) if vocabulary == "words" else _bytes()
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


def words_of(corpus: Iterable[str]) -> list[str]:
    """Every word and punctuation mark, sorted: the order of the corpus does not matter."""
    split = _splitter()
    return sorted({word for text in corpus for word, _ in split.pre_tokenize_str(text)})


def _splitter() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(_WORD, "removed", invert=True)


def _words(corpus: Iterable[str]) -> Tokenizer:
    """Whitespace only separates; decoding puts one space between words, and none inside brackets or before a stop."""
    vocabulary = {word: index for index, word in enumerate([PAD, UNKNOWN, END, ASSISTANT, *words_of(corpus)])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    inner.pre_tokenizer = _splitter()
    tight = [decoders.Replace(mark + " ", mark) for mark in _OPENERS]
    tight += [decoders.Replace(" " + mark, mark) for mark in _CLOSERS]
    # The prefix marks continuations in other vocabularies; here it only makes the decoder put spaces between words.
    inner.decoder = decoders.Sequence([decoders.WordPiece(prefix="##", cleanup=False), decoders.Fuse(), *tight])
    return inner


def _bytes() -> Tokenizer:
    symbols = [PAD, END, ASSISTANT, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    inner = Tokenizer(models.BPE(vocab={symbol: index for index, symbol in enumerate(symbols)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    return inner
