"""Distributions over the vocabulary, a few tokens at a time: the same numbers and gradients as all at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    FalconH1Config,
    Gemma2Config,
    GraniteConfig,
    LlamaConfig,
    PhiConfig,
    Qwen2Config,
)

from marl.core.config import Sampling
from marl.trainers.batching.batches import Batch, collate
from marl.trainers.batching.rows import BatchRow
from marl.trainers.forward import token_outputs as module
from marl.trainers.forward.divergences import exact_kl
from marl.trainers.forward.model_inputs import hidden_states
from marl.trainers.forward.token_outputs import TokenOutputRequest, find_logit_transform, logits, token_outputs

SIZES: dict[str, Any] = {
    "vocab_size": 50, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "initializer_range": 0.4, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
EAGER: dict[str, Any] = {"attn_implementation": "eager"}
HEADS: dict[str, Any] = {
    "plain": LlamaConfig(**SIZES, tie_word_embeddings=False),
    "tied": Qwen2Config(**SIZES, tie_word_embeddings=True),
    "biased": PhiConfig(**SIZES),
    "soft cap": Gemma2Config(**SIZES, **EAGER, head_dim=8, final_logit_softcapping=3.0),
    "scaled": CohereConfig(**SIZES, logit_scale=0.3),
    "divided": GraniteConfig(**SIZES, logits_scaling=4.0),
    "multiplied": FalconH1Config(**SIZES, lm_head_multiplier=0.4, mamba_d_ssm=16, mamba_n_heads=2, mamba_d_head=8),
}  # fmt: skip
SAMPLINGS = [Sampling(), Sampling(temperature=0.7), Sampling(temperature=1.3, top_p=0.8), Sampling(top_k=7, top_p=0.9)]
ALL = TokenOutputRequest(entropy=True, differentiable_entropy=True, divergences={"near": exact_kl})


def model_of(kind: str, seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(HEADS[kind]).to(dtype).eval()
    output = model.get_output_embeddings()
    if output.bias is not None:
        torch.nn.init.normal_(output.bias)
    return model


def batch_of(samplings: list[Sampling], seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)

    def words(many: int) -> tuple[int, ...]:
        return tuple(torch.randint(3, 50, (many,), generator=generator).tolist())

    rows = [BatchRow(words(2 + n), words(1 + 2 * n), samplings[n % len(samplings)]) for n in range(5)]
    return collate(rows, torch.device("cpu"))


def results_of(model: Any, batch: Batch, spec: TokenOutputRequest = ALL) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Return all numbers, and the gradient of an uneven sum of them."""
    anchors = {"far": model_of("plain", 2).to(model.dtype), "near": model_of("plain", 1).to(model.dtype)}
    outputs = token_outputs(model, batch, spec, anchors)
    numbers = [outputs.logprobs_BT, *(outputs.anchors or {}).values()]
    numbers += [outputs.entropy_BT] if outputs.entropy_BT is not None else []
    assert list(outputs.anchors or {}) == ["far", "near"]
    weights = torch.linspace(-1, 2, batch.mask_BT.numel()).view(batch.mask_BT.shape)
    loss: Any = sum(((k + 1) * weights * number).sum() for k, number in enumerate(numbers))
    model.zero_grad()
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return [number.detach() for number in numbers], gradients


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-14)], ids=str)
@pytest.mark.parametrize("kind", ["plain", "tied", "biased", "soft cap"])
def test_chunks_change_neither_values_nor_gradients(
    kind: str, dtype: torch.dtype, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, batch = model_of(kind, dtype=dtype), batch_of(SAMPLINGS)
    whole, gradients = results_of(model, batch)
    assert all(number.dtype == dtype for number in whole)
    for tokens in (1, 4, 7):
        monkeypatch.setattr(module, "MAX_LOGIT_ENTRIES", tokens * 50)
        numbers, computed = results_of(model, batch)
        for one, other in zip(numbers, whole, strict=True):
            assert torch.allclose(one, other, rtol=tolerance, atol=tolerance)
        assert computed.keys() == gradients.keys()
        for name, gradient in gradients.items():
            assert float((computed[name] - gradient).norm()) <= 10 * tolerance * float(gradient.norm()), name


@pytest.mark.parametrize("kind", ["plain", "biased", "soft cap"])
def test_a_frozen_head_gives_the_same_numbers_and_gradients_without_computing_twice(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, batch, spec = model_of(kind, dtype=torch.float64), batch_of(SAMPLINGS), TokenOutputRequest(entropy=True)
    model.get_output_embeddings().requires_grad_(False)
    calls: list[int] = []
    model.get_output_embeddings().register_forward_hook(lambda _, args, __: calls.append(len(args[0])))
    found = []
    for small in (1 << 20, 0):
        monkeypatch.setattr(module, "_SMALL_TABLE", small)
        monkeypatch.setattr(module, "_TABLE_AT_ONCE", 7 * 50)
        outputs = token_outputs(model, batch, spec)
        weights = torch.linspace(-1, 2, batch.mask_BT.numel()).view(batch.mask_BT.shape)
        model.zero_grad()
        calls.clear()
        (weights * outputs.logprobs_BT).sum().backward()
        assert not calls
        assert outputs.entropy_BT is not None
        assert not outputs.entropy_BT.requires_grad
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        found.append([outputs.logprobs_BT.detach(), outputs.entropy_BT, *gradients])
    assert len(found[0]) == len(found[1]) > 4
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one, other, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("kind", HEADS)
def test_a_head_is_what_the_model_itself_computes(kind: str) -> None:
    model, batch = model_of(kind), batch_of([Sampling()])
    with torch.no_grad():
        computed = logits(model, hidden_states(model, batch.inputs).tokens_NH)
        for row, text in enumerate(batch.inputs.ids_US):
            model_TV = model(text[None], use_cache=False).logits[0]
            tokens = int(batch.mask_BT[row].sum())
            start = int(batch.mask_BT[:row].sum())
            assert torch.allclose(computed[start : start + tokens], model_TV[row + 1 : row + 1 + tokens], atol=1e-5)


def test_a_head_that_is_not_known_is_refused() -> None:
    model = model_of("plain")
    forward = model.forward

    def odd(*args: Any, **kwargs: Any) -> Any:
        output = forward(*args, **kwargs)
        output.logits = output.logits.sinh()
        return output

    model.forward = odd
    with pytest.raises(ValueError, match=r"LlamaForCausalLM: makes its logits .* not known here .*logit_scale"):
        find_logit_transform(model)


@pytest.mark.parametrize(
    "spec", [TokenOutputRequest(), TokenOutputRequest(entropy=True)], ids=["nothing", "entropy as a metric"]
)
def test_numbers_that_are_not_wanted_have_no_gradient(
    spec: TokenOutputRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, batch = model_of("plain"), batch_of(SAMPLINGS)
    for at_once in (1 << 24, 200):
        monkeypatch.setattr(module, "MAX_LOGIT_ENTRIES", at_once)
        outputs = token_outputs(model, batch, spec, {"far": model_of("plain", 1)})
        assert outputs.logprobs_BT.requires_grad
        assert outputs.anchors is not None
        assert not outputs.anchors["far"].requires_grad
        assert (outputs.entropy_BT is None) == (not spec.entropy)
        assert outputs.entropy_BT is None or not outputs.entropy_BT.requires_grad
        with torch.no_grad():
            assert torch.equal(token_outputs(model, batch).logprobs_BT, outputs.logprobs_BT.detach())


def test_no_table_of_all_tokens_by_vocabulary_is_ever_made(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        numbers = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = func(*args, **(kwargs or {}))
            for each in made if isinstance(made, tuple | list) else [made]:
                if isinstance(each, Tensor) and each.shape[-1:] == (50,):
                    self.numbers = max(self.numbers, each.numel())
            return made

    model, batch = model_of("plain"), batch_of(SAMPLINGS)
    monkeypatch.setattr(module, "MAX_LOGIT_ENTRIES", 4 * 50)
    with Largest() as largest:
        results_of(model, batch)
    weights = model.get_output_embeddings().weight.numel()  # turned for the product
    assert len(batch.tokens_N) * 50 > weights
    assert largest.numbers == weights
