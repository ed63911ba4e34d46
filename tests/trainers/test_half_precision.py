"""Models in half precision: what is rounded and what is not, how far sampler and learner may differ, and learning."""

from __future__ import annotations

import copy
import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from marl.core.config import Sampling
from marl.core.types import Message, Request
from marl.engines.transformers.engine import TransformersEngine
from marl.engines.transformers.settings import Transformers
from marl.models.adapter import Adapter
from marl.models.fused_lora import FusedLora
from marl.models.half_precision import Float32OutputLinear, convert_to_mixed_precision
from marl.models.tiny import Tiny
from marl.models.tiny_build import build_tiny_model
from marl.protocols import ModelSource
from marl.trainers.batching.planner import BatchPlanner
from marl.trainers.batching.rows import BatchRow
from marl.trainers.forward.fidelity_gate import MAX_ROUNDING_RATIO
from marl.trainers.forward.rounding_noise import MaxAndMeanGap, read_logprobs, rounding_noise
from tests.support.learning_samples import unpadded_logprobs
from tests.support.run_processes import metric_lines as logged
from tests.support.solver_critic_game import SEATS, policies, quiz_scenario, train_in_process

DEEP: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 12, "num_attention_heads": 4}
SHAPES = {
    "one layer": Tiny(hidden=32, layers=1, heads=2, vocabulary="bytes", architecture="llama"),
    "deep": Tiny(hidden=64, layers=12, heads=4, vocabulary="bytes", architecture="llama"),
    "shared heads, norms of queries and keys": Tiny(
        hidden=96, layers=4, heads=6, kv_heads=2, vocabulary="bytes", architecture="qwen3"
    ),
}
PROMPTS = ["two and three", "two and four is what?", "seven", "what comes after the end of it all?"]


def llama(dtype: torch.dtype = torch.bfloat16) -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=80, num_key_value_heads=2, initializer_range=0.125, tie_word_embeddings=True, **DEEP
    )
    model: Any = LlamaForCausalLM(config)
    return model.to(dtype).eval()


@cache
def folder_of(shape: str, beside: Path) -> Path:
    build_tiny_model(SHAPES[shape], beside / shape, ())
    return beside / shape


def source_of(shape: str, beside: Path, adapter: bool, dtype: str = "bfloat16") -> ModelSource:
    base = SHAPES[shape].model_copy(update={"dtype": dtype, "device": "cpu"})
    source = base.source("actor", folder_of(shape, beside))
    if not adapter:
        return source
    from marl.models.adapter import AdapterSource

    return AdapterSource("actor", Adapter(base=base, rank=4), source)


def compared(source: ModelSource, sampling: Sampling, *, deaf: bool = False) -> tuple[MaxAndMeanGap, MaxAndMeanGap]:
    """Return the differences of learner and sampler on answers to all prompts, and the learner's noise of rounding.

    `deaf`: the engine is not told of the adapter's weights.
    """
    settings = Transformers()
    engine = settings.build(source) if source.adapter is None else settings.build_shared({"actor": source})
    assert isinstance(engine, TransformersEngine)
    model = source.model()
    if source.adapter is not None:
        torch.manual_seed(1)
        moved = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
        for tensor in moved.values():
            tensor.add_(0.02 * torch.randn_like(tensor))
        if not deaf:
            engine.load_weights("actor", moved.items(), 1)
        model.load_state_dict(moved, strict=False)
    for ticket in range(16):
        engine.submit(ticket, Request("actor", (Message("user", PROMPTS[ticket % 4]),), sampling, seed=ticket))
    said: list[Any] = []
    while len(said) < 16:
        said += [completion for _, completion in engine.step(0)]
    texts = [BatchRow(c.prompt_ids, c.token_ids, sampling, scalars={}) for c in said]
    planner = BatchPlanner(model, 512, "shared")
    found = [
        abs(ours - theirs)
        for completion, read in zip(said, read_logprobs(model, planner, texts), strict=True)
        for ours, theirs in zip(read, completion.logprobs, strict=True)
    ]
    assert len(found) > 200
    return MaxAndMeanGap(max(found), sum(found) / len(found)), rounding_noise(model, planner, texts)


