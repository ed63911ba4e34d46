"""DoRA, rsLoRA and any layers: the engine says what PEFT says, in one batch with plain LoRA."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, GPT2Config, Qwen2Config

from marl.core.types import Request
from marl.models.adapter import Adapter, AdapterSource
from marl.models.lora import adapter_layers, adapter_tensors, unadapted_base
from marl.models.pretrained import PretrainedSource
from tests.support.lora_adapters import (
    adapted,
    build_sampler,
    merged_model,
    random_adapter_weights,
    tensor_bytes,
    write_adapter,
)
from tests.support.transformers_engines import answers, ask, plain_logprobs

SIZES: dict[str, Any] = {"vocab_size": 259, "eos_token_id": 1, "bos_token_id": 1, "initializer_range": 0.15}
HEAD_DIM: dict[str, Any] = {"head_dim": 8}
BASES = {
    "qwen2, biased, untied": Qwen2Config(hidden_size=32, intermediate_size=48, num_hidden_layers=2, **HEAD_DIM,
                                         num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=False,
                                         max_position_embeddings=128, **SIZES),
    "gpt2, turned, tied": GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=128, **SIZES),
}  # fmt: skip
ENDS = {"qwen2, biased, untied": ("embed_tokens", "lm_head"), "gpt2, turned, tied": ("wte", "wpe", "lm_head")}


@pytest.fixture(scope="module", params=BASES)
def base(request: pytest.FixtureRequest, bytewise: PretrainedSource, tmp_path_factory: pytest.TempPathFactory) -> Any:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(BASES[request.param])
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.1)
    folder = tmp_path_factory.mktemp("base") / "model"
    model.save_pretrained(folder)
    bytewise.tokenizer().save_pretrained(folder)
    return replace(bytewise, path=str(folder)), ENDS[request.param]


def team(checkpoint: PretrainedSource, ends: tuple[str, ...]) -> dict[str, AdapterSource]:
    kinds: dict[str, dict[str, Any]] = {
        "dora": {"rank": 4, "alpha": 8, "use_dora": True},
        "plain": {"rank": 3},
        "ends": {"rank": 2, "use_dora": True, "targets": ends},
        "plain_ends": {"rank": 5, "use_rslora": True, "targets": ends[-1:] + ends[:1]},
        "pattern": {"rank": 2, "use_rslora": True, "use_dora": True, "targets": r".*\.1\..*(proj|c_fc)"},
    }
    return {name: adapted(checkpoint, name, **settings) for name, settings in kinds.items()}


def questions(policies: list[str], count: int = 20, **more: Any) -> list[Request]:
    texts = ["w" * (1 + number // len(policies) % 3 * 4) for number in range(count)]
    return [
        replace(ask(text, seed=n, max_tokens=3 + n % 7, **more), policy=policies[n % len(policies)])
        for n, text in enumerate(texts)
    ]


def moved(source: AdapterSource, seed: int) -> dict[str, torch.Tensor]:
    """Weights with which it matters; magnitudes stay positive."""
    first, off = adapter_tensors(source.model()), random_adapter_weights(source, seed)
    return {
        name: tensor.detach() * (1 + off[name]) if "magnitude" in name else 0.5 * off[name]
        for name, tensor in first.items()
    }


@pytest.mark.parametrize("more", [{}, {"forced": "some text"}], ids=["sampled", "forced"])
def test_rows_of_all_kinds_say_what_peft_says_of_each(base: Any, more: dict[str, Any]) -> None:
    sources = team(*base)
    sampler = build_sampler(*sources.values(), slots=7)
    weights = {name: moved(source, seed) for seed, (name, source) in enumerate(sources.items())}
    for version in (1, 2):  # lengths are taken anew with new weights
        for name, tensors in weights.items():
            sampler.load_weights(name, ((n, t * version if "lora_A" in n else t) for n, t in tensors.items()), version)
    requests = questions(list(sources), **more)
    for request, completion in zip(requests, answers(sampler, requests), strict=True):
        name = request.policy
        model = merged_model(sources[name], {n: t * 2 if "lora_A" in n else t for n, t in weights[name].items()})
        assert completion.logprobs == pytest.approx(plain_logprobs(model, completion, request.sampling), abs=1e-5), name


def test_a_new_dora_says_what_the_base_says(base: Any) -> None:
    source = adapted(base[0], use_dora=True, targets=base[1])
    requests = questions(["actor"], 6)
    for request, completion in zip(requests, answers(build_sampler(source), requests), strict=True):
        assert completion.logprobs == pytest.approx(
            plain_logprobs(base[0].model(), completion, request.sampling), abs=1e-5
        )


@pytest.mark.parametrize("name", ["dora", "ends", "plain_ends"])
def test_folders_hold_all_of_it(base: Any, name: str, tmp_path: Path) -> None:
    source = team(*base)[name]
    weights = moved(source, 3)
    folder = write_adapter(source, weights, tmp_path / "adapter")
    again = replace(source, adapter=source.adapter.model_copy(update={"path": folder}))
    assert not list(again.adapter.unmet_requirements())
    assert tensor_bytes(adapter_tensors(again.model())) == tensor_bytes(weights)
    sampler = build_sampler(source)
    sampler.load_weights(name, folder, 1)
    peft = PeftModel.from_pretrained(base[0].model(), str(folder)).eval()
    requests = questions([name], 4)
    for request, completion in zip(requests, answers(sampler, requests), strict=True):
        assert completion.logprobs == pytest.approx(plain_logprobs(peft, completion, request.sampling), abs=1e-5)


def test_the_base_comes_back_out_of_an_adapter_that_changes_nothing(base: Any) -> None:
    for source in team(*base).values():
        model = source.model()
        alone: Any = unadapted_base(model)
        assert not list(adapter_layers(alone))
        shared = {p.data_ptr() for p in model.parameters() if not p.requires_grad}
        assert {p.data_ptr() for p in alone.parameters()} == shared
        ids = torch.tensor([[3, 5, 7, 11]])
        assert torch.equal(alone(ids).logits, base[0].model()(ids).logits)
        assert unadapted_base(merged_model(source, moved(source, 1))) is None


def test_a_dora_on_a_bfloat16_base_changes_nothing_at_first(bytewise: PretrainedSource) -> None:
    source = adapted(replace(bytewise, dtype="bfloat16", device="cpu"), use_dora=True)
    model, ids = source.model(), torch.tensor([[3, 5, 7, 11]])
    alone = unadapted_base(model)
    assert alone is not None
    assert torch.equal(alone(ids).logits, model(ids).logits)


def test_a_pattern_that_is_none_is_refused(bytewise: PretrainedSource) -> None:
    with pytest.raises(ValueError, match=r"targets(.|\n)*neither all-linear, .* nor a pattern: '\*proj'"):
        Adapter.model_validate({"base": {"path": bytewise.path}, "targets": "*proj"})
