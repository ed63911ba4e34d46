"""Caching, masking and positions of each family are right if what was sampled agrees with a plain forward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoConfig,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3NextConfig,
)

from marl.engines.transformers import model_runner, scoring
from marl.engines.transformers.engine import TransformersEngine
from marl.engines.transformers.policy_weights import FullWeights
from marl.engines.transformers.settings import Transformers
from marl.models.pretrained import PretrainedSource
from tests.support.transformers_engines import answers, ask, plain_logprobs, raw_answers, sampler_of

SMALL: dict[str, Any] = {
    "vocab_size": 259,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "eos_token_id": 1,
    "bos_token_id": None,
    "pad_token_id": 0,
}
DEEPER: dict[str, Any] = SMALL | {"num_hidden_layers": 4}
SMALLER_VOCABULARY: dict[str, Any] = SMALL | {"vocab_size": 100}
MIXED = ["sliding_attention", "full_attention"]
EAGER: dict[str, Any] = {"attn_implementation": "eager"}
FAMILIES: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**SMALL),
    "qwen2": Qwen2Config(**SMALL, use_sliding_window=True, sliding_window=6, layer_types=MIXED),
    "qwen3": Qwen3Config(**SMALL),
    "mistral": MistralConfig(**SMALL, sliding_window=7),
    "gemma2": Gemma2Config(**SMALL, sliding_window=6, layer_types=MIXED, **EAGER),
    "gemma3": Gemma3TextConfig(**SMALL, sliding_window=5, layer_types=MIXED),
    "gpt2": GPT2Config(vocab_size=259, n_embd=32, n_layer=2, n_head=4, n_positions=128, eos_token_id=1, bos_token_id=1,
                       initializer_range=0.3),
}  # fmt: skip


def model_of(config: PreTrainedConfig) -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).eval()


@pytest.mark.parametrize(
    "saved", [model_runner._MIN_SAVED_PREFIX_FLOPS, 0], ids=["whole prompts", "what prompts share once"]
)
@pytest.mark.parametrize("family", FAMILIES)
def test_cached_rows_agree_with_a_plain_forward(
    family: str, saved: float, bytewise: PretrainedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_runner, "_MIN_SAVED_PREFIX_FLOPS", saved)
    model = model_of(FAMILIES[family])
    sampler = sampler_of(model, bytewise, slots=3)
    requests = [ask("w" * (1 + seed % 5 * 4), seed=seed, max_tokens=4 + seed * 2) for seed in range(10)]
    for request, completion in zip(requests, answers(sampler, requests), strict=True):
        assert completion.logprobs == pytest.approx(plain_logprobs(model, completion, request.sampling), abs=2e-5)


@pytest.mark.parametrize("largest", [scoring._MAX_LOGITS_PER_FORWARD, 40 * 259], ids=["packed rows", "chunks"])
@pytest.mark.parametrize("family", FAMILIES)
def test_forced_rows_agree_with_a_plain_forward(
    family: str, largest: int, bytewise: PretrainedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "_MAX_LOGITS_PER_FORWARD", largest)
    model = model_of(FAMILIES[family])
    sampler = sampler_of(model, bytewise, slots=3)
    chunks: list[int] = []
    plain = sampler.network.prefill
    monkeypatch.setattr(sampler.network, "prefill", lambda prompts: chunks.append(len(prompts)) or plain(prompts))
    requests = [ask("w" * (1 + seed % 5 * 4), forced="xyz" * seed) for seed in range(8)]
    completions = answers(sampler, requests)
    assert bool(chunks) == (largest == 40 * 259)
    for request, completion in zip(requests, completions, strict=True):
        assert completion.logprobs == pytest.approx(plain_logprobs(model, completion, request.sampling), abs=2e-5)


def test_eager_attention_works_too(bytewise: PretrainedSource) -> None:
    model = model_of(FAMILIES["qwen3"])
    model.set_attn_implementation("eager")
    sampler = sampler_of(model, bytewise, slots=3)
    requests = [ask("w" * (1 + seed), seed=seed, max_tokens=9) for seed in range(8)]
    for request, completion in zip(requests, answers(sampler, requests), strict=True):
        assert completion.logprobs == pytest.approx(plain_logprobs(model, completion, request.sampling), abs=2e-5)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (MambaConfig(vocab_size=259, hidden_size=32, num_hidden_layers=1), "past_key_values"),
        (BloomConfig(vocab_size=259, hidden_size=32, n_layer=1, n_head=2), "position_ids"),
        (GPTNeoConfig(vocab_size=259, hidden_size=32, num_layers=2, num_heads=2, attention_types=[[["global"], 2]],
                      initializer_range=0.3), "window_size"),
        (Qwen3NextConfig(**DEEPER, num_experts=2, num_experts_per_tok=1,
                         moe_intermediate_size=8, shared_expert_intermediate_size=8), "linear_attention|Linear"),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_models_with_another_kind_of_memory_are_refused(
    config: PreTrainedConfig, message: str, bytewise: PretrainedSource
) -> None:
    with pytest.raises(ValueError, match=message):
        sampler_of(model_of(config), bytewise)


def test_a_context_beyond_the_models_is_refused(bytewise: PretrainedSource) -> None:
    with pytest.raises(ValueError, match="max_context: 999"):
        sampler_of(model_of(FAMILIES["gpt2"]), bytewise, max_context=999)


def test_a_vocabulary_that_the_model_lacks_is_refused(bytewise: PretrainedSource) -> None:
    with pytest.raises(ValueError, match="259"):
        TransformersEngine(
            FullWeights(model_of(LlamaConfig(**SMALLER_VOCABULARY)), bytewise),
            bytewise.tokenizer(),
            Transformers(),
        )


def test_without_a_chat_template_messages_are_joined_by_newlines(bytewise: PretrainedSource) -> None:
    tokenizer = bytewise.tokenizer()
    tokenizer.chat_template = None
    sampler = TransformersEngine(FullWeights(model_of(FAMILIES["llama"]), bytewise), tokenizer, Transformers())
    [answer] = raw_answers(sampler, [ask("hi", max_tokens=1)])
    assert tokenizer.decode(answer.prompt_ids) == "hi\n"  # type: ignore[union-attr]
