"""Attention in float32 of factors in bfloat16: values, gradients, and who computes so."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from marl.models.half_precision import in_mixed_precision
from trainers.forward.wide_attention import NAME, WideAttention, attend_in_float32


def factors() -> list[Tensor]:
    """Return queries of 6 heads, and keys and values of 2, of 3 sequences of 20 tokens, in bfloat16."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(3, heads, 20, 8, generator=generator).bfloat16() for heads in (6, 2, 2)]


def by_hand(factors: list[Tensor], mask: Tensor) -> list[Tensor]:
    """Return softmax(q k^T / 3 + mask) v and the gradients of a weighted sum of it, in float64."""
    q, k, v = (factor.double().requires_grad_() for factor in factors)
    keys, values = (torch.stack([x[:, head // 3] for head in range(6)], 1) for x in (k, v))
    output = ((q @ keys.transpose(2, 3)) / 3 + mask.double()).softmax(-1) @ values
    return [output.detach(), *torch.autograd.grad((output * weights()).sum(), [q, k, v])]


def weights() -> Tensor:
    return torch.linspace(-1, 1, 3 * 6 * 20 * 8).view(3, 6, 20, 8).bfloat16().double()


@pytest.mark.parametrize("causal", [True, False])
def test_values_and_gradients_are_exact_but_for_the_last_rounding(causal: bool) -> None:
    hidden = torch.ones(20, 20, dtype=torch.bool).triu(1)
    if not causal:
        hidden[10:, 3:7] = True  # a branch that others do not see
    lowest = torch.finfo(torch.bfloat16).min
    mask = torch.zeros(3, 1, 20, 20, dtype=torch.bfloat16).masked_fill_(hidden, lowest)
    leaves = [factor.requires_grad_() for factor in factors()]
    output = WideAttention.apply(*leaves, None if causal else mask, 1 / 3)
    assert isinstance(output, Tensor)
    found = [output.detach(), *torch.autograd.grad((output * weights().bfloat16()).sum(), leaves)]
    for each, expected in zip(found, by_hand(factors(), mask), strict=True):
        assert each.dtype == torch.bfloat16
        assert float((each.double() - expected).norm() / expected.norm()) < 0.003  # half of 2^-8, in the root mean


@pytest.mark.parametrize(("dtype", "expected"), [(torch.float32, "sdpa"), (torch.bfloat16, NAME)])
def test_models_in_float32_are_left_as_they_are(dtype: torch.dtype, expected: str) -> None:
    sizes = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    model = in_mixed_precision(LlamaForCausalLM(LlamaConfig(**sizes, **heads)).to(dtype))
    ids = torch.arange(24).view(2, 12)
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    before = [model(ids).logits.detach(), model(ids, attention_mask=mask).logits[:, -1].detach()]
    attend_in_float32(model)
    assert model.config._attn_implementation == expected
    after = [model(ids).logits, model(ids, attention_mask=mask).logits[:, -1]]
    after[0].sum().backward()
    for one, other in zip(before, after, strict=True):
        assert float((one - other).detach().norm() / one.norm()) < (0.02 if dtype == torch.bfloat16 else 1e-9)
