"""Attention in float32 of queries, keys and values in half precision, on processors.

There attention of short texts takes up to twice as long in bfloat16, and of wide packed sequences as long
(tests/bench/results/wide_attention.json). What is kept for the backward pass remains in half precision.
Shape suffixes: N = sequences, H = heads of queries, K = heads of keys, Q, L = tokens of queries, keys, D = width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from marl.models.half_precision import HALVES

NAME = "marl_wide"
_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_GRADIENTS = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def attend_in_float32(model: Any) -> None:
    """Let a model in half precision that attends by SDPA on a processor do so here."""
    if model.device.type == "cpu" and model.dtype in HALVES and model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(NAME)


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **more: Any
) -> tuple[Tensor, None]:
    """Return [N, Q, H, D]; what is neither plain causal attention nor attention with a mask is left to SDPA."""
    causal = attention_mask is None and query.shape[2] == key.shape[2]
    additive = attention_mask is not None and attention_mask.is_floating_point() and attention_mask.shape[1] == 1
    plain = not more.get("dropout") and query.shape[3] == value.shape[3] and value.dtype in HALVES
    if not plain or not (causal or additive):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **more)
    query, key = query.to(value.dtype), key.to(value.dtype)  # positions were turned in float32
    output: Any = WideAttention.apply(query, key, value, attention_mask, more.get("scaling"))
    return output.transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, _attend)
AttentionMaskInterface.register(NAME, sdpa_mask)


class WideAttention(torch.autograd.Function):
    """Attention [N, H, Q, D] with an additive mask, or causal attention; groups of heads may share keys and values.

    With a mask, the queries that share keys stand in the place of one head's, so that keys are not repeated.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None
    ) -> Tensor:
        wide, wide_mask = _widened(query, key, value, mask)
        output, logsumexp = _ATTENTION(*wide, 0.0, mask is None, attn_mask=wide_mask, scale=scale)
        output = output.to(value.dtype).reshape(query.shape)
        ctx.save_for_backward(query, key, value, output, logsumexp, mask)
        ctx.scale = scale
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, output, logsumexp, mask = ctx.saved_tensors
        wide, wide_mask = _widened(query, key, value, mask)
        grad, output = (x_NHQD.reshape(wide[0].shape).float() for x_NHQD in (grads[0], output))
        gradients = _GRADIENTS(grad, *wide, output, logsumexp, 0.0, mask is None, attn_mask=wide_mask, scale=ctx.scale)
        summed = (grad.unflatten(1, (key.shape[1], -1)).sum(2).to(key.dtype) for grad in gradients[1:])
        return (gradients[0].reshape(query.shape).to(query.dtype), *summed, None, None)


def _widened(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor | None]:
    """Return all in float32, with as many heads of queries as of keys: the latter repeated where there is no mask.

    Heads of queries that share keys are neighbours. Causal attention, which skips half of the pairs, knows no others.
    """
    rows, heads, new, width = query.shape
    sharing = heads // key.shape[1]
    if mask is None:
        repeated = (x_NKLD.float().repeat_interleave(sharing, 1) for x_NKLD in (key, value))
        return (query.float(), *repeated), None
    query_NKMD = query.reshape(rows, key.shape[1], sharing * new, width)
    return (query_NKMD.float(), key.float(), value.float()), mask.float().repeat(1, 1, sharing, 1)
