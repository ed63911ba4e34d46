"""Attention over packed sequences: masks, FlexAttention on a GPU, and whether a model can read them.

FlexAttention skips masked blocks, so a packed sequence costs no more than its texts. Here U = sequences, S = their
width, Q = blocks of a sequence.
"""

import inspect
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.modeling_layers import GradientCheckpointingLayer

from marl.models.sharding import is_sharded

ATTENTION_NAME = "marl_packed"
BLOCK_SIZE = 128
_CACHED = {DynamicLayer, DynamicSlidingWindowLayer}
"""Layers whose memory is the keys and values of single tokens."""
_UNSUPPORTED = ("chunked_attention", "dynamic", "longrope")
"""Layers that see less than a mask over all keys would show, and positions that depend on the text's length."""
_OTHER_HEADS = ("summary_", "classifier_")
"""Prefixes of settings that concern heads which a language model does not have."""
_INPUTS = {"input_ids", "attention_mask", "position_ids", "use_cache"}
_MASKED = {"sdpa", "eager", ATTENTION_NAME}
"""Implementations of attention that accept a mask over pairs of tokens."""


@cache
def _compiled() -> Any:
    """Return the kernel, compiled once for all lengths; on first use, because the compiler takes seconds to import."""
    return torch.compile(flex_attention, dynamic=True)


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **more: Any
) -> tuple[Tensor, None]:
    """Return the attention of one layer: FlexAttention if the mask is one of blocks, else SDPA."""
    if not isinstance(attention_mask, BlockMask):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **more)
    # Autocast does not know FlexAttention: positions are turned in float32, values come out of a product.
    query, key = query.to(value.dtype), key.to(value.dtype)
    run = _compiled() if query.is_cuda else flex_attention
    grouped, scale = query.shape[1] != key.shape[1], more.get("scaling")
    output = run(query, key, value, block_mask=attention_mask, scale=scale, enable_gqa=grouped)
    return output.transpose(1, 2).contiguous(), None


AttentionInterface.register(ATTENTION_NAME, _attend)
AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)


@dataclass(frozen=True, slots=True)
class PrefixForest:
    """Visibility in packed sequences: token i sees j if and only if j <= i < last[j]."""

    depths_US: Tensor
    """Each token's position in its text."""
    ends_US: Tensor


def attention_masks(model: Any, forest: PrefixForest) -> Any:
    """Return the attention mask to give to the model, or one for each type of layer that it has."""
    settings = _settings(model)
    window = settings.get("sliding_window")
    kinds = set(settings.get("layer_types") or (["full_attention"] if window is None else ["sliding_attention"]))
    if (sparse := skips_blocks(model)) and model.config._attn_implementation != ATTENTION_NAME:
        model.set_attn_implementation(ATTENTION_NAME)
    masks: dict[str, Any] = {}
    for kind in sorted(kinds):
        seen = window if kind == "sliding_attention" else None
        masks[kind] = block_mask(forest, seen) if sparse else _additive_mask(forest, seen, model.dtype)
    return masks if len(masks) > 1 else masks.popitem()[1]


def _additive_mask(forest: PrefixForest, window: int | None, dtype: torch.dtype) -> Tensor:
    """Return [U, 1, S, S], 0 where a token sees another. (Boolean masks would be converted in every layer.)"""
    depths_US, last_US = forest.depths_US.int(), forest.ends_US
    here_S = torch.arange(last_US.shape[1], device=last_US.device)
    hidden_USS = here_S[:, None] >= last_US[:, None]
    hidden_USS |= here_S[:, None] < here_S
    if window is not None:
        hidden_USS |= depths_US[:, :, None] - depths_US[:, None] >= window
    mask_USS = torch.zeros(hidden_USS.shape, dtype=dtype, device=hidden_USS.device)
    return mask_USS.masked_fill_(hidden_USS, torch.finfo(dtype).min)[:, None]


