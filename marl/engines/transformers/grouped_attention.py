"""Attention of one new token per row, where query heads in a group read shared keys without copying them.

Transformers repeats shared keys and values before masked attention, in every layer and for every token.
Shape suffixes: N = rows, K = key heads, G = query heads per key head, D = width.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "marl_grouped"


def use_grouped_attention(model: Any) -> None:
    """Switch a model with SDPA attention to grouped attention. Other attention implementations stay."""
    if model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(NAME)


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **more: Any
) -> tuple[Tensor, None]:
    """Return attention outputs [rows, tokens, query heads, D]. Parameters are those of Transformers' interface."""
    rows, heads, new, width = query.shape
    shared = heads // key.shape[1]
    if new > 1 or shared == 1 or attention_mask is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **more)
    # With a single new token, the query heads of a group can take the dimension of tokens.
    query_NKGD = query.view(rows, key.shape[1], shared, width)
    output_NKGD = functional.scaled_dot_product_attention(
        query_NKGD, key, value, attn_mask=attention_mask, scale=more.get("scaling")
    )
    return output_NKGD.reshape(rows, 1, heads, -1), None


AttentionInterface.register(NAME, _attend)
AttentionMaskInterface.register(NAME, sdpa_mask)
