"""Writing GGUF files, llama.cpp's format: Llama models with a byte-level BPE tokenizer, by the package `gguf`.

Names of tensors come from the package. llama.cpp's converter (convert_hf_to_gguf.py) says what else a file must hold.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import safe_open

from marl.models.hf_folder import weight_files

if TYPE_CHECKING:
    from gguf import GGUFWriter

ARCHITECTURE = "llama"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_SPLITS = {_LLAMA3: "llama-bpe", _QWEN2: "qwen2"}
"""Patterns that cut a text before merging -> the names that llama.cpp has for them."""
_EMBEDDING, _OUTPUT = "token_embd.weight", "output.weight"


def expect_supported(folder: Path | str) -> None:
    """Check that `write_gguf` can write the model in a folder.

    Raises:
        ValueError: naming what is not supported, or not installed.
    """
    if find_spec("gguf") is None:
        raise ValueError("--gguf needs the package `gguf`: pip install 'marl-llm[gguf]'")
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise ValueError(f"--gguf: {folder} is no folder with a config.json; export --merge without it first")
    _check_model(_read(folder / "config.json"))
    _pre_tokenizer(_tokenizer_of(folder))


def write_gguf(folder: Path, file: Path) -> None:
    """Write the model and the tokenizer in a Hugging Face folder as one GGUF file, in the precision that they have.

    Raises:
        ValueError: as `expect_supported`.
    """
    import gguf

    expect_supported(folder)
    config = _read(folder / "config.json")
    writer = gguf.GGUFWriter(file, ARCHITECTURE)
    _add_shapes(writer, config)
    _add_tokenizer(writer, folder, config["vocab_size"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    for path in weight_files(folder):
        with safe_open(path, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118
                placed = names.get_name(name, try_suffixes=(".weight", ".bias"))
                if placed is None:
                    raise ValueError(f"--gguf: a {ARCHITECTURE} model of GGUF has no tensor {name}")
                if placed != _OUTPUT or not config.get("tie_word_embeddings"):
                    _add_tensor(writer, placed, _ordered(placed, tensors.get_tensor(name), config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _check_model(config: Mapping[str, Any]) -> None:
    architectures = config.get("architectures") or ["unknown"]
    if architectures != ["LlamaForCausalLM"]:
        raise ValueError(f"--gguf: architecture {architectures[0]} is not supported; choices: LlamaForCausalLM")
    rope = _rope(config)
    if rope.get("rope_type", rope.get("type", "default")) != "default":
        raise ValueError(f"--gguf: scaled rotary embeddings ({rope}) are not supported; choices: default")
    if config.get("attention_bias") or config.get("mlp_bias"):
        raise ValueError("--gguf: attention_bias and mlp_bias are not supported; choices: false")


def _rope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return config.get("rope_parameters") or config.get("rope_scaling") or {}


def _add_shapes(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.get("num_key_value_heads") or heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(_rope(config).get("rope_theta") or config.get("rope_theta") or 10000.0)


def _ordered(name: str, tensor: torch.Tensor, config: Mapping[str, Any]) -> torch.Tensor:
    """Return queries and keys in the order of llama.cpp, whose rotations turn neighbours in place of halves."""
    heads = config["num_attention_heads"]
    if ".attn_k." in name:
        heads = config.get("num_key_value_heads") or heads
    elif ".attn_q." not in name:
        return tensor
    halves = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
    return halves.swapaxes(1, 2).reshape(tensor.shape).contiguous()


def _add_tensor(writer: GGUFWriter, name: str, tensor: torch.Tensor) -> None:
    from gguf import GGMLQuantizationType

    if tensor.ndim < 2:  # norms, which llama.cpp expects as float32
        writer.add_tensor(name, tensor.float().numpy())
    elif tensor.dtype == torch.bfloat16:
        raw = tensor.view(torch.uint16).numpy().view(np.uint8)
        writer.add_tensor(name, raw, raw_dtype=GGMLQuantizationType.BF16)
    else:
        writer.add_tensor(name, tensor.numpy())


def _add_tokenizer(writer: GGUFWriter, folder: Path, rows: int) -> None:
    """Add tokens, merges, special tokens and the chat template; rows of the embeddings without a token are unused."""
    import gguf

    data, settings = _tokenizer_of(folder), _read(folder / "tokenizer_config.json")
    added = {token["id"]: token for token in data.get("added_tokens", ())}
    texts = {number: text for text, number in data["model"]["vocab"].items()}
    texts |= {number: token["content"] for number, token in added.items()}
    kinds = {n: gguf.TokenType.CONTROL if t.get("special") else gguf.TokenType.USER_DEFINED for n, t in added.items()}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(_pre_tokenizer(data))
    writer.add_token_list([texts.get(number, f"[PAD{number}]") for number in range(rows)])
    unused, usual = gguf.TokenType.UNUSED, gguf.TokenType.NORMAL
    writer.add_token_types([kinds.get(n, usual if n in texts else unused) for n in range(rows)])
    if merges := data["model"]["merges"]:
        writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    else:  # GGUF has no empty lists: readers take the merges from the vocabulary, where there are none
        writer.add_token_scores([0.0] * rows)
    _add_special(writer, settings, {text: number for number, text in texts.items()})
    template = folder / "chat_template.jinja"
    written = template.read_text() if template.is_file() else settings.get("chat_template")
    if isinstance(written, str):
        writer.add_chat_template(written)


def _add_special(writer: GGUFWriter, settings: Mapping[str, Any], numbers: Mapping[str, int]) -> None:
    adders = {"bos": writer.add_bos_token_id, "eos": writer.add_eos_token_id, "pad": writer.add_pad_token_id}
    for name, add in adders.items():
        token = settings.get(f"{name}_token")
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str) and text in numbers:
            add(numbers[text])
    # A chat template writes the token that begins a text itself, where there is one.
    writer.add_add_bos_token(False)


def _tokenizer_of(folder: Path) -> dict[str, Any]:
    """Return the settings of a tokenizer.

    Raises:
        ValueError: if it is no byte-level BPE.
    """
    file = folder / "tokenizer.json"
    data = _read(file) if file.is_file() else {}
    kind = data.get("model", {}).get("type", "none")
    if kind != "BPE" or data.get("normalizer") or data["model"].get("byte_fallback"):
        hint = " (a tiny model: vocabulary: bytes)" if kind == "WordLevel" else ""
        raise ValueError(f"--gguf: a tokenizer of type {kind} is not supported; choices: byte-level BPE{hint}")
    return data


def _pre_tokenizer(data: Mapping[str, Any]) -> str:
    """Return llama.cpp's name for how a tokenizer cuts a text before it merges.

    Raises:
        ValueError: if it has none that is known here.
    """
    pre = data.get("pre_tokenizer") or {}
    steps = pre["pretokenizers"] if pre.get("type") == "Sequence" else [pre]
    match [(step.get("type"), step) for step in steps]:
        case [("ByteLevel", {"use_regex": True, "add_prefix_space": False})]:
            return "gpt-2"
        case [("ByteLevel", {"add_prefix_space": False})] if not data["model"]["merges"]:
            return "gpt-2"  # nothing is merged, so that it does not matter where a text is cut
        case [("Digits", {"individual_digits": True}), ("ByteLevel", {"use_regex": True, "add_prefix_space": False})]:
            return "smollm"
        case [("Split", {"pattern": {"Regex": pattern}}), ("ByteLevel", {"use_regex": False})] if pattern in _SPLITS:
            return _SPLITS[pattern]
    raise ValueError(f"--gguf: llama.cpp's name for the pre-tokenizer {json.dumps(pre)[:200]} is not known here")


def _read(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text())
