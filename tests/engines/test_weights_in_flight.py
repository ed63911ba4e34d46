"""New weights while completions are sampled: each token keeps the version and the log-probability of its sampling."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch

from marl.core.types import Completion
from marl.engines.transformers.settings import Transformers
from marl.engines.vllm.engine import VLLMEngine
from marl.engines.vllm.settings import VLLM
from marl.models.pretrained import PretrainedSource
from marl.protocols import CacheAtUpdate, Engine
from marl.trainers.policy_gradient.mismatch import icepop, tis
from tests.support.changed_weights import (
    assert_versions_of_long_answers,
    logprobs_of_changing_weights,
    shifted_model,
)
from tests.support.lora_adapters import adapted, random_adapter_weights
from tests.support.transformers_engines import ask, plain_logprobs
from tests.support.transformers_engines import engine as transformers_engine
from tests.support.vllm_helpers import SETTINGS, vllm_engine, wide_headed

pytestmark = pytest.mark.xdist_group("vllm")
KINDS: tuple[CacheAtUpdate, ...] = get_args(CacheAtUpdate)
CLOSE = 3e-5


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> PretrainedSource:
    return wide_headed(tmp_path_factory.mktemp("models") / "wide")


@pytest.fixture(scope="module")
def models(source: PretrainedSource) -> dict[int, Any]:
    """Version of the weights -> model."""
    return {0: source.model(), 4: shifted_model(source, 1), 9: shifted_model(source, 2)}


@pytest.fixture(scope="module", params=KINDS)
def speaker(request: pytest.FixtureRequest, source: PretrainedSource) -> Iterator[tuple[VLLMEngine, CacheAtUpdate]]:
    engine = vllm_engine(source, cache_at_update=request.param)
    yield engine, request.param
    engine.close()


def completions_overtaken_twice(sampler: Engine, models: dict[int, Any], **sampling: Any) -> list[Completion]:
    """Answers to requests of several lengths, during which versions 4 and 9 of the weights arrive."""
    for ticket in range(6):
        sampler.submit(ticket, ask("word " * (1 + 9 * (ticket % 3)), ticket, max_tokens=8 + ticket, **sampling))
    answers = dict[int, Any]()
    for version in (4, 9):
        for _ in range(3):
            answers.update(sampler.step(0))
        sampler.load_weights("actor", models[version].named_parameters(), version)
    deadline = time.monotonic() + 60
    while len(answers) < 6 and time.monotonic() < deadline:
        answers.update(sampler.step(0.1))
    return [answers[ticket] for ticket in range(6)]


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("at_update", KINDS)
def test_each_token_keeps_the_version_that_sampled_it(
    source: PretrainedSource, models: dict[int, Any], at_update: CacheAtUpdate, cache: str
) -> None:
    sampler = transformers_engine(source, cache=cache, cache_at_update=at_update)
    completions = completions_overtaken_twice(sampler, models)
    lengths = [len(completion.token_ids) for completion in completions]
    assert max(lengths) >= 8
    for completion, length in zip(completions, lengths, strict=True):
        if length > 6:
            assert completion.version_runs == ((0, 3), (4, 3), (9, length - 6))
            assert completion.versions == (0, 9)
        expected = logprobs_of_changing_weights(models, completion, at_update)
        assert completion.logprobs == pytest.approx(expected, abs=CLOSE)


@pytest.mark.parametrize("stop", [(), ("never",)], ids=["answered at once", "watched token by token"])
def test_vllm_reports_the_version_of_each_token(
    speaker: tuple[VLLMEngine, CacheAtUpdate], models: dict[int, Any], stop: tuple[str, ...]
) -> None:
    engine, at_update = speaker
    completions = completions_overtaken_twice(engine, models, stop=stop)
    for completion in completions:
        expected = logprobs_of_changing_weights(models, completion, at_update)
        assert completion.logprobs == pytest.approx(expected, abs=CLOSE)
    longest = max(completions, key=lambda completion: len(completion.token_ids))
    assert [version for version, _ in longest.version_runs] == [0, 4, 9]
    assert sum(count for _, count in longest.version_runs) == len(longest.token_ids)
    engine.remove_policy("actor")
    engine.submit(9, ask("alone", max_tokens=3))
    [(_, alone)] = [answer for _ in range(9) for answer in engine.step(0)]
    assert isinstance(alone, Completion)
    assert (alone.versions, alone.version_runs) == ((0, 0), ())


def test_ratios_are_those_of_the_weights_that_sampled_each_token(
    source: PretrainedSource, models: dict[int, Any]
) -> None:
    sampler = transformers_engine(source, cache_at_update="recompute")
    completion = max(completions_overtaken_twice(sampler, models), key=lambda each: len(each.token_ids))
    by_version = {version: plain_logprobs(model, completion, ask("").sampling) for version, model in models.items()}
    learner, sampled = torch.tensor([by_version[9]]), torch.tensor([completion.logprobs])
    mask = torch.ones_like(learner, dtype=torch.bool)
    ratios: list[float] = []
    for index, (newest, first, second) in enumerate(zip(by_version[9], by_version[0], by_version[4], strict=True)):
        # Three tokens of version 0, three of version 4, and those of version 9, the learner's own weights.
        sampler_logprob = [first] * 3 + [second] * 3 + [newest] * 99
        ratios.append(float(torch.tensor(newest - sampler_logprob[index]).exp()))
    assert ratios[6:] == [1.0] * (len(ratios) - 6)
    assert max(abs(ratio - 1) for ratio in ratios[:6]) > 0.05
    assert tis(learner, sampled, mask)[0].tolist() == pytest.approx([min(ratio, 2.0) for ratio in ratios], abs=1e-3)
    inside = [ratio if 0.5 <= ratio <= 5 else 0.0 for ratio in ratios]
    assert icepop(learner, sampled, mask)[0].tolist() == pytest.approx(inside, abs=1e-3)


def test_an_update_of_one_adapter_leaves_the_versions_of_others(source: PretrainedSource) -> None:
    sources = {name: adapted(source, name) for name in ("solver", "planner")}
    tensors = random_adapter_weights(sources["solver"], 1)
    for settings in (VLLM(**SETTINGS), Transformers(), Transformers(cache_at_update="recompute")):
        sampler: Any = settings.build_shared(sources)
        for ticket, policy in enumerate(("solver", "planner")):
            sampler.submit(ticket, replace(ask("say", ticket, max_tokens=8), policy=policy))
        answers = {ticket: answer for _ in range(3) for ticket, answer in sampler.step(0)}
        sampler.load_weights("solver", tensors.items(), 5)
        answers |= {ticket: answer for _ in range(12) for ticket, answer in sampler.step(0)}
        assert [version for version, _ in answers[0].version_runs] == [0, 5]
        assert answers[1].version_runs == ()
        if isinstance(sampler, VLLMEngine):
            sampler.close()


@pytest.mark.slow
def test_vllm_in_its_own_process_pauses_between_two_tokens(source: PretrainedSource, models: dict[int, Any]) -> None:
    engine = vllm_engine(source, process=True, cache_at_update="recompute")
    assert_versions_of_long_answers(engine, models, "recompute")
    engine.close()
