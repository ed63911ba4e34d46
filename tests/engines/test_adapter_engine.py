"""Several LoRA adapters on one base in one engine: each speaks as if it were alone, and the base is there once."""

from __future__ import annotations

import gc
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import AutoPeftModelForCausalLM, PeftModel
from transformers import AutoModelForCausalLM, GPT2Config

from marl.core.types import Completion, Request
from marl.engines.transformers.engine import TransformersEngine
from marl.models import lora
from marl.models.adapter import AdapterSource
from marl.models.lora import adapter_tensors
from marl.models.pretrained import PretrainedSource
from tests.support.lora_adapters import (
    adapted,
    build_sampler,
    merged_model,
    random_adapter_weights,
    tensor_bytes,
    write_adapter,
)
from tests.support.transformers_engines import answers, ask, engine, plain_logprobs

FEW = ("q_proj", "down_proj")


def team(base: PretrainedSource) -> dict[str, AdapterSource]:
    """Adapters that are unlike each other in every way, and one that changes nothing."""
    return {
        "solver": adapted(base, "solver", rank=4, alpha=8),
        "planner": adapted(base, "planner", rank=2, alpha=7, targets=FEW),
        "critic": adapted(base, "critic", rank=3, targets=("o_proj", "gate_proj")),
        "frozen": adapted(base, "frozen"),
    }


def taught(
    sources: dict[str, AdapterSource], **settings: Any
) -> tuple[TransformersEngine, dict[str, dict[str, torch.Tensor]]]:
    """One engine for all of them, and the weights that all but the frozen one were given."""
    sampler = build_sampler(*sources.values(), **settings)
    weights = {
        policy: random_adapter_weights(sources[policy], seed)
        for seed, policy in enumerate(sources)
        if policy != "frozen"
    }
    for policy, tensors in weights.items():
        sampler.load_weights(policy, tensors.items(), 1)
    return sampler, weights


def questions(policies: dict[str, AdapterSource], count: int = 24, **more: Any) -> list[Request]:
    """Everybody is asked the same, in turn."""
    names = list(policies)
    texts = ["w" * (1 + number // len(names) % 3 * 4) for number in range(count)]
    return [
        replace(ask(text, seed=number, max_tokens=3 + number % 7, **more), policy=names[number % len(names)])
        for number, text in enumerate(texts)
    ]


def model_of(policy: str, sources: dict[str, AdapterSource], weights: dict[str, dict[str, torch.Tensor]]) -> Any:
    return merged_model(sources[policy], weights[policy]) if policy in weights else sources[policy].model()


def test_rows_of_all_policies_say_what_peft_says_of_each(bytewise: PretrainedSource) -> None:
    sources = team(bytewise)
    sampler, weights = taught(sources, slots=7)
    requests = questions(sources)
    for request, completion in zip(requests, answers(sampler, requests), strict=True):
        expected = plain_logprobs(model_of(request.policy, sources, weights), completion, request.sampling)
        assert completion.logprobs == pytest.approx(expected, abs=1e-5)


def test_a_mixed_batch_says_what_engines_of_their_own_say(bytewise: PretrainedSource) -> None:
    sources = team(bytewise)
    sampler, weights = taught(sources, slots=9)
    requests = questions(sources, 40)
    mixed = answers(sampler, requests)
    for policy, source in sources.items():
        alone = build_sampler(source)
        if policy in weights:
            alone.load_weights(policy, weights[policy].items(), 1)
        mine = [number for number, request in enumerate(requests) if request.policy == policy]
        for number, completion in zip(mine, answers(alone, [requests[number] for number in mine]), strict=True):
            assert completion.token_ids == mixed[number].token_ids
            assert completion.logprobs == pytest.approx(mixed[number].logprobs, abs=1e-5)


def test_forced_texts_are_scored_by_the_policy_that_is_asked(bytewise: PretrainedSource) -> None:
    sources = team(bytewise)
    sampler, weights = taught(sources, prefill_tokens=64)
    requests = questions(sources, forced="some text")
    scored = answers(sampler, requests)
    for request, completion in zip(requests, scored, strict=True):
        expected = plain_logprobs(model_of(request.policy, sources, weights), completion, request.sampling)
        assert completion.logprobs == pytest.approx(expected, abs=1e-5)
    assert len({completion.logprobs for completion in scored[:4]}) == 4


def test_an_adapter_without_weights_says_what_the_base_says(bytewise: PretrainedSource) -> None:
    requests = [ask("hello", seed=seed, max_tokens=9) for seed in range(12)]
    for one, other in zip(
        answers(build_sampler(adapted(bytewise)), requests), answers(engine(bytewise), requests), strict=True
    ):
        assert one.token_ids == other.token_ids
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-6)


def test_layers_that_are_no_plain_linear_ones_are_adapted_too(bytewise: PretrainedSource, tmp_path: Path) -> None:
    config = GPT2Config(vocab_size=259, n_embd=32, n_layer=2, n_head=4, n_positions=128, eos_token_id=1,
                        bos_token_id=1, initializer_range=0.3)  # fmt: skip
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "gpt2")
    bytewise.tokenizer().save_pretrained(tmp_path / "gpt2")
    base = replace(bytewise, path=str(tmp_path / "gpt2"))
    sources = {"solver": adapted(base, "solver"), "frozen": adapted(base, "frozen")}
    sampler, weights = taught(sources, slots=3)
    requests = questions(sources, 8)
    for request, completion in zip(requests, answers(sampler, requests), strict=True):
        expected = plain_logprobs(model_of(request.policy, sources, weights), completion, request.sampling)
        assert completion.logprobs == pytest.approx(expected, abs=2e-5)


