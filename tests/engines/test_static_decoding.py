"""Decoding in tensors of fixed shapes samples the same tokens, and can be repeated from a record of its operations."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch

from marl.core.types import Completion, Request
from marl.engines.transformers.engine import TransformersEngine
from marl.engines.transformers.memory import power_of_two_at_least
from marl.engines.transformers.sampling import (
    random_counters_from_seeds,
    uniform_random_numbers,
    uniform_random_numbers_on_device,
)
from marl.engines.transformers.static_decoding import CudaGraphs, StaticDecoder
from marl.models.pretrained import PretrainedSource
from tests.support.lora_adapters import adapted, build_sampler, merged_model, random_adapter_weights
from tests.support.recorded_steps import RecordedSteps
from tests.support.transformers_engines import answers, ask, engine, plain_logprobs

SETTINGS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.7, "stop": ("e", "qu")},
    {"temperature": 0},
    {"top_p": 0.8},
    {"temperature": 1.3, "top_k": 20, "top_p": 0.9},
]


def mixed_requests(count: int, longest: int = 24) -> list[Request]:
    """Prompts and completions of many lengths under five sampling settings, some prompts equal."""
    rng = np.random.default_rng(7)
    requests: list[Request] = []
    for index in range(count):
        length, words = int(rng.integers(1, longest + 1)), int(rng.integers(1, 9))
        requests.append(ask("word " * words, seed=index, max_tokens=length, **SETTINGS[index % len(SETTINGS)]))
    return requests


def record_steps(sampler: TransformersEngine) -> RecordedSteps:
    """Let `sampler` repeat recorded steps, as it repeats CUDA graphs on a GPU."""
    decoder = sampler._decoder
    assert isinstance(decoder, StaticDecoder)
    decoder.steps = RecordedSteps()
    return decoder.steps


def assert_same_tokens(ones: Sequence[Completion], others: Sequence[Completion]) -> None:
    """Masked positions beyond a row's length may change the order of sums, so the last digits are free."""
    for one, other in zip(ones, others, strict=True):
        assert replace(one, logprobs=()) == replace(other, logprobs=())
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


@pytest.mark.parametrize("slots", [3, 64])
def test_a_static_cache_gives_the_tokens_of_a_dynamic_one(bytewise: PretrainedSource, slots: int) -> None:
    requests = mixed_requests(20)
    plain = answers(engine(bytewise, slots=slots, cache="dynamic"), requests)
    assert_same_tokens(answers(engine(bytewise, slots=slots, cache="static"), requests), plain)


def test_recorded_steps_give_the_tokens_of_a_dynamic_cache(bytewise: PretrainedSource) -> None:
    sampler = engine(bytewise, slots=7, cache="static")
    steps = record_steps(sampler)
    for seed in (0, 1):
        requests = [replace(request, seed=request.seed + 99 * seed) for request in mixed_requests(20)]
        assert_same_tokens(answers(sampler, requests), answers(engine(bytewise, slots=7, cache="dynamic"), requests))
    assert steps.repeated > 5 * len(steps.records)


def test_a_cache_that_grows_is_recorded_anew(bytewise: PretrainedSource) -> None:
    sampler, model_context = engine(bytewise, slots=2, cache="static", max_context=250), 250
    steps = record_steps(sampler)
    requests = [ask("w" * letters, seed=letters, max_tokens=40) for letters in (10, 90, 180, model_context - 30)]
    assert_same_tokens(answers(sampler, requests), answers(engine(bytewise, slots=2, max_context=250), requests))
    assert steps.cleared > 1


