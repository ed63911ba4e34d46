"""Facts of a model that are known without its weights: sizes, the tokens of a prompt, and bytes in memory."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marl.models.adapter import Adapter
from marl.models.hf_folder import gguf_of, is_gguf
from marl.models.pretrained import HeldModel, Pretrained
from marl.models.tiny import Tiny
from marl.protocols.memory import AdapterSize, ModelSize
from marl.runs.trained_model import Trained

if TYPE_CHECKING:
    from marl.protocols import ModelConfig
    from marl.types import Request

Shapes = Mapping[str, tuple[int, ...]]
"""Name of a weight -> its shape."""
Configs = Mapping[str, Path]
"""Path of a pretrained model, or "" for any -> the config.json to take where the model is not on this machine."""
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_SPECIAL = 4
"""Tokens of a tiny model's vocabulary beside its words."""
_NOT_LINEAR = re.compile(r"(^|\.)(embed\w*|wte|wpe|lm_head)$")


@dataclass(frozen=True)
class ModelFacts:
    """Facts of a model. None: unknown."""

    description: str
    weights: int | None
    """Number of weights; of an adapter, those of its base left out."""
    shared: int | None
    """Number of an adapter's base's weights; 0 without an adapter."""
    weight_bytes: int
    """Bytes of one weight."""
    size: ModelSize | None
    """Sizes on which memory depends, an adapter's included."""
    context: int | None
    """Most tokens of a prompt and its answer."""
    count: Callable[[Request], int] | None
    """Return the number of tokens of a request's prompt. Raises ValueError if the chat template refuses it."""


def facts_of(model: ModelConfig, texts: Collection[str], configs: Configs | None = None) -> ModelFacts:
    """Return the facts of a model whose policies read and write `texts`."""
    if isinstance(model, Adapter):
        return _adapter_facts(model, texts, configs)
    if isinstance(model, Tiny):
        return _tiny_facts(model, texts)
    file = config_of(model, configs)
    config = _config(file) if file else {}
    width = _BYTES[model.dtype] if isinstance(model, HeldModel) else 4
    shapes = _shapes(model, texts, configs)
    return ModelFacts(
        description=_description(model),
        weights=_size(shapes),
        shared=0,
        weight_bytes=width,
        size=_model_size(config, shapes, width),
        context=_context(config),
        count=_counter(file) if file else None,
    )


def _description(model: ModelConfig) -> str:
    match model:
        case Pretrained():
            return model.path
        case Trained():
            return f"{model.policy} of {model.run}"
    return model.kind


def _tiny_facts(model: Tiny, texts: Collection[str]) -> ModelFacts:
    width, shapes = _BYTES[model.dtype], _shapes(model, texts)
    config = {
        "num_hidden_layers": model.layers,
        "hidden_size": model.hidden,
        "intermediate_size": model.intermediate or 3 * model.hidden,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "vocab_size": _vocabulary(model, texts),
    }
    return ModelFacts(
        description=f"tiny {model.architecture}",
        weights=_size(shapes),
        shared=0,
        weight_bytes=width,
        size=_model_size(config, shapes, width),
        context=model.context,
        count=_tiny_counter(model, texts),
    )


def _adapter_facts(adapter: Adapter, texts: Collection[str], configs: Configs | None) -> ModelFacts:
    base, shapes = facts_of(adapter.base, texts, configs), _shapes(adapter.base, texts, configs)
    description = f"adapter of rank {adapter.rank} on {base.description}"
    if shapes is None:
        return replace(base, description=description, weights=None, shared=base.weights)
    layers = list(_adapted(adapter, shapes))
    weights = sum(adapter.rank * sum(shape) + (shape[0] if adapter.use_dora else 0) for shape in layers)
    adapter_size = AdapterSize(weights, adapter.rank, len(layers))
    size = base.size and replace(base.size, adapter=adapter_size)
    return replace(base, description=description, weights=weights, shared=base.weights, size=size)


def _adapted(adapter: Adapter, shapes: Shapes) -> Iterator[tuple[int, ...]]:
    """Yield the shape (outputs, inputs) of each layer that is adapted."""
    for name, shape in shapes.items():
        if len(shape) == 2 and _is_adapted(name.removesuffix(".weight"), adapter.targets):
            yield shape


def _is_adapted(layer: str, targets: str | tuple[str, ...]) -> bool:
    if targets == "all-linear":
        return not _NOT_LINEAR.search(layer)
    if isinstance(targets, str):
        return re.fullmatch(targets, layer) is not None
    return any(layer == target or layer.endswith(f".{target}") for target in targets)


def folder_of(model: ModelConfig) -> Path | None:
    """Return the folder of a model on this machine, the cache of the hub included; None if it is not there."""
    if isinstance(model, Trained):
        with suppress(ValueError):
            return model.folder(publishes=True)
    if not isinstance(model, Pretrained):
        return None
    folder = Path(model.path).expanduser()
    if folder.is_dir():
        return folder
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    with suppress(HFValidationError):  # no name on a hub
        cached = try_to_load_from_cache(model.path, "config.json")
        return Path(cached).parent if isinstance(cached, str) else None
    return None


def config_of(model: ModelConfig, configs: Configs | None = None) -> Path | None:
    """Return the config.json or the GGUF file of a model on this machine, or else what `configs` gives for it."""
    if folder := folder_of(model):
        with suppress(ValueError):  # several GGUF files, which the model's settings refuse
            return folder / ((isinstance(model, Pretrained) and model.gguf_file) or gguf_of(folder) or "config.json")
    known = configs or {}
    return known.get(model.path, known.get("")) if isinstance(model, Pretrained) else None