@pytest.mark.parametrize("targets", ["all-linear", FEW], ids=str)
def test_a_saved_folder_says_the_same_in_peft_in_transformers_and_merged(
    bytewise: PretrainedSource, tmp_path: Path, targets: Any
) -> None:
    source = adapted(bytewise, "solver", rank=4, targets=targets)
    weights = random_adapter_weights(source, 1)
    folder = write_adapter(source, weights, tmp_path / "adapter")
    files = {path.name for path in folder.iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"} <= files
    assert "model.safetensors" not in files
    sampler = build_sampler(source)
    sampler.load_weights("solver", folder, 2)
    requests = questions({"solver": source}, 6)
    completions = answers(sampler, requests)
    base = AutoModelForCausalLM.from_pretrained(bytewise.path)
    models = {
        "peft": PeftModel.from_pretrained(base, str(folder)),
        "auto": AutoPeftModelForCausalLM.from_pretrained(str(folder)),
        "transformers": AutoModelForCausalLM.from_pretrained(folder),
        "merged": PeftModel.from_pretrained(bytewise.model(), str(folder)).merge_and_unload(),
    }
    for name, model in models.items():
        for request, completion in zip(requests, completions, strict=True):
            expected = plain_logprobs(model.eval(), completion, request.sampling)
            assert completion.logprobs == pytest.approx(expected, abs=1e-5), name


def test_a_folder_that_was_saved_is_where_another_adapter_starts(bytewise: PretrainedSource, tmp_path: Path) -> None:
    weights = random_adapter_weights(adapted(bytewise), 3)
    folder = write_adapter(adapted(bytewise), weights, tmp_path / "adapter")
    again = adapted(bytewise, path=str(folder))
    assert tensor_bytes(adapter_tensors(again.model())) == tensor_bytes(weights)


def test_the_base_is_in_memory_once(bytewise: PretrainedSource) -> None:
    sources = team(bytewise)
    sampler = build_sampler(*sources.values())
    learners = [source.model() for source in sources.values()]
    places = Counter(
        (tensor.data_ptr(), tensor.numel())
        for model in (sampler.network.model, *learners)
        for name, tensor in (*model.named_parameters(), *model.named_buffers())
        if "lora" not in name
    )
    base = bytewise.model()
    assert len(places) == len([*base.parameters(), *base.buffers()])
    assert all(p.requires_grad == ("lora" in name) for name, p in learners[0].named_parameters())


def test_a_base_that_nobody_holds_is_forgotten(bytewise: PretrainedSource) -> None:
    alone = replace(bytewise, policy="", attention="eager")
    source = adapted(alone)
    sampler = build_sampler(source)
    assert alone in lora._SHARED_BASES
    del source, sampler
    gc.collect()
    assert alone not in lora._SHARED_BASES


def test_loading_one_policys_weights_moves_no_other_byte(bytewise: PretrainedSource) -> None:
    sources = team(bytewise)
    sampler: Any = taught(sources)[0]
    base = tensor_bytes(dict(sources["solver"].base.named_parameters()))
    before = [tensor_bytes(sampler.policy_weights.adapter_tensors(policy)) for policy in sources]
    requests = [replace(ask("hello", seed=seed), policy=name) for seed in range(3) for name in sources]
    completions = answers(sampler, requests)
    sampler.load_weights("planner", random_adapter_weights(sources["planner"], 99).items(), 2)
    after = [tensor_bytes(sampler.policy_weights.adapter_tensors(policy)) for policy in sources]
    assert [one == other for one, other in zip(before, after, strict=True)] == [True, False, True, True]
    assert tensor_bytes(dict(sources["solver"].base.named_parameters())) == base
    for request, one, other in zip(requests, completions, answers(sampler, requests), strict=True):
        if request.policy == "planner":
            assert one.token_ids != other.token_ids
            assert other.versions == (2, 2)
        else:
            assert other.token_ids == one.token_ids
            assert other.logprobs == pytest.approx(one.logprobs, abs=1e-5)


def test_weights_that_arrive_midway_are_noted_for_their_policy_alone(bytewise: PretrainedSource) -> None:
    sources = {name: adapted(bytewise, name) for name in ("solver", "planner")}
    sampler = build_sampler(*sources.values(), slots=2)
    for ticket, policy in enumerate(("solver", "planner", "solver", "planner")):
        sampler.submit(ticket, replace(ask("x", seed=ticket, max_tokens=4), policy=policy))
    completions = dict(sampler.step(0))
    sampler.load_weights("solver", random_adapter_weights(sources["solver"], 1).items(), 5)
    for _ in range(20):
        completions.update(sampler.step(0))
    versions = [
        completion.versions for _, completion in sorted(completions.items()) if isinstance(completion, Completion)
    ]
    assert versions == [(0, 5), (0, 0), (5, 5), (0, 0)]


def test_a_prompt_is_read_once_by_each_policy(bytewise: PretrainedSource, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler, _ = taught(team(bytewise), slots=32)
    read: list[Any] = []
    plain = sampler.network.prefill
    monkeypatch.setattr(sampler.network, "prefill", lambda prompts: read.extend(prompts) or plain(prompts))
    answers(sampler, [replace(r, messages=ask("one").messages) for r in questions(team(bytewise), 32)])
    assert len(read) == 4


def test_who_has_no_adapter_here_is_refused(bytewise: PretrainedSource) -> None:
    sampler = build_sampler(adapted(bytewise, "solver"), adapted(bytewise, "planner"))
    with pytest.raises(ValueError, match=r"'critic' has no adapter here.*solver, planner"):
        sampler.submit(0, replace(ask("x"), policy="critic"))
    with pytest.raises(ValueError, match="critic"):
        sampler.load_weights("critic", [], 1)


@pytest.mark.parametrize(
    ("edit", "error", "message"),
    [
        (lambda tensors: tensors.popitem(), ValueError, r"adapter of policy 'solver': missing: .*lora_B"),
        (lambda tensors: tensors.update(extra=torch.zeros(1)), ValueError, "unknown: extra"),
        (lambda tensors: tensors.update({next(iter(tensors)): torch.zeros(3)}), ValueError, r"\(3,\) instead of"),
        (lambda tensors: next(iter(tensors.values())).fill_(torch.nan), FloatingPointError, "version 1 .*'solver'"),
    ],
    ids=["missing", "unknown", "shape", "nan"],
)
def test_weights_that_do_not_fit_change_nothing(
    bytewise: PretrainedSource, edit: Any, error: Any, message: str
) -> None:
    source = adapted(bytewise, "solver")
    sampler: Any = build_sampler(source, adapted(bytewise, "planner"))
    before = tensor_bytes(sampler.policy_weights.adapter_tensors("solver"))
    tensors = random_adapter_weights(source, 1)
    edit(tensors)
    with pytest.raises(error, match=message):
        sampler.load_weights("solver", tensors.items(), 1)
    assert sampler.policy_weights.versions == [0, 0]
    assert tensor_bytes(sampler.policy_weights.adapter_tensors("solver")) == before


def test_adapters_are_float32_on_a_base_that_is_not(bytewise: PretrainedSource) -> None:
    source = adapted(replace(bytewise, dtype="bfloat16", device="cpu"), "solver")
    assert {tensor.dtype for tensor in adapter_tensors(source.model()).values()} == {torch.float32}
    sampler, weights = build_sampler(source), random_adapter_weights(source, 1)
    sampler.load_weights("solver", weights.items(), 1)
    requests = questions({"solver": source}, 4)
    for request, completion in zip(requests, answers(sampler, requests), strict=True):
        expected = plain_logprobs(merged_model(source, weights), completion, request.sampling)
        assert completion.logprobs == pytest.approx(expected, abs=0.1)


def test_first_weights_depend_on_the_seed_alone(bytewise: PretrainedSource) -> None:
    def first(seed: int, before: int) -> dict[str, bytes]:
        torch.manual_seed(before)
        return tensor_bytes(adapter_tensors(adapted(bytewise, seed=seed).model()))

    assert first(1, 1) == first(1, 2)
    assert first(1, 1) != first(2, 1)


@pytest.mark.parametrize("targets", [("q_proj", "query"), ("self_attn",), ("norm",), "q_proj", ()], ids=str)
def test_layers_that_cannot_be_adapted_are_named(bytewise: PretrainedSource, targets: str | tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"policy 'solver'.*targets: .*choices: down_proj, .*q_proj.*all-linear"):
        adapted(bytewise, "solver", targets=targets).model()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        ({"path": "nowhere"}, "no such folder"),
        ({"rank": 5}, "made with r=8, not 5"),
        ({"alpha": 5}, "made with lora_alpha=16.0, not 5"),
        ({"peft_type": "IA3"}, "type IA3"),
        ({"use_dora": True}, "made with use_dora=True, not False"),
        ({"use_rslora": True}, "made with use_rslora=True, not False"),
        ({"rank_pattern": {"q_proj": 2}}, "rank_pattern; only LoRA and DoRA"),
        ({"cut": 100}, r"broken adapter_model\.safetensors"),
        ({"lost": "adapter_model.safetensors"}, r"no adapter_model\.safetensors"),
    ],
    ids=str,
)
def test_what_is_wrong_with_a_folder_is_said(
    bytewise: PretrainedSource, tmp_path: Path, spoil: dict[str, Any], message: str
) -> None:
    folder = write_adapter(adapted(bytewise), random_adapter_weights(adapted(bytewise), 1), tmp_path / "adapter")
    weights, config = folder / "adapter_model.safetensors", folder / "adapter_config.json"
    if "cut" in spoil:
        weights.write_bytes(weights.read_bytes()[: spoil["cut"]])
    elif "lost" in spoil:
        weights.unlink()
    elif spoil.keys() & {"peft_type", "use_dora", "use_rslora", "rank_pattern"}:
        config.write_text(json.dumps(json.loads(config.read_text()) | spoil))
    settings = {"path": str(folder)} | {key: spoil[key] for key in spoil if key in ("path", "rank", "alpha")}
    [problem] = adapted(bytewise, **settings).adapter.unmet_requirements()
    assert problem.startswith("path: ")
    assert message.replace("\\", "") in problem


def test_a_folder_made_for_other_layers_is_refused(bytewise: PretrainedSource, tmp_path: Path) -> None:
    few = adapted(bytewise, targets=FEW)
    folder = write_adapter(few, random_adapter_weights(few, 1), tmp_path / "adapter")
    with pytest.raises(ValueError, match=r"policy 'actor': adapter on .*missing: .*k_proj"):
        adapted(bytewise, path=str(folder)).model()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator")
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-3), ("bfloat16", 0.15)])
def test_mixed_rows_hold_on_a_gpu(bytewise: PretrainedSource, dtype: Any, tolerance: float) -> None:
    sources = team(replace(bytewise, dtype=dtype, device="cuda"))
    sampler, weights = taught(sources, slots=7)
    requests = questions(sources)
    for request, completion in zip(requests, answers(sampler, requests), strict=True):
        expected = plain_logprobs(model_of(request.policy, sources, weights), completion, request.sampling)
        assert completion.logprobs == pytest.approx(expected, abs=tolerance)
