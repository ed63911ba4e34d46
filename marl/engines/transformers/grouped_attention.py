"""Attention of one new token per row, where query heads in a group read shared keys without copying them.

Transformers repeats the shared keys and values before masked attention, in every layer and for every token.
Shape suffixes: N = rows, K = key heads, G = query heads per key head, D = width.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

GROUPED_ATTENTION_NAME = "marl_grouped"


def use_grouped_attention(model: Any) -> None:
    """Switch `model` to grouped attention if it uses SDPA; other attention implementations stay."""
    if model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(GROUPED_ATTENTION_NAME)


def _grouped_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **more: Any
) -> tuple[Tensor, None]:
    """Return attention outputs [rows, tokens, query heads, D]. Parameters are those of Transformers' interface."""
    rows, heads, new, width = query.shape
    shared = heads // key.shape[1]
    if new > 1 or shared == 1 or attention_mask is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **more)
    # With one new token, the query heads of a group take the token dimension, so that keys need not be repeated.
    query_NKGD = query.view(rows, key.shape[1], shared, width)
    output_NKGD = functional.scaled_dot_product_attention(
        query_NKGD, key, value, attn_mask=attention_mask, scale=more.get("scaling")
    )
    return output_NKGD.reshape(rows, 1, heads, -1), None


AttentionInterface.register(GROUPED_ATTENTION_NAME, _grouped_attention)
AttentionMaskInterface.register(GROUPED_ATTENTION_NAME, sdpa_mask)
