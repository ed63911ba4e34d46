"""Facts of a model that need no weights in memory: sizes, numbers of prompt tokens, and bytes per weight."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marl.core.types import Request
from marl.models.adapter import Adapter, target_layer_error
from marl.models.adapter_targets import EMBEDDING_OR_HEAD_NAME
from marl.models.hf_folder import find_gguf, is_gguf, saved_weight_shapes
from marl.models.pretrained import Pretrained, TransformersModelConfig
from marl.models.tiny import Tiny, tiny_model_weight_shapes
from marl.protocols import ModelConfig
from marl.protocols.memory_estimates import AdapterSize, ModelSize
from marl.runs.trained_model import Trained
from marl.text.linear_patterns import compile_pattern

if TYPE_CHECKING:
    from marl.models.chat_template import ChatTokenizer

WeightShapes = Mapping[str, tuple[int, ...]]
"""Name of a weight -> its shape."""
ModelConfigFiles = Mapping[str, Path]
"""Path of a pretrained model (or "" for any model) -> config.json to read if the model is not on this machine."""
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_SPECIAL_TOKEN_COUNT = 4
"""Number of special tokens in a tiny model's vocabulary of words."""


@dataclass(frozen=True)
class ModelFacts:
    """Facts of a model that are known without its weights. None stands for an unknown fact."""

    description: str
    """Text that names the model: its path, its policy and run, or its kind."""
    weights: int | None
    """Number of weights; for an adapter, without the weights of its base model."""
    base_weights: int | None
    """Number of weights of the base model of an adapter; 0 for a model that is no adapter."""
    weight_bytes: int
    """Size of one weight [bytes]."""
    size: ModelSize | None
    """Dimensions of the model and its adapter, for the estimate of memory."""
    context: int | None
    """Maximum length of a prompt and its answer together [tokens]."""
    count_prompt_tokens: Callable[[Request], int] | None
    """Function that counts a request's prompt tokens, and raises ValueError if the chat template refuses the prompt."""
    tool_continuation_fault: Callable[[], str] | None = None
    """Function that returns the reason why a prompt cannot continue an answer with a tool call, or ""."""
    vocabulary: Callable[[], Mapping[str, int]] | None = None
    """Function that returns token -> id. None also for tiny models, whose words are known when they are made."""
    target_error: str = ""
    """Error message about an adapter's `targets` that name no layer of its base, or ""."""


def known_model_facts(
    model: ModelConfig, texts_for_vocabulary: Collection[str], config_files: ModelConfigFiles | None = None
) -> ModelFacts:
    """Return the facts of a model.

    Args:
        model: settings of the model.
        texts_for_vocabulary: prompts and answers of its policies, from which a tiny model's vocabulary is built.
        config_files: config.json files to read for models that are not on this machine.
    """
    if isinstance(model, Adapter):
        return _adapter_model_facts(model, texts_for_vocabulary, config_files)
    if isinstance(model, Tiny):
        return _tiny_model_facts(model, texts_for_vocabulary)
    match model:
        case Pretrained():
            description = model.path
        case Trained():
            description = f"{model.policy} of {model.run}"
        case _:
            description = model.kind
    file = find_config_file(model, config_files)
    config = _read_config(file) if file else {}
    width = _BYTES[model.dtype] if isinstance(model, TransformersModelConfig) else 4
    shapes = _weight_shapes(model, texts_for_vocabulary, config_files)
    context = config.get("max_position_embeddings")
    chat = _chat_tokenizer(file) if file else None
    return ModelFacts(
        description=description,
        weights=_weight_count(shapes),
        base_weights=0,
        weight_bytes=width,
        size=_model_size(config, shapes, width),
        context=context if isinstance(context, int) else None,
        count_prompt_tokens=chat and (lambda request: len(chat.prompt(request).ids)),
        tool_continuation_fault=chat and partial(_tool_continuation_fault, chat),
        vocabulary=chat and chat.tokenizer.get_vocab,
    )


def _tiny_model_facts(model: Tiny, texts_for_vocabulary: Collection[str]) -> ModelFacts:
    """Return the facts of a tiny model with a vocabulary built from `texts_for_vocabulary`."""
    width, shapes = _BYTES[model.dtype], _weight_shapes(model, texts_for_vocabulary)
    # A tiny model's prompt consists of the messages' contents and one token that begins the answer.
    if model.vocabulary == "bytes":

        def count_tokens(request: Request) -> int:
            return len(_joined_contents(request).encode()) + 1
    else:
        from marl.models.word_tokenizer import make_word_tokenizer

        tokenizer = make_word_tokenizer({*texts_for_vocabulary, *(model.words or ())}, ["?"], "?")

        def count_tokens(request: Request) -> int:
            return len(tokenizer.encode(_joined_contents(request))) + 1

    config = {
        "num_hidden_layers": model.layers,
        "hidden_size": model.hidden,
        "intermediate_size": model.intermediate or 3 * model.hidden,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "vocab_size": _vocabulary_size(model, texts_for_vocabulary),
    }
    return ModelFacts(
        description=f"tiny {model.architecture}",
        weights=_weight_count(shapes),
        base_weights=0,
        weight_bytes=width,
        size=_model_size(config, shapes, width),
        context=model.context,
        count_prompt_tokens=count_tokens,
    )


