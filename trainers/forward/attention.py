"""Attention over packed sequences: masks, FlexAttention on a GPU, and the models that can read packed sequences.

FlexAttention skips masked blocks, so a packed sequence takes no more time than its texts alone. Here U = sequences,
S = their width, Q = blocks of a sequence.
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
_SUPPORTED_CACHE_LAYERS = {DynamicLayer, DynamicSlidingWindowLayer}
"""Classes of cache layers that store only keys and values, one of each per token."""
_UNSUPPORTED = ("chunked_attention", "dynamic", "longrope")
"""Words in the settings of unsupported models: chunked attention, and rotary positions that depend on the length."""
_OTHER_HEADS = ("summary_", "classifier_")
"""Prefixes of settings of classification heads, which a language model does not have."""
_REQUIRED_FORWARD_ARGUMENTS = {"input_ids", "attention_mask", "position_ids", "use_cache"}
_MASKABLE_IMPLEMENTATIONS = {"sdpa", "eager", ATTENTION_NAME}
"""Names of attention implementations that accept a mask over pairs of tokens."""


@cache
def _compiled_flex_attention() -> Any:
    """Return FlexAttention compiled for sequences of any length. Compilation waits for the first use, because the
    compiler takes seconds to import."""
    return torch.compile(flex_attention, dynamic=True)


def _flex_or_sdpa_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **more: Any
) -> tuple[Tensor, None]:
    """Return the attention output of one layer: by FlexAttention for a block mask, else by SDPA."""
    if not isinstance(attention_mask, BlockMask):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **more)
    # Under autocast, rotary embeddings return float32 queries and keys, but FlexAttention needs the values' dtype.
    query, key = query.to(value.dtype), key.to(value.dtype)
    attend = _compiled_flex_attention() if query.is_cuda else flex_attention
    is_grouped, scale = query.shape[1] != key.shape[1], more.get("scaling")
    output = attend(query, key, value, block_mask=attention_mask, scale=scale, enable_gqa=is_grouped)
    return output.transpose(1, 2).contiguous(), None


AttentionInterface.register(ATTENTION_NAME, _flex_or_sdpa_attention)
AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)


@dataclass(frozen=True, slots=True)
class PrefixForest:
    """Visibility in packed sequences: token i sees token j if and only if j <= i < ends[j]."""

    depths_US: Tensor
    """Each token's position in its text."""
    ends_US: Tensor
    """Exclusive end of each token's continuations, as an index in the sequence."""


def attention_masks(model: Any, forest: PrefixForest) -> Any:
    """Return the model's attention mask over packed sequences, or one mask for each type of attention layer."""
    settings = model.config.get_text_config(decoder=True).to_dict()
    window = settings.get("sliding_window")
    kinds = set(settings.get("layer_types") or (["full_attention"] if window is None else ["sliding_attention"]))
    if (sparse := can_skip_masked_blocks(model)) and model.config._attn_implementation != ATTENTION_NAME:
        model.set_attn_implementation(ATTENTION_NAME)
    masks: dict[str, Any] = {}
    for kind in sorted(kinds):
        seen = window if kind == "sliding_attention" else None
        masks[kind] = block_mask(forest, seen) if sparse else _additive_attention_mask(forest, seen, model.dtype)
    return masks if len(masks) > 1 else masks.popitem()[1]


def _additive_attention_mask(forest: PrefixForest, sliding_window: int | None, dtype: torch.dtype) -> Tensor:
    """Return [U, 1, S, S]: 0 where a token sees another, else the least number of `dtype`."""
    # The mask is additive, because SDPA would convert a boolean mask in every layer.
    depths_US, last_US = forest.depths_US.int(), forest.ends_US
    here_S = torch.arange(last_US.shape[1], device=last_US.device)
    hidden_USS = here_S[:, None] >= last_US[:, None]
    hidden_USS |= here_S[:, None] < here_S
    if sliding_window is not None:
        hidden_USS |= depths_US[:, :, None] - depths_US[:, None] >= sliding_window
    mask_USS = torch.zeros(hidden_USS.shape, dtype=dtype, device=hidden_USS.device)
    return mask_USS.masked_fill_(hidden_USS, torch.finfo(dtype).min)[:, None]


