"""Published chat templates, with tokenizers that have their special tokens and need no download."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import AddedToken, PreTrainedTokenizerFast

_TEMPLATES: dict[str, str] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
"""As in `tokenizer_config.json`; those of Qwen3 and DeepSeek-R1 without their branches for tools. `alpaca` and `human`
write the formats of early models, whose turns begin with ordinary words."""


@dataclass(frozen=True)
class Published:
    """A chat template, its tokens, and its marks that are ordinary text."""

    template: str
    special: tuple[str, ...]
    """The tokens bos and eos first."""
    added: tuple[str, ...] = ()
    """Tokens that are in the vocabulary and not special."""
    text_marks: tuple[str, ...] = ()
    system: bool = True
    """It takes a system message."""
    rstrip: bool = False
    """Its tokens swallow what blanks follow them."""

    def tokenizer(self, kind: str = "bytes") -> Any:
        """Return a tokenizer with these tokens: of `bytes` or of pieces as SentencePiece makes them.

        The places of `offsets_omit_blanks` tokens are given without the blanks that they begin with.
        """
        bos, eos = self.special[:2]
        kinds = {"bytes": byte_level_bpe, "trimmed": _trimmed_bytes, "pieces": _pieces, "old_pieces": _old_pieces}
        inner = kinds[kind](self.special)
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token=bos, eos_token=eos)
        special = [AddedToken(t, special=True, normalized=False, rstrip=self.rstrip) for t in self.special]
        tokenizer.add_special_tokens({"additional_special_tokens": special})
        tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in self.added])
        tokenizer.chat_template = self.template
        return tokenizer


_QWEN = ("<|endoftext|>", "<|im_end|>", "<|im_start|>", "<|vision_start|>")
_TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
_LLAMA_3 = (
    "<|begin_of_text|>",
    "<|eot_id|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|reserved_special_token_0|>",
)
_DEEPSEEK = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>")  # noqa: RUF001
_TURNS = ("<｜User｜>", "<｜Assistant｜>", "<think>", "</think>")  # noqa: RUF001
PUBLISHED = {
    "chatml": Published(_TEMPLATES["chatml"], _QWEN),
    "qwen3": Published(_TEMPLATES["qwen3"], _QWEN, _TAGS),
    "llama_3": Published(_TEMPLATES["llama_3"], _LLAMA_3),
    "llama_2": Published(_TEMPLATES["llama_2"], ("<s>", "</s>"), (), ("[INST]", "[/INST]", "<<SYS>>", "<</SYS>>")),
    "mistral": Published(_TEMPLATES["mistral"], ("<s>", "</s>"), (), ("[INST]", "[/INST]"), system=False),
    "mistral_tokens": Published(
        _TEMPLATES["mistral"], ("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]"), system=False
    ),
    "gemma": Published(
        _TEMPLATES["gemma"], ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"), ("<mask>", "\n\n"), system=False
    ),
    "phi_3": Published(_TEMPLATES["phi_3"], ("<s>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"), rstrip=True),
    "deepseek_r1": Published(_TEMPLATES["deepseek_r1"], _DEEPSEEK, _TURNS),
    "zephyr": Published(_TEMPLATES["zephyr"], ("<s>", "</s>"), (), ("<|user|>", "<|assistant|>", "<|system|>")),
    "vicuna": Published(_TEMPLATES["vicuna"], ("<s>", "</s>"), (), ("USER:", "ASSISTANT:")),
    "alpaca": Published(_TEMPLATES["alpaca"], ("<s>", "</s>"), (), ("### Instruction:", "### Response:")),
    "human": Published(_TEMPLATES["human"], ("<s>", "</s>"), (), ("Human:", "Assistant:")),
}


def byte_level_bpe(special: tuple[str, ...], *further: tuple[str, str]) -> Tokenizer:
    """Byte-level BPE, as of GPT-2, Llama 3 and Qwen, with a few merges."""
    pairs = [
        *further,
        ("i", "m"),
        ("im", "_"),
        ("s", "t"),
        ("<", "|"),
        ("|", ">"),
        ("Ċ", "Ċ"),
        ("IN", "ST"),
        ("I", "N"),
        ("S", "T"),
    ]
    symbols = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    merges = sorted(pairs, key=lambda pair: len(pair[0]) + len(pair[1]))
    vocabulary = {symbol: i for i, symbol in enumerate([*symbols, *dict.fromkeys(map("".join, merges))])}
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return inner


def _trimmed_bytes(special: tuple[str, ...]) -> Tokenizer:
    inner = byte_level_bpe(special, ("Ġ", "x"), ("Ġ", "Ġ"))
    inner.post_processor = processors.ByteLevel(trim_offsets=True)
    return inner


def _pieces(special: tuple[str, ...]) -> Tokenizer:
    """BPE on characters with bytes to fall back on, and a blank before the first word only, as of Llama 2 and Gemma."""
    inner = Tokenizer(models.BPE(**_characters(special), byte_fallback=True, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    inner.decoder = _piece_decoder()
    return inner


def _old_pieces(special: tuple[str, ...]) -> Tokenizer:
    """The same with a blank after every special token, as of Llama 1."""
    inner = Tokenizer(models.BPE(**_characters(special), byte_fallback=True, unk_token="<unk>"))
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    inner.decoder = _piece_decoder()
    return inner


def _characters(special: tuple[str, ...]) -> dict[str, Any]:
    merges = [
        ("▁", "▁"),
        ("I", "N"),
        ("S", "T"),
        ("IN", "ST"),
        ("▁", "["),
        ("▁", "<"),
        ("▁", "|"),
        ("▁", "s"),
        ("▁", "/"),
    ]
    symbols = ["<unk>", *special, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *map(chr, range(33, 127))]
    vocabulary = {symbol: i for i, symbol in enumerate(dict.fromkeys([*symbols, *map("".join, merges)]))}
    return {"vocab": vocabulary, "merges": merges}


def _piece_decoder() -> decoders.Decoder:
    return decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
