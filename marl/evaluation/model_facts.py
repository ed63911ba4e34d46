"""Facts of a model that need no weights in memory: sizes, numbers of prompt tokens, and bytes per weight."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors import safe_open

from marl.core.types import Request
from marl.models.adapter import Adapter
from marl.models.hf_folder import gguf_of, is_gguf
from marl.models.pretrained import Pretrained, TransformersModelConfig
from marl.models.tiny import Tiny
from marl.protocols import ModelConfig
from marl.protocols.memory_estimates import AdapterSize, ModelSize
from marl.runs.trained_model import Trained

Shapes = Mapping[str, tuple[int, ...]]
"""Name of a weight -> its shape."""
Configs = Mapping[str, Path]
"""Path of a pretrained model (or "" for any model) -> config.json to read if the model is not on this machine."""
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_SPECIAL = 4
"""Number of special tokens in a tiny model's vocabulary of words."""
_NOT_LINEAR = re.compile(r"(^|\.)(embed\w*|wte|wpe|lm_head)$")


@dataclass(frozen=True)
class ModelFacts:
    """Facts of a model; None stands for an unknown fact."""

    description: str
    weights: int | None
    """Number of weights; for an adapter, without the weights of its base model."""
    shared: int | None
    """Number of weights of an adapter's base model; 0 for a model without an adapter."""
    weight_bytes: int
    """Size of one weight [bytes]."""
    size: ModelSize | None
    """Dimensions for the estimate of memory, including the adapter's."""
    context: int | None
    """Maximum length of a prompt and its answer together [tokens]."""
    count: Callable[[Request], int] | None
    """Return the number of tokens of a request's prompt; raise ValueError if the chat template refuses the prompt."""


def facts_of(model: ModelConfig, texts: Collection[str], configs: Configs | None = None) -> ModelFacts:
    """Return the facts of a model. A tiny model's vocabulary is built from `texts`, the texts of its policies."""
    if isinstance(model, Adapter):
        return _adapter_facts(model, texts, configs)
    if isinstance(model, Tiny):
        return _tiny_facts(model, texts)
    file = config_of(model, configs)
    config = _config(file) if file else {}
    width = _BYTES[model.dtype] if isinstance(model, TransformersModelConfig) else 4
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
    """Yield the shape (outputs, inputs) of each layer with an adapter."""
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
    """Return the folder of a model on this machine or in the hub's cache, or None if the model is not here."""
    if isinstance(model, Trained):
        with suppress(ValueError):
            return model.folder(publishes=True)
    if not isinstance(model, Pretrained):
        return None
    folder = Path(model.path).expanduser()
    if folder.is_dir():
        return folder
    from marl.models.hub import cached_folder  # takes long to import

    return cached_folder(model.path)


def config_of(model: ModelConfig, configs: Configs | None = None) -> Path | None:
    """Return the config.json or GGUF file of a model on this machine, or else its entry in `configs`."""
    if folder := folder_of(model):
        with suppress(ValueError):  # several GGUF files, which the model's settings refuse
            return folder / ((isinstance(model, Pretrained) and model.gguf_file) or gguf_of(folder) or "config.json")
    known = configs or {}
    return known.get(model.path, known.get("")) if isinstance(model, Pretrained) else None


# --- shapes ----------------------------------------------------------------------------------------------------------


def _shapes(model: ModelConfig, texts: Collection[str], configs: Configs | None = None) -> Shapes | None:
    """Return the shapes of a model's weights, or None if neither weights nor settings are on this machine."""
    if isinstance(model, Tiny):
        return dict(tiny_shapes(model, _vocabulary(model, texts)))
    folder, file = folder_of(model), config_of(model, configs)
    packed = file is not None and _is_packed(file)
    saved = _saved_shapes(folder) if folder and not packed else None
    if saved or file is None or not _config(file):
        return saved
    # The import loads torch, so it happens only where no shapes are saved.
    from marl.models.config_shapes import parameter_shapes

    return parameter_shapes(file)


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
    """Return the shapes from the headers of a folder's safetensors files, or None if there are no such files."""
    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="np") as file:
            shapes |= {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 (no mapping)
    return shapes or None


# --- a model's config.json -------------------------------------------------------------------------------------------


def _is_packed(file: Path) -> bool:
    """Return True for a GGUF file, which holds settings, weights and tokenizer together."""
    return file.is_file() and is_gguf(file)


def _config(file: Path) -> Mapping[str, Any]:
    """Return the settings of a model's text part, empty if they cannot be read."""
    with suppress(OSError, ValueError, RecursionError):
        if _is_packed(file):
            from marl.models.config_shapes import load_config

            return load_config(file).get_text_config().to_dict()
        match json.loads(file.read_text(encoding="utf-8")):
            case {"text_config": dict(config)} | dict(config):
                return config
    return {}


def _model_size(config: Mapping[str, Any], shapes: Shapes | None, width: int) -> ModelSize | None:
    """Return the dimensions of a transformer, or None if `config` lacks one of them or `shapes` are unknown."""
    match config:
        case {
            "num_hidden_layers": int(layers),
            "hidden_size": int(hidden),
            "num_attention_heads": int(heads),
            "vocab_size": int(vocabulary),
        } if shapes:
            head = config.get("head_dim") or hidden // heads
            return ModelSize(
                parameters=_size(shapes) or 0,
                weight_bytes=width,
                layers=layers,
                hidden_size=hidden,
                intermediate_size=config.get("intermediate_size") or 4 * hidden,
                heads=heads,
                query_size=heads * head,
                key_size=(config.get("num_key_value_heads") or heads) * head,
                vocabulary=vocabulary,
                has_qk_norm=any(name.endswith("q_norm.weight") for name in shapes),
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
    """Return a counter of a tiny model's prompt tokens: its messages' contents and one answer mark."""
    if model.vocabulary == "bytes":
        return lambda request: len(_contents(request).encode()) + 1
    from marl.models.word_tokenizer import word_tokenizer

    tokenizer = word_tokenizer({*texts, *(model.words or ())}, ["?"], "?")
    return lambda request: len(tokenizer.encode(_contents(request))) + 1


def _contents(request: Request) -> str:
    return "\n".join(message.content for message in request.messages if message.content)


def _counter(file: Path) -> Callable[[Request], int] | None:
    """Return a counter of prompt tokens with the model's tokenizer and chat template, or None without a tokenizer.

    The tokenizer is in the GGUF file, or beside the config.json.
    """
    gguf_file = file.name if _is_packed(file) else None
    if not gguf_file and not (file.parent / "tokenizer.json").is_file():
        return None
    from marl.models.tokenizer_files import load_chat_tokenizer  # loads transformers, without torch

    chat = load_chat_tokenizer(file.parent, gguf_file)
    return lambda request: len(chat.prompt(request).ids)
