"""Facts of models without their weights, against the weights of models that are really made."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from marl.core.config import Sampling
from marl.core.types import Message, Request
from marl.evaluation.model_facts import known_model_facts, local_model_folder
from marl.models.adapter import Adapter
from marl.models.pretrained import Pretrained
from marl.models.tiny import Tiny, tiny_model_weight_shapes
from marl.models.tiny_build import build_tiny_model

TEXTS = ("card J Q K . moves [check] [bet]", "is 47 + 38 right", "a b")
SETTINGS: list[dict[str, Any]] = [
    {},
    {"vocabulary": "bytes", "layers": 2, "tied": False},
    {"architecture": "qwen3", "hidden": 48, "heads": 4, "kv_heads": 2, "head_dim": 16, "intermediate": 40},
]


def made(folder: Path, **settings: Any) -> tuple[Tiny, Path, Any]:
    """Settings, folder and weights of a tiny model."""
    tiny = Tiny(**settings)
    build_tiny_model(tiny, folder, TEXTS)
    return tiny, folder, AutoModelForCausalLM.from_pretrained(folder)


def question(text: str) -> Request:
    return Request("actor", (Message("user", text),), Sampling())


@pytest.mark.parametrize("settings", SETTINGS, ids=map(str, SETTINGS))
def test_shapes_and_sizes_are_those_of_the_model_that_is_made(tmp_path: Path, settings: dict[str, Any]) -> None:
    tiny, folder, model = made(tmp_path / "model", **settings)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.named_parameters()}
    assert dict(tiny_model_weight_shapes(tiny, model.config.vocab_size)) == shapes
    assert known_model_facts(tiny, TEXTS).weights == model.num_parameters()
    assert known_model_facts(Pretrained(path=str(folder)), ()).weights == model.num_parameters()


def test_a_pattern_of_layers_is_matched_in_linear_time() -> None:
    # Python's engine needs hours for the 30 characters of a layer's path.
    began = time.process_time()
    facts = known_model_facts(Adapter(base=Tiny(), targets=r"((\w|\w)+\.?)+X"), TEXTS)
    assert facts.weights == 0
    assert time.process_time() - began < 2


@pytest.mark.parametrize("targets", ["all-linear", ("q_proj", "down_proj"), r".*layers\.0\.mlp\.(up|gate)_proj"])
@pytest.mark.parametrize("dora", [False, True], ids=["lora", "dora"])
def test_the_size_of_an_adapter_is_that_of_pefts(tmp_path: Path, targets: str | tuple[str, ...], dora: bool) -> None:
    tiny, folder, model = made(tmp_path / "model", layers=2)
    names = targets if isinstance(targets, str) else list(targets)
    peft = get_peft_model(model, LoraConfig(r=4, target_modules=names, use_dora=dora, task_type="CAUSAL_LM"))
    trainable = sum(p.numel() for p in peft.parameters() if p.requires_grad)
    for base in (tiny, Pretrained(path=str(folder))):
        facts = known_model_facts(Adapter(base=base, rank=4, targets=targets, use_dora=dora), TEXTS)
        assert (facts.weights, facts.base_weights) == (trainable, known_model_facts(base, TEXTS).weights)


@pytest.mark.parametrize("settings", SETTINGS, ids=map(str, SETTINGS))
def test_tokens_context_and_cache_are_those_of_the_model_that_is_made(tmp_path: Path, settings: dict[str, Any]) -> None:
    tiny, folder, model = made(tmp_path / "model", **settings)
    facts, saved = known_model_facts(tiny, TEXTS), known_model_facts(Pretrained(path=str(folder)), ())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        chat = [{"role": "user", "content": text}]
        tokens = len(tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)["input_ids"])
        assert facts.count_prompt_tokens
        assert saved.count_prompt_tokens
        assert facts.count_prompt_tokens(question(text)) == saved.count_prompt_tokens(question(text)) == tokens
    keys = model(**tokenizer("a b", return_tensors="pt")).past_key_values.layers
    held = sum(each.keys.nbytes + each.values.nbytes for each in keys) // len(tokenizer("a b").input_ids)
    assert facts.size
    assert saved.size
    assert facts.size.kv_cache_bytes_per_token == saved.size.kv_cache_bytes_per_token == held
    assert facts.context == saved.context == 512


def test_half_precision_takes_half_the_bytes() -> None:
    full, half = known_model_facts(Tiny(), TEXTS), known_model_facts(Tiny(dtype="bfloat16"), TEXTS)
    assert (full.weight_bytes, half.weight_bytes) == (4, 2)
    assert full.size
    assert half.size
    assert full.size.kv_cache_bytes_per_token == 2 * half.size.kv_cache_bytes_per_token


@pytest.mark.parametrize("name", ["someone/no-such-model", "../x/y/z", "a b", "--"])
def test_nothing_is_known_of_a_model_that_is_not_on_this_machine(name: str) -> None:
    model = Pretrained(path=name)
    facts = known_model_facts(model, TEXTS)
    assert local_model_folder(model) is None
    assert (facts.description, facts.weights, facts.count_prompt_tokens, facts.context, facts.size) == (
        name,
        *[None] * 4,
    )


def test_a_folder_with_a_broken_config_says_nothing_of_context_and_cache(tmp_path: Path) -> None:
    _, folder, model = made(tmp_path / "model")
    for text in ("{", "[1]", '{"max_position_embeddings": "many", "num_hidden_layers": 2}'):
        (folder / "config.json").write_text(text)
        facts = known_model_facts(Pretrained(path=str(folder)), ())
        assert (facts.weights, facts.context, facts.size) == (model.num_parameters(), None, None)