def block_mask(forest: PrefixForest, sliding_window: int | None = None, block_size: int = BLOCK_SIZE) -> BlockMask:
    """Return FlexAttention's mask of packed sequences, computed per block and never as a table of all pairs.

    Block q sees part of an earlier block k if a token of k is continued by q's first token, and all of k if every token
    of k is continued beyond q. `sliding_window`: number of tokens that a token sees in its text, itself included.
    """
    depths_US, last_US = forest.depths_US, forest.ends_US
    sequences, width = last_US.shape
    blocks = torch.arange(width // block_size, device=last_US.device)
    last_UQB, depths_UQB = last_US.view(sequences, -1, block_size), depths_US.view(sequences, -1, block_size)
    earlier_QQ = blocks[:, None] > blocks
    some_UQQ = earlier_QQ & (last_UQB.amax(2)[:, None] > (blocks * block_size)[:, None])
    full_UQQ = earlier_QQ & (last_UQB.amin(2)[:, None] >= (blocks * block_size + block_size)[:, None])
    if sliding_window is not None:
        min_UQ, max_UQ = depths_UQB.amin(2), depths_UQB.amax(2)
        some_UQQ &= min_UQ[:, :, None] - max_UQ[:, None] < sliding_window
        full_UQQ &= max_UQ[:, :, None] - min_UQ[:, None] < sliding_window

    def is_visible(sequence: Tensor, _: Tensor, query: Tensor, key: Tensor) -> Tensor:
        seen = (key <= query) & (query < last_US[sequence, key])
        if sliding_window is None:
            return seen
        return seen & (depths_US[sequence, query] - depths_US[sequence, key] < sliding_window)

    partial_UQQ = (some_UQQ & ~full_UQQ) | torch.eye(len(blocks), dtype=torch.bool, device=last_US.device)
    return BlockMask.from_kv_blocks(
        *_attended_block_counts_and_block_order(partial_UQQ),
        *_attended_block_counts_and_block_order(full_UQQ),
        BLOCK_SIZE=block_size,
        mask_mod=is_visible,
        seq_lengths=(width, width),
    )


def _attended_block_counts_and_block_order(chosen_UQQ: Tensor) -> tuple[Tensor, Tensor]:
    """Return, for each query block, the number of attended key blocks, and all key blocks, attended ones first."""
    order_UQQ = chosen_UQQ.int().argsort(dim=2, descending=True, stable=True)
    return chosen_UQQ.sum(2)[:, None].int(), order_UQQ[:, None].int().contiguous()


def can_skip_masked_blocks(model: Any) -> bool:
    """Return True if FlexAttention, which skips masked blocks, can replace the model's attention: SDPA on a GPU."""
    kind = model.config._attn_implementation
    return kind == ATTENTION_NAME or (
        kind == "sdpa" and next(model.parameters()).is_cuda and model._supports_flex_attn and not has_dropout(model)
    )


def reason_packing_is_unsupported(model: Any) -> str:
    """Return the reason why the model cannot read packed sequences, or "" if it can.

    A model can read them if its only state is keys and values that depend neither on later tokens nor on a text's
    length.
    """
    absent = _REQUIRED_FORWARD_ARGUMENTS - inspect.signature(model.forward).parameters.keys()
    settings = model.config.get_text_config(decoder=True).to_dict()
    kinds = f"{settings.get('layer_types')} {settings.get('rope_parameters')}"
    odd = [word for word in _UNSUPPORTED if word in kinds]
    layers = {type(layer) for layer in DynamicCache(config=model.config).layers} - _SUPPORTED_CACHE_LAYERS
    if absent:
        return f"its forward takes no {', '.join(sorted(absent))}"
    if odd or layers or model._is_stateful:
        odd += [layer.__name__ for layer in layers]
        return f"it remembers in a way of its own ({', '.join(odd) or 'a state'})"
    kind = model.config._attn_implementation
    return (
        ""
        if kind in _MASKABLE_IMPLEMENTATIONS
        else f"its attention is {kind!r}, known are {sorted(_MASKABLE_IMPLEMENTATIONS)}"
    )


def mask_bytes_per_pair(model: Any) -> float:
    """Return the bytes per pair of tokens of the additive masks of packed sequences, temporary tensors included.

    Eager attention also has a table of attention weights for each head of every layer.
    """
    config = model.config.get_text_config(decoder=True)
    settings = config.to_dict()
    kinds, size = len(set(settings.get("layer_types") or ["full_attention"])), model.dtype.itemsize
    # Temporary bytes per token pair: two booleans and, with a sliding window, a 32-bit distance.
    temporary = 2 if settings.get("sliding_window") is None else 6
    is_eager = model.config._attn_implementation == "eager"
    weights = 2 * size * config.num_hidden_layers * config.num_attention_heads if is_eager else 0
    return kinds * size + temporary + weights


def supports_kv_cache(model: Any) -> bool:
    """Return True if the model can pass keys and values from one forward pass to the next.

    Layers with gradient checkpointing cannot, nor can sharded layers, which may run only once before a backward pass.
    """
    if is_sharded(model) or "past_key_values" not in inspect.signature(model.forward).parameters:
        return False
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer) and module.gradient_checkpointing and model.training:
            return False
    return True


def has_dropout(model: Any) -> bool:
    """Return True if the model in training mode has dropout, in a module or by its settings."""
    if any(isinstance(module, nn.Dropout) and module.p > 0 for module in model.modules()):
        return True
    for name, value in model.config.get_text_config(decoder=True).to_dict().items():
        if "drop" in name and value and not name.startswith(_OTHER_HEADS):
            return True
    return False