@pytest.mark.parametrize("sampling", [Sampling(max_tokens=24), Sampling(max_tokens=24, temperature=0.7, top_p=0.9)])
@pytest.mark.parametrize("adapter", [False, True], ids=["whole weights", "adapter"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.one_in(3)
def test_our_engine_differs_by_no_more_than_half_of_what_rounding_may_explain(
    shape: str, adapter: bool, sampling: Sampling, tmp_path_factory: pytest.TempPathFactory
) -> None:
    beside = tmp_path_factory.getbasetemp() / "half"
    found, noise = compared(source_of(shape, beside, adapter), sampling)
    assert 0 < found.mean < MAX_ROUNDING_RATIO / 2 * noise.mean
    assert found.max < MAX_ROUNDING_RATIO / 2 * noise.max


def test_an_engine_that_was_not_told_of_the_adapter_differs_by_more(tmp_path: Path) -> None:
    found, noise = compared(source_of("deep", tmp_path, adapter=True), Sampling(max_tokens=24), deaf=True)
    assert found.mean > 2 * MAX_ROUNDING_RATIO * noise.mean


def test_states_the_last_norm_and_logits_are_float32_and_what_products_take_is_rounded() -> None:
    model = convert_to_mixed_precision(llama())
    seen: dict[str, torch.dtype] = {}

    def note(name: str) -> Any:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            seen[name] = (output[0] if isinstance(output, tuple) else output).dtype

        return hook

    parts = ("model.embed_tokens", "model.layers.3", "model.layers.3.input_layernorm", "model.layers.3.mlp.up_proj",
             "model.layers.3.self_attn", "model.norm", "lm_head")  # fmt: skip
    for part in parts:
        model.get_submodule(part).register_forward_hook(note(part))
    copied = copy.deepcopy(model)
    for each in (model, copied):
        seen.clear()
        assert each(input_ids=torch.tensor([[1, 2, 3]])).logits.dtype == torch.float32
        wide = {name for name, dtype in seen.items() if dtype == torch.float32}
        assert wide == {"model.embed_tokens", "model.layers.3", "model.norm", "lm_head"}
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert type(model).__name__ == "LlamaForCausalLM"
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert convert_to_mixed_precision(whole := llama(torch.float32)) is whole
    assert type(whole) is LlamaForCausalLM


def test_log_probabilities_come_closer_to_those_of_the_same_weights_in_float32() -> None:
    half = llama()
    exact = llama().float()
    answer = tuple(torch.randint(80, (200,), generator=torch.Generator().manual_seed(1)).tolist())

    def logprobs(model: Any) -> Tensor:
        with torch.no_grad():
            return unpadded_logprobs(model, (1,), answer).float().log_softmax(-1)

    plain = float((logprobs(half) - logprobs(exact)).abs().mean())
    mixed = float((logprobs(convert_to_mixed_precision(llama())) - logprobs(exact)).abs().mean())
    assert 0 < mixed < 0.9 * plain


def test_a_wide_layer_is_the_exact_product_and_its_gradients_are_those_of_float64() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(48, 2500).to(torch.bfloat16)
    wide, x = Float32OutputLinear(layer), torch.randn(3, 7, 48).bfloat16().float().requires_grad_()
    output, upstream = wide(x), torch.randn(3, 7, 2500).bfloat16()
    output.backward(upstream.float())
    assert output.dtype == torch.float32
    exact_x, exact_w = x.detach().double().requires_grad_(), layer.weight.detach().double().requires_grad_()
    exact = exact_x @ exact_w.T + layer.bias.detach().double()  # type: ignore[union-attr]
    exact.backward(upstream.double())
    assert float((output.double() - exact).abs().max()) < 1e-5
    for found, expected, within in ((x.grad, exact_x.grad, 1e-5), (layer.weight.grad, exact_w.grad, 3e-3)):
        assert found is not None
        assert expected is not None
        assert float((found.double() - expected).norm() / expected.norm()) < within
    assert layer.weight.grad is not None
    assert layer.weight.grad.dtype == torch.bfloat16
    assert layer.bias.grad is not None
    assert wide(x[:, :0]).shape == (3, 0, 2500)


@pytest.mark.parametrize(("dtype", "within"), [("bfloat16", 0.1), ("float32", 1e-4)])
def test_the_adapter_in_one_operation_computes_what_peft_computes(dtype: str, within: float, tmp_path: Path) -> None:
    source = source_of("deep", tmp_path, True, dtype)
    ids = torch.randint(3, 200, (2, 30), generator=torch.Generator().manual_seed(2))
    gradients = []
    for own in (True, False):
        model = source.model().train()
        torch.manual_seed(5)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.data.normal_(0, 0.05)
        layers = [module for module in model.modules() if isinstance(module, FusedLora)]
        assert len(layers) == 7 * 12
        if not own:
            for layer in layers:
                layer.__class__ = FusedLora.__base__  # type: ignore[assignment]
        model(input_ids=ids).logits.log_softmax(-1)[..., 7].sum().backward()
        gradients.append({n: p.grad for n, p in model.named_parameters() if p.requires_grad})
    assert {g.dtype for g in gradients[0].values()} == {torch.float32}
    for name, gradient in gradients[0].items():
        expected = gradients[1][name]
        assert float((gradient - expected).norm() / expected.norm()) < within, name


def test_an_adapter_with_dropout_is_left_to_peft(tmp_path: Path) -> None:
    source = source_of("one layer", tmp_path, adapter=True)
    source.adapter = source.adapter.model_copy(update={"dropout": 0.5})  # type: ignore[union-attr,misc]
    model, ids = source.model().train(), torch.tensor([[5, 6, 7]])
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(0, 0.5)
    assert not torch.equal(model(input_ids=ids).logits, model(input_ids=ids).logits)
    assert torch.equal(model.eval()(input_ids=ids).logits, model(input_ids=ids).logits)


def in_half(adapters: bool, **learner: Any) -> dict[str, dict[str, Any]]:
    changes = {}
    for seat, policy in policies().items():
        model = policy["model"] | {"dtype": "bfloat16", "device": "cpu"}
        whole = {"kind": "adapter", "base": model, "rank": 8} if adapters else model
        changes[seat] = {"model": whole, "learner": policy["learner"] | {"fidelity": {"every": 1}} | learner}
    return policies(**changes)


@pytest.mark.parametrize("adapters", [False, True], ids=["whole weights", "adapters"])
def test_a_run_in_bfloat16_starts_and_stays_faithful(adapters: bool, tmp_path: Path) -> None:
    schedule = quiz_scenario()["schedule"] | {"steps": 3}
    assert train_in_process(tmp_path / "run", quiz_scenario(policies=in_half(adapters), schedule=schedule))
    rows = [json.loads(line) for line in logged(tmp_path / "run")]
    for seat in SEATS:
        figures = [
            (row[f"policy/{seat}/fidelity_mean"], row[f"policy/{seat}/fidelity_rounding_mean"]) for row in rows[1:]
        ]
        assert all(mean < MAX_ROUNDING_RATIO * noise for mean, noise in figures)
        assert all(math.isfinite(row[f"policy/{seat}/loss"]) for row in rows[1:])


@pytest.mark.slow
@pytest.mark.parametrize("adapters", [False, True], ids=["whole weights", "adapters"])
def test_a_run_in_bfloat16_learns(adapters: bool, tmp_path: Path) -> None:
    schedule = quiz_scenario()["schedule"] | {"steps": 60, "groups": 12}
    scenario = quiz_scenario(
        policies=in_half(adapters, lr=1e-2), schedule=schedule, evaluate={"every": 60, "held_out": 6}
    )
    assert train_in_process(tmp_path / "run", scenario)
    rows = [json.loads(line) for line in logged(tmp_path / "run")]
    first, last = ([row["episode/return/critic"] for row in part] for part in (rows[1:6], rows[-5:]))
    assert sum(last) / 5 > sum(first) / 5 + 0.2