# --- shapes ----------------------------------------------------------------------------------------------------------


def _shapes(model: ModelConfig, texts: Collection[str], configs: Configs | None = None) -> Shapes | None:
    """Return the shapes of a model's weights; None if neither they nor its settings are on this machine."""
    if isinstance(model, Tiny):
        return dict(tiny_shapes(model, _vocabulary(model, texts)))
    folder, file = folder_of(model), config_of(model, configs)
    packed = file is not None and _is_packed(file)
    saved = _saved_shapes(folder) if folder and not packed else None
    if saved or file is None or not _config(file):
        return saved
    from marl.models.declared_shapes import declared_shapes

    return declared_shapes(file)


def tiny_shapes(model: Tiny, vocabulary: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the name and the shape of each weight of a tiny model."""
    hidden, inner = model.hidden, model.intermediate or 3 * model.hidden
    width = model.head_dim or hidden // model.heads
    queries, values = model.heads * width, (model.kv_heads or model.heads) * width
    yield "model.embed_tokens.weight", (vocabulary, hidden)
    for layer in (f"model.layers.{index}" for index in range(model.layers)):
        for name, rows in (("q_proj", queries), ("k_proj", values), ("v_proj", values)):
            yield f"{layer}.self_attn.{name}.weight", (rows, hidden)
        yield f"{layer}.self_attn.o_proj.weight", (hidden, queries)
        for name in ("q_norm", "k_norm") if model.architecture == "qwen3" else ():
            yield f"{layer}.self_attn.{name}.weight", (width,)
        for name in ("gate_proj", "up_proj"):
            yield f"{layer}.mlp.{name}.weight", (inner, hidden)
        yield f"{layer}.mlp.down_proj.weight", (hidden, inner)
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{layer}.{name}.weight", (hidden,)
    yield "model.norm.weight", (hidden,)
    if not model.tied:
        yield "lm_head.weight", (vocabulary, hidden)


def _size(shapes: Shapes | None) -> int | None:
    return None if shapes is None else sum(map(math.prod, shapes.values()))


def _saved_shapes(folder: Path) -> Shapes | None:
    """Return the shapes in the safetensors files of a folder, whose headers alone are read."""
    from safetensors import safe_open

    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="np") as file:
            shapes |= {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 (no mapping)
    return shapes or None


# --- a model's config.json -------------------------------------------------------------------------------------------


def _is_packed(file: Path) -> bool:
    """Return whether settings, weights and tokenizer are in one GGUF file."""
    return file.is_file() and is_gguf(file)


def _config(file: Path) -> Mapping[str, Any]:
    with suppress(OSError, ValueError, RecursionError):
        if _is_packed(file):
            from marl.models.declared_shapes import declared_settings

            return declared_settings(file).get_text_config().to_dict()
        match json.loads(file.read_text(encoding="utf-8")):
            case {"text_config": dict(config)} | dict(config):
                return config
    return {}


def _model_size(config: Mapping[str, Any], shapes: Shapes | None, width: int) -> ModelSize | None:
    match config:
        case {
            "num_hidden_layers": int(layers),
            "hidden_size": int(hidden),
            "num_attention_heads": int(heads),
            "vocab_size": int(vocabulary),
        } if shapes:
            head = config.get("head_dim") or hidden // heads
            return ModelSize(
                weights=_size(shapes) or 0,
                weight_bytes=width,
                layers=layers,
                hidden=hidden,
                inner=config.get("intermediate_size") or 4 * hidden,
                heads=heads,
                queries=heads * head,
                keys=(config.get("num_key_value_heads") or heads) * head,
                vocabulary=vocabulary,
                head_norms=any(name.endswith("q_norm.weight") for name in shapes),
            )
    return None


def _context(config: Mapping[str, Any]) -> int | None:
    context = config.get("max_position_embeddings")
    return context if isinstance(context, int) else None


# --- tokens ----------------------------------------------------------------------------------------------------------


def _vocabulary(model: Tiny, texts: Collection[str]) -> int:
    if model.vocabulary == "bytes":
        return 256 + _SPECIAL - 1
    from marl.models.word_tokenizer import words_of

    return _SPECIAL + len(words_of({*texts, *(model.words or ())}))


def _tiny_counter(model: Tiny, texts: Collection[str]) -> Callable[[Request], int]:
    """Return a count of the tokens that a tiny model reads: those of its contents, and a mark of the answer."""
    if model.vocabulary == "bytes":
        return lambda request: len(_contents(request).encode()) + 1
    from marl.models.word_tokenizer import word_tokenizer

    tokenizer = word_tokenizer({*texts, *(model.words or ())}, ["?"], "?")
    return lambda request: len(tokenizer.encode(_contents(request))) + 1


def _contents(request: Request) -> str:
    return "\n".join(message.content for message in request.messages if message.content)


def _counter(file: Path) -> Callable[[Request], int] | None:
    """Return a count of tokens by the tokenizer in a GGUF file, or else beside a config.json, and its chat template;
    None if there is none."""
    folder = file.parent
    packed: dict[str, Any] = {"gguf_file": file.name} if _is_packed(file) else {}
    if not packed and not (folder / "tokenizer.json").is_file():
        return None
    from transformers import PreTrainedTokenizerFast  # which, unlike AutoTokenizer, imports no torch
    from transformers.utils import logging

    from marl.models.chat_template import ChatTokenizer

    logging.set_verbosity_error()
    chat = ChatTokenizer(PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True, **packed), frozenset())
    return lambda request: len(chat.prompt(request).ids)