def _adapter_model_facts(
    adapter: Adapter, texts_for_vocabulary: Collection[str], config_files: ModelConfigFiles | None
) -> ModelFacts:
    """Return the facts of an adapter, with the number of weights of its base model as `base_weights`."""
    base, shapes = (
        known_model_facts(adapter.base, texts_for_vocabulary, config_files),
        _weight_shapes(adapter.base, texts_for_vocabulary, config_files),
    )
    description = f"adapter of rank {adapter.rank} on {base.description}"
    if shapes is None:
        return replace(base, description=description, weights=None, base_weights=base.weights)
    weights = layers = 0
    for name, shape in shapes.items():
        layer = name.removesuffix(".weight")
        if adapter.targets == "all-linear":
            is_adapted = not EMBEDDING_OR_HEAD_NAME.search(layer)
        elif isinstance(adapter.targets, str):
            is_adapted = compile_pattern(adapter.targets).fullmatch(layer)
        else:
            is_adapted = any(f".{layer}".endswith(f".{target}") for target in adapter.targets)
        if is_adapted and len(shape) == 2:
            layers += 1
            # LoRA's factors A [rank, inputs] and B [outputs, rank], and DoRA's magnitude for each output.
            weights += adapter.rank * sum(shape) + (shape[0] if adapter.use_dora else 0)
    size = base.size and replace(base.size, adapter=AdapterSize(weights, adapter.rank, layers))
    config_file = find_config_file(adapter.base, config_files)
    return replace(
        base,
        description=description,
        weights=weights,
        base_weights=base.weights,
        size=size,
        target_error=target_layer_error(adapter.targets, shapes, config_file),
    )


def local_model_folder(model: ModelConfig) -> Path | None:
    """Return the folder of a model on this machine or in the hub's cache, or None if the model is not here."""
    if isinstance(model, Trained):
        with suppress(ValueError):
            return model.folder(is_language_model=True)
    if not isinstance(model, Pretrained):
        return None
    folder = Path(model.path).expanduser()
    if folder.is_dir():
        return folder
    from marl.models.hub import cached_hub_folder  # imported late, because the import takes long

    return cached_hub_folder(model.path)


def find_config_file(model: ModelConfig, config_files: ModelConfigFiles | None = None) -> Path | None:
    """Return the config.json or GGUF file of a model on this machine, or else its entry in `config_files`."""
    if folder := local_model_folder(model):
        # A folder with several GGUF files raises ValueError here, and is reported by the model's settings.
        with suppress(ValueError):
            return folder / ((isinstance(model, Pretrained) and model.gguf_file) or find_gguf(folder) or "config.json")
    known = config_files or {}
    return known.get(model.path, known.get("")) if isinstance(model, Pretrained) else None


def _weight_shapes(
    model: ModelConfig, texts_for_vocabulary: Collection[str], config_files: ModelConfigFiles | None = None
) -> WeightShapes | None:
    """Return the shapes of a model's weights, or None if neither weights nor settings are on this machine."""
    if isinstance(model, Tiny):
        return dict(tiny_model_weight_shapes(model, _vocabulary_size(model, texts_for_vocabulary)))
    folder, file = local_model_folder(model), find_config_file(model, config_files)
    shapes: dict[str, tuple[int, ...]] = {}
    if folder and not (file and _is_gguf_file(file)):
        shapes = saved_weight_shapes(folder)
    if shapes or file is None or not _read_config(file):
        return shapes or None
    # This import loads torch, so it is only made if no file gives the shapes.
    from marl.models.config_shapes import parameter_shapes

    return parameter_shapes(file)


def _weight_count(shapes: WeightShapes | None) -> int | None:
    """Return the number of weights of a model with these shapes, or None if they are unknown."""
    return None if shapes is None else sum(map(math.prod, shapes.values()))


def _is_gguf_file(file: Path) -> bool:
    """Return True for a GGUF file, which holds settings, weights and tokenizer together."""
    return file.is_file() and is_gguf(file)


def _read_config(file: Path) -> Mapping[str, Any]:
    """Return the settings of a model's text part, or an empty mapping if the settings cannot be read."""
    with suppress(OSError, ValueError, RecursionError):
        if _is_gguf_file(file):
            from marl.models.config_shapes import load_model_config

            return load_model_config(file).get_text_config().to_dict()
        match json.loads(file.read_text(encoding="utf-8")):
            case {"text_config": dict(config)} | dict(config):
                return config
    return {}


def _model_size(config: Mapping[str, Any], shapes: WeightShapes | None, width: int) -> ModelSize | None:
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
                parameters=_weight_count(shapes) or 0,
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


def _vocabulary_size(model: Tiny, texts_for_vocabulary: Collection[str]) -> int:
    """Return the number of tokens of a tiny model whose vocabulary is bytes or the words of `texts_for_vocabulary`."""
    if model.vocabulary == "bytes":
        return 256 + _SPECIAL_TOKEN_COUNT - 1
    from marl.models.word_tokenizer import sorted_tokens

    return _SPECIAL_TOKEN_COUNT + len(sorted_tokens({*texts_for_vocabulary, *(model.words or ())}))


def _joined_contents(request: Request) -> str:
    """Return the contents of a request's messages as one text."""
    return "\n".join(message.content for message in request.messages if message.content)


def _chat_tokenizer(file: Path) -> ChatTokenizer | None:
    """Return the tokenizer of a model with its chat template, or None without a file of the tokenizer.

    The tokenizer is in `file` itself (GGUF), or beside it (config.json).
    """
    gguf_file = file.name if _is_gguf_file(file) else None
    if not gguf_file and not (file.parent / "tokenizer.json").is_file():
        return None
    # Imported late, because it loads transformers (but not torch).
    from marl.models.tokenizer_files import load_chat_tokenizer

    return load_chat_tokenizer(file.parent, gguf_file)


def _tool_continuation_fault(chat: ChatTokenizer) -> str:
    """Return the reason why a prompt of `chat` cannot continue an answer with a tool call, or ""."""
    # Imported late, because it loads transformers (but not torch).
    from marl.models.tool_continuation import tool_continuation_fault

    return tool_continuation_fault(chat)
