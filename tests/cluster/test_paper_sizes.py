"""The sizes that the page on clusters counts on paper are those of the shape, computed without weights."""

from __future__ import annotations

import re

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from tests.support.paths import ROOT

LLAMA_3_8B = LlamaConfig(
    vocab_size=128256,
    hidden_size=4096,
    intermediate_size=14336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
)
TOKENS, PROCESSES = 131_072, 8


def test_sizes_on_paper_are_those_of_the_shape() -> None:
    page = (ROOT / "marl" / "cluster" / "README.md").read_text()
    section = page.partition("### On paper: 8B parameters")[2].partition("Published figures of other systems")[0]
    with torch.device("meta"):
        model = LlamaForCausalLM(LLAMA_3_8B)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        adapted = get_peft_model(model, LoraConfig(r=16, target_modules="all-linear"))  # type: ignore[arg-type]
    adapter = sum(parameter.numel() for parameter in adapted.parameters() if parameter.requires_grad)
    key_value_heads = LLAMA_3_8B.num_key_value_heads
    assert key_value_heads is not None
    heads = LLAMA_3_8B.num_attention_heads + 2 * key_value_heads
    # Queries, keys and values before attention, and its output after: each process sends what others compute.
    exchanged = 2 * TOKENS * (heads + LLAMA_3_8B.num_attention_heads) * 128 / PROCESSES * (1 - 1 / PROCESSES)
    layers = LLAMA_3_8B.num_hidden_layers
    counted = {
        rf"{2 * parameters / 1e9:.1f} GB",
        rf"{4 * adapter / 1e6:.0f} MB",
        rf"{14 * parameters / 1e9:.1f} GB",  # two bytes of the weight, and masters and two moments of four
        rf"{14 * parameters / 1e9 / PROCESSES:.1f} GB",
        rf"{2 * TOKENS * LLAMA_3_8B.hidden_size * layers / 1e9:.0f} GB",
        rf"{4 * TOKENS * LLAMA_3_8B.vocab_size / 1e9:.0f} GB",
        rf"{exchanged / 1e6:.0f} MB",
        rf"{exchanged * layers / 1e9:.1f} GB",
    }
    assert set(re.findall(r"[\d.]+ [GM]B", section)) == counted
