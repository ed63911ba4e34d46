"""FLOPs of an update are those that torch counts, and the peaks of GPUs are found by the names that drivers give."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM

from marl.trainers.batching.planner import BatchPlanner
from marl.trainers.batching.rows import BatchRow
from marl.trainers.optim.peak_flops import peak_bfloat16_flops


def model_with_attention(trained: bool) -> Any:
    # Keyword arguments of a base class, which the signature of this configuration does not name.
    eager: dict[str, Any] = {"attn_implementation": "eager"}
    config = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=4, tie_word_embeddings=False, **eager)  # fmt: skip
    model: Any = LlamaForCausalLM(config)
    if not trained:
        model.model.layers[1].requires_grad_(requires_grad=False)
    return model.train()


@pytest.mark.parametrize("trained", [True, False])
def test_the_flops_of_an_update_are_those_that_torch_counts(trained: bool) -> None:
    model = model_with_attention(trained)
    row = BatchRow(tuple(range(1, 40)), tuple(range(2, 12)))
    with FlopCounterMode(display=False) as counter:
        ids = torch.tensor([row.prompt_ids + row.token_ids[:-1]])
        model(input_ids=ids, logits_to_keep=len(row.token_ids)).logits.sum().backward()
    # Eager attention computes all pairs of tokens, of which a causal text needs half.
    layers, width, passes = 2, 32, 3
    unneeded_pairs = passes * 4 * layers * width * len(ids[0]) ** 2 / 2
    found = BatchPlanner(model, 512, "packed").update_flops([row, row])
    # The weights of norms, which are no matrices, count as well (0.7 % here).
    assert found == pytest.approx(2 * (counter.get_total_flops() - unneeded_pairs), rel=0.01)


def test_peaks_are_found_by_the_names_of_drivers() -> None:
    # dense bfloat16, from the data sheets of A100 (312), H100 (PCIe: half of 1513 with sparsity) and H200 (1979 / 2)
    assert peak_bfloat16_flops("NVIDIA A100-SXM4-80GB") == 312e12
    assert peak_bfloat16_flops("NVIDIA H100 80GB HBM3") == pytest.approx(1979e12 / 2, rel=1e-3)
    assert peak_bfloat16_flops("NVIDIA H100 PCIe") == pytest.approx(1513e12 / 2, rel=1e-3)
    assert peak_bfloat16_flops("NVIDIA H200") == pytest.approx(1979e12 / 2, rel=1e-3)
    assert peak_bfloat16_flops("NVIDIA GeForce GTX 1080") is None