def test_rows_of_several_adapters_keep_their_policies_in_recorded_steps(bytewise: PretrainedSource) -> None:
    sources = [
        adapted(bytewise, "solver", rank=4, alpha=8),
        adapted(bytewise, "planner", rank=2, use_dora=True),
        adapted(bytewise, "critic"),
    ]
    samplers = [build_sampler(*sources, slots=6, cache=cache) for cache in ("static", "dynamic")]
    steps = record_steps(samplers[0])
    for version in (1, 2):
        requests: list[Request] = []
        for number in range(24):
            # In some batches all rows have one policy, which a dynamic cache computes without the other adapters.
            request = ask("w" * (1 + number % 3), seed=number + 50 * version, max_tokens=2 + number % 9)
            requests.append(replace(request, policy=sources[number // 4 % 3].policy))
        for sampler in samplers:
            for source in sources[:2]:
                weights = random_adapter_weights(source, version)
                sampler.load_weights(source.policy, weights.items(), version)
        static, dynamic = (answers(sampler, requests) for sampler in samplers)
        assert_same_tokens(static, dynamic)
    assert steps.repeated > len(steps.records)
    for sampler in samplers:
        sampler.remove_policy("critic")
        sampler.add_policy("judge", adapted(bytewise, "judge", rank=3))
    assert not steps.records
    asked = [replace(ask("hello", seed, max_tokens=9), policy="judge") for seed in range(5)]
    assert_same_tokens(answers(samplers[0], asked), answers(samplers[1], asked))


def test_imposed_ends_of_thoughts_are_imposed_in_recorded_steps(bytewise: PretrainedSource) -> None:
    requests = [ask("why?", seed, max_tokens=24, thinking_tokens=seed % 5) for seed in range(8)]
    requests += [ask("why?", seed, max_tokens=24) for seed in range(3)]
    found: list[list[Completion]] = []
    for cache in ("static", "dynamic"):
        sampler = engine(bytewise, slots=4, cache=cache)
        sampler.chat_tokenizer.tokenizer.chat_template += "{% if add_generation_prompt %}<think>\n{% endif %}"
        if cache == "static":
            record_steps(sampler)
        found.append(answers(sampler, requests))
    assert sum(bool(completion.imposed) for completion in found[0]) == 8
    assert_same_tokens(*found)


def test_the_device_draws_the_random_numbers_of_the_host() -> None:
    counters = random_counters_from_seeds(range(1000))
    positions = np.arange(1000) * 7 % 4096
    drawn = uniform_random_numbers_on_device(torch.from_numpy(counters.view(np.int64)), torch.from_numpy(positions))
    assert drawn.numpy().tobytes() == uniform_random_numbers(counters, positions).tobytes()


def test_buckets_are_the_powers_of_two() -> None:
    assert [power_of_two_at_least(number) for number in (0, 0.5, 1, 2, 3, 4, 5, 8.5, 256, 257)] == [
        1, 1, 1, 2, 4, 4, 8, 16, 256, 512,
    ]  # fmt: skip


def count_calls(task: Callable[[], object]) -> tuple[int, Counter[str]]:
    """Return the number of Python calls of `task` outside of recorded steps, and its transfers by their function."""
    transfers, calls, inside = Counter[str](), 0, 0

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls, inside
        is_step = frame.f_code is RecordedSteps.run.__code__
        inside += is_step * ((event == "call") - (event == "return"))
        if inside and not is_step:
            return
        calls += event == "call"
        name = argument.__name__ if event == "c_call" else ""
        if name in {"numpy", "item", "tolist", "cpu", "from_numpy", "tensor", "to"}:
            transfers[name] += isinstance(argument.__self__, torch.Tensor) or name in {"from_numpy", "tensor"}

    sys.setprofile(watch)
    try:
        task()
    finally:
        sys.setprofile(None)
    return calls, transfers


def test_a_token_of_all_rows_costs_one_transfer_and_a_fixed_number_of_python_calls(bytewise: PretrainedSource) -> None:
    calls_by_rows: dict[int, int] = {}
    for rows in (4, 64):
        sampler = engine(bytewise, slots=rows, cache="static")
        sampler._ends_E = np.array([], np.int64)
        record_steps(sampler)
        for ticket in range(rows):
            sampler.submit(ticket, ask("hello", seed=ticket, max_tokens=30))
        for _ in range(4):
            assert not sampler.step(0)
        calls_by_rows[rows], transfers = count_calls(lambda: sampler.step(0))  # noqa: B023
        assert +transfers == {"numpy": 1}
    assert calls_by_rows[4] == calls_by_rows[64] < 40


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator")
def test_cuda_graphs_are_replayed_through_changes_of_rows_weights_policies_and_cache(
    bytewise: PretrainedSource,
) -> None:
    source = replace(bytewise, device="cuda")
    sources = [adapted(source, "solver", rank=4, alpha=8), adapted(source, "planner", rank=2, use_dora=True)]
    sampler = build_sampler(*sources, slots=6)
    decoder = sampler._decoder
    assert isinstance(decoder, StaticDecoder), "a static cache is the default on a GPU"
    assert isinstance(decoder.steps, CudaGraphs)
    for version in (1, 2):
        for adapter in sources:
            sampler.load_weights(adapter.policy, random_adapter_weights(adapter, version).items(), version)
        requests: list[Request] = []
        for number in range(24):
            request = ask("w" * (1 + number * 5), seed=number, max_tokens=2 + number % 9, **SETTINGS[number % 5])
            requests.append(replace(request, policy=sources[number // 4 % 2].policy))
        for request, completion in zip(requests, answers(sampler, requests), strict=True):
            adapter = next(adapter for adapter in sources if adapter.policy == request.policy)
            model = merged_model(adapter, random_adapter_weights(adapter, version))
            expected = plain_logprobs(model, completion, request.sampling)
            if request.sampling.temperature:
                assert completion.logprobs == pytest.approx(expected, abs=1e-3)
    sampler.add_policy("judge", adapted(source, "judge", rank=3))
    [completion] = answers(sampler, [replace(ask("hello", 1, max_tokens=9), policy="judge")])
    assert completion.logprobs == pytest.approx(plain_logprobs(source.model(), completion, ask("").sampling), abs=1e-3)
