"""Writing of GGUF files, the format of llama.cpp, for Llama models with a byte-level BPE tokenizer.

The names of tensors come from the package `gguf`. llama.cpp's converter (convert_hf_to_gguf.py) defines the other
entries of a file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open

from marl.models.hf_folder import read_json, safetensors_files

ARCHITECTURE = "llama"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_PRE_TOKENIZER_NAMES = {_LLAMA3: "llama-bpe", _QWEN2: "qwen2"}
"""Regular expression by which a pre-tokenizer splits a text -> llama.cpp's name for the pre-tokenizer."""
_OUTPUT = "output.weight"


def check_gguf_export_supported(folder: Path | str) -> None:
    """Check that `write_gguf` can write the model in `folder`.

    Raises:
        ValueError: with the unsupported setting, or the missing package.
    """
    if find_spec("gguf") is None:
        raise ValueError("--gguf needs the package `gguf`: pip install 'marl-llm[gguf]'")
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise ValueError(f"--gguf: {folder} is no folder with a config.json; export --merge without it first")
    config = read_json(folder / "config.json")
    architectures = config.get("architectures") or ["unknown"]
    if architectures != ["LlamaForCausalLM"]:
        raise ValueError(f"--gguf: architecture {architectures[0]} is not supported; choices: LlamaForCausalLM")
    rope = _rotary_embedding_settings(config)
    if rope.get("rope_type", rope.get("type", "default")) != "default":
        raise ValueError(f"--gguf: scaled rotary embeddings ({rope}) are not supported; choices: default")
    if config.get("attention_bias") or config.get("mlp_bias"):
        raise ValueError("--gguf: attention_bias and mlp_bias are not supported; choices: false")
    _pre_tokenizer_name(_read_tokenizer(folder))