def block_mask(forest: PrefixForest, window: int | None = None, block: int = BLOCK_SIZE) -> BlockMask:
    """Return the mask made from two numbers a block, never as a table of all pairs.

    A token of block q sees one of an earlier block k if and only if a token of k is continued by q's first one; all
    see all if every token of k is continued beyond q's last one. `window` is the tokens that one sees, itself included.
    """
    depths_US, last_US = forest.depths_US, forest.ends_US
    sequences, width = last_US.shape
    blocks = torch.arange(width // block, device=last_US.device)
    last_UQB, depths_UQB = (table_US.view(sequences, -1, block) for table_US in (last_US, depths_US))
    earlier_QQ = blocks[:, None] > blocks
    some_UQQ = earlier_QQ & (last_UQB.amax(2)[:, None] > (blocks * block)[:, None])
    full_UQQ = earlier_QQ & (last_UQB.amin(2)[:, None] >= (blocks * block + block)[:, None])
    if window is not None:
        least_UQ, most_UQ = depths_UQB.amin(2), depths_UQB.amax(2)
        some_UQQ &= least_UQ[:, :, None] - most_UQ[:, None] < window
        full_UQQ &= most_UQ[:, :, None] - least_UQ[:, None] < window

    def sees(sequence: Tensor, _: Tensor, query: Tensor, key: Tensor) -> Tensor:
        seen = (key <= query) & (query < last_US[sequence, key])
        return seen if window is None else seen & (depths_US[sequence, query] - depths_US[sequence, key] < window)

    part_UQQ = (some_UQQ & ~full_UQQ) | torch.eye(len(blocks), dtype=torch.bool, device=last_US.device)
    return BlockMask.from_kv_blocks(
        *_block_lists(part_UQQ), *_block_lists(full_UQQ), BLOCK_SIZE=block, mask_mod=sees, seq_lengths=(width, width)
    )


def _block_lists(chosen_UQQ: Tensor) -> tuple[Tensor, Tensor]:
    """Return, for each query block, the number of attended key blocks, and all blocks, the attended ones first."""
    order_UQQ = chosen_UQQ.int().argsort(dim=2, descending=True, stable=True)
    return chosen_UQQ.sum(2)[:, None].int(), order_UQQ[:, None].int().contiguous()


def skips_blocks(model: Any) -> bool:
    """Return True if attention may skip masked blocks: FlexAttention, without dropout, in place of SDPA on a GPU."""
    kind = model.config._attn_implementation
    return kind == ATTENTION_NAME or (
        kind == "sdpa" and next(model.parameters()).is_cuda and model._supports_flex_attn and not has_dropout(model)
    )


def packing_obstacle(model: Any) -> str:
    """Return the model's obstacle to packed sequences, or "" if it can read them.

    It can if its only memory is the keys and values of all tokens, which depend neither on what follows nor on the
    length of a text.
    """
    absent = _INPUTS - inspect.signature(model.forward).parameters.keys()
    settings = _settings(model)
    kinds = f"{settings.get('layer_types')} {settings.get('rope_parameters')}"
    odd = [word for word in _UNSUPPORTED if word in kinds]
    layers = {type(layer) for layer in DynamicCache(config=model.config).layers} - _CACHED
    if absent:
        return f"its forward takes no {', '.join(sorted(absent))}"
    if odd or layers or model._is_stateful:
        return f"it remembers in a way of its own ({', '.join([*odd, *(t.__name__ for t in layers)]) or 'a state'})"
    kind = model.config._attn_implementation
    return "" if kind in _MASKED else f"its attention is {kind!r}, known are {sorted(_MASKED)}"


def mask_bytes_per_pair(model: Any) -> float:
    """Return the memory of one pair of tokens in the masks of packed sequences without FlexAttention, and while they
    are made; with eager attention, in every layer's weights as well."""
    settings, config = _settings(model), model.config.get_text_config(decoder=True)
    kinds, size = len(set(settings.get("layer_types") or ["full_attention"])), model.dtype.itemsize
    made = 2 if settings.get("sliding_window") is None else 6  # truth values, and a distance in 32 bits
    eager = model.config._attn_implementation == "eager"
    weights = 2 * size * config.num_hidden_layers * config.num_attention_heads if eager else 0
    return kinds * size + made + weights


def supports_kv_cache(model: Any) -> bool:
    """Return whether keys and values can be kept from one pass to the next: not by layers that are recomputed, nor by
    sharded ones, which run once before each backward pass."""
    if is_sharded(model):
        return False
    layers = (module for module in model.modules() if isinstance(module, GradientCheckpointingLayer))
    return "past_key_values" in inspect.signature(model.forward).parameters and not (
        model.training and any(layer.gradient_checkpointing for layer in layers)
    )


def has_dropout(model: Any) -> bool:
    """Return True if training is random. A shared prompt would have one dropout mask instead of one for each row."""
    modules = any(isinstance(module, nn.Dropout) and module.p > 0 for module in model.modules())
    named = {name: value for name, value in _settings(model).items() if not name.startswith(_OTHER_HEADS)}
    return modules or any("drop" in name and value for name, value in named.items())


def _settings(model: Any) -> dict[str, Any]:
    return model.config.get_text_config(decoder=True).to_dict()
