"""What layers keep for the backward pass: the formula against the tensors that autograd really saves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import LoraConfig
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from marl.models.fused_lora import FusedLora
from marl.models.half_precision import HALF_PRECISION_TYPES, convert_to_mixed_precision
from marl.protocols.memory_estimates import AdapterSize, ModelSize
from marl.trainers.optim.memory_estimate import layer_activation_bytes_per_token

HIDDEN, INNER, HEADS, KEY_HEADS, WIDTH, LAYERS, RANK = 64, 160, 8, 2, 16, 6, 8
LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
TOKENS = (4, 64)


def small_model(family: str, dtype: torch.dtype, *, adapted: bool) -> Any:
    """A small model whose weights, or whose adapter alone, learn."""
    config, kind = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen3": (Qwen3Config, Qwen3ForCausalLM)}[family]
    sizes = {"vocab_size": 128, "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": LAYERS}
    heads = {"num_attention_heads": HEADS, "num_key_value_heads": KEY_HEADS, "head_dim": WIDTH}
    model: Any = convert_to_mixed_precision(kind(config(**sizes, **heads)).to(dtype))
    if adapted:
        model.requires_grad_(False)
        adapter = LoraConfig(r=RANK, target_modules=[*LINEAR])
        if dtype in HALF_PRECISION_TYPES:
            adapter._register_custom_module({nn.Linear: FusedLora})
        model.add_adapter(adapter)
        for parameter in (p for p in model.parameters() if p.requires_grad):
            parameter.data = parameter.data.float()
    return model.train()


def saved_bytes(model: Any) -> int:
    """Bytes that autograd keeps after a forward pass, weights left out."""
    frozen = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    storages: dict[int, Any] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage  # held, so that no other one gets its address
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(input_ids=torch.randint(0, 128, TOKENS), use_cache=False, logits_to_keep=1)
    return sum(storage.nbytes() for address, storage in storages.items() if address not in frozen)


@pytest.mark.parametrize("adapted", [False, True], ids=["all_weights", "adapter"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_layers_keep_what_the_formula_says(family: str, dtype: torch.dtype, adapted: bool) -> None:
    adapter = AdapterSize(0, RANK, LAYERS * len(LINEAR)) if adapted else None
    size = ModelSize(
        parameters=0,
        weight_bytes=dtype.itemsize,
        layers=LAYERS,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        heads=HEADS,
        query_size=HEADS * WIDTH,
        key_size=KEY_HEADS * WIDTH,
        vocabulary=128,
        has_qk_norm=family == "qwen3",
        adapter=adapter,
    )
    measured = saved_bytes(small_model(family, dtype, adapted=adapted)) / (TOKENS[0] * TOKENS[1] * LAYERS)
    # The rest are single numbers of rows (norms, rotations) and what comes after the last layer.
    assert layer_activation_bytes_per_token(size) == pytest.approx(measured, rel=0.05)