def write_gguf(model_folder: Path, gguf_file: Path) -> None:
    """Write the model and the tokenizer of a Hugging Face folder as one GGUF file, with the dtypes of the folder.

    Raises:
        ValueError: as `check_gguf_export_supported`, or if GGUF has no name for a tensor.
    """
    # imported here, because the package `gguf` is optional
    import gguf

    check_gguf_export_supported(model_folder)
    config = read_json(model_folder / "config.json")
    writer = gguf.GGUFWriter(gguf_file, ARCHITECTURE)
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
    writer.add_rope_freq_base(
        _rotary_embedding_settings(config).get("rope_theta") or config.get("rope_theta") or 10000.0
    )
    _add_tokenizer(writer, model_folder, config["vocab_size"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    for path in safetensors_files(model_folder):
        with safe_open(path, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118
                gguf_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
                if gguf_name is None:
                    raise ValueError(f"--gguf: a {ARCHITECTURE} model of GGUF has no tensor {name}")
                # Readers of GGUF use the embeddings as output layer if the file has none.
                if gguf_name == _OUTPUT and config.get("tie_word_embeddings"):
                    continue
                tensor = _reorder_rows_for_llama_cpp(gguf_name, tensors.get_tensor(name), config)
                # llama.cpp expects the weights of norms in float32, and numpy has no bfloat16.
                if tensor.ndim < 2:
                    writer.add_tensor(gguf_name, tensor.float().numpy())
                elif tensor.dtype == torch.bfloat16:
                    raw = tensor.view(torch.uint16).numpy().view(np.uint8)
                    writer.add_tensor(gguf_name, raw, raw_dtype=gguf.GGMLQuantizationType.BF16)
                else:
                    writer.add_tensor(gguf_name, tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _rotary_embedding_settings(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings of rotary embeddings in the configuration of a model."""
    # The setting is called `rope_parameters` in Transformers 5 and `rope_scaling` in earlier releases.
    return config.get("rope_parameters") or config.get("rope_scaling") or {}


def _reorder_rows_for_llama_cpp(name: str, tensor: torch.Tensor, config: Mapping[str, Any]) -> torch.Tensor:
    """Return `tensor` with its rows in llama.cpp's order if `name` is a projection to queries or keys.

    Rotary embeddings rotate neighbouring rows in llama.cpp, and the two halves of a head in Transformers.
    """
    heads = config["num_attention_heads"]
    if ".attn_k." in name:
        heads = config.get("num_key_value_heads") or heads
    elif ".attn_q." not in name:
        return tensor
    halves = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
    return halves.swapaxes(1, 2).reshape(tensor.shape).contiguous()


def _add_tokenizer(writer: Any, folder: Path, embedding_count: int) -> None:
    """Add the tokens, merges, special tokens and chat template of a Hugging Face folder to a GGUF file.

    `embedding_count` is the number of embeddings. Embeddings without a token are marked as unused.
    """
    from gguf import TokenType

    data, settings = _read_tokenizer(folder), read_json(folder / "tokenizer_config.json")
    texts, kinds = dict[int, str](), dict[int, TokenType]()
    for text, number in data["model"]["vocab"].items():
        texts[number], kinds[number] = text, TokenType.NORMAL
    for token in data.get("added_tokens", ()):
        texts[token["id"]] = token["content"]
        kinds[token["id"]] = TokenType.CONTROL if token.get("special") else TokenType.USER_DEFINED
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(_pre_tokenizer_name(data))
    writer.add_token_list([texts.get(number, f"[PAD{number}]") for number in range(embedding_count)])
    writer.add_token_types([kinds.get(number, TokenType.UNUSED) for number in range(embedding_count)])
    if merges := data["model"]["merges"]:
        writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    else:
        # GGUF cannot store an empty list, so scores replace merges: readers then derive merges (none).
        writer.add_token_scores([0.0] * embedding_count)
    numbers = {text: number for number, text in texts.items()}
    adders = {"bos": writer.add_bos_token_id, "eos": writer.add_eos_token_id, "pad": writer.add_pad_token_id}
    for name, add_token_id in adders.items():
        special = settings.get(f"{name}_token")
        text = special.get("content") if isinstance(special, dict) else special
        if isinstance(text, str) and text in numbers:
            add_token_id(numbers[text])
    # The chat template writes the first token of a text itself, so readers must not add it.
    writer.add_add_bos_token(False)
    template = folder / "chat_template.jinja"
    chat_template = template.read_text() if template.is_file() else settings.get("chat_template")
    if isinstance(chat_template, str):
        writer.add_chat_template(chat_template)


def _read_tokenizer(folder: Path) -> dict[str, Any]:
    """Return the content of the tokenizer.json in `folder`.

    Raises:
        ValueError: if the tokenizer is no byte-level BPE.
    """
    file = folder / "tokenizer.json"
    data = read_json(file) if file.is_file() else {}
    kind = data.get("model", {}).get("type", "none")
    if kind != "BPE" or data.get("normalizer") or data["model"].get("byte_fallback"):
        hint = " (a tiny model: vocabulary: bytes)" if kind == "WordLevel" else ""
        raise ValueError(f"--gguf: a tokenizer of type {kind} is not supported; choices: byte-level BPE{hint}")
    return data


def _pre_tokenizer_name(tokenizer: Mapping[str, Any]) -> str:
    """Return llama.cpp's name for the pre-tokenizer of `tokenizer` (a tokenizer.json), which splits a text into words.

    Raises:
        ValueError: if llama.cpp's name for the pre-tokenizer is not known here.
    """
    pre = tokenizer.get("pre_tokenizer") or {}
    steps = pre["pretokenizers"] if pre.get("type") == "Sequence" else [pre]
    match [(step.get("type"), step) for step in steps]:
        case [("ByteLevel", {"use_regex": True, "add_prefix_space": False})]:
            return "gpt-2"
        case [("ByteLevel", {"add_prefix_space": False})] if not tokenizer["model"]["merges"]:
            # Without merges, every way to split a text gives the same tokens.
            return "gpt-2"
        case [("Digits", {"individual_digits": True}), ("ByteLevel", {"use_regex": True, "add_prefix_space": False})]:
            return "smollm"
        case [("Split", {"pattern": {"Regex": pattern}}), ("ByteLevel", {"use_regex": False})] if (
            pattern in _PRE_TOKENIZER_NAMES
        ):
            return _PRE_TOKENIZER_NAMES[pattern]
    raise ValueError(f"--gguf: llama.cpp's name for the pre-tokenizer {json.dumps(pre)[:200]} is not known here")
