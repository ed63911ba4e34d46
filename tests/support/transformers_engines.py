"""What several tests of the engines need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from marl.core.config import Sampling, Segments
from marl.core.types import Completion, CompletionFailure, Message, Request
from marl.engines.transformers.engine import TransformersEngine
from marl.engines.transformers.policy_weights import FullWeights
from marl.engines.transformers.settings import Transformers
from marl.models.pretrained import PretrainedSource
from marl.protocols import Engine, ModelPreparation

CONTEXT = ModelPreparation("actor", corpus=lambda seed: (), warm_up=lambda base, settings: base)
"""The context of a model that needs nothing of the scenario."""


def ask(text: str, seed: int = 0, forced: str | None = None, **sampling: Any) -> Request:
    return Request("actor", (Message("user", text),), Sampling(**sampling), seed=seed, forced=forced)


def engine(source: PretrainedSource, **settings: Any) -> TransformersEngine:
    return sampler_of(source.model(), source, **settings)


def sampler_of(model: Any, source: PretrainedSource, **settings: Any) -> TransformersEngine:
    """An engine for any model, with the tokenizer of `source`."""
    return TransformersEngine(FullWeights(model, source), source.tokenizer(), Transformers(**settings))


def raw_answers(sampler: Engine, requests: Sequence[Request]) -> list[Completion | CompletionFailure]:
    """Submit all at once; answers in the order of the requests."""
    for ticket, request in enumerate(requests):
        sampler.submit(ticket, request)
    completions: dict[int, Completion | CompletionFailure] = {}
    for _ in range(10_000):
        completions.update(sampler.step(0))
        if len(completions) == len(requests):
            return [completions[ticket] for ticket in range(len(requests))]
    raise AssertionError("requests were not answered")


def answers(sampler: Engine, requests: Sequence[Request]) -> list[Completion]:
    completions = raw_answers(sampler, requests)
    assert all(isinstance(answer, Completion) for answer in completions)
    return [answer for answer in completions if isinstance(answer, Completion)]


@torch.no_grad()
def plain_logprobs(model: Any, completion: Completion, sampling: Sampling) -> list[float]:
    """What one full forward and Transformers' own warpers say of the completion's tokens."""
    ids: Any = torch.tensor([completion.prompt_ids + completion.token_ids], device=model.device)
    start = len(completion.prompt_ids) - 1
    scores: Any = model(input_ids=ids, use_cache=False).logits[0, start:-1].float()
    warpers = LogitsProcessorList()
    if sampling.temperature != 1:
        warpers.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k:
        warpers.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        warpers.append(TopPLogitsWarper(sampling.top_p))
    logprobs = warpers(ids, scores).log_softmax(-1)
    return logprobs.gather(1, ids[0, start + 1 :, None]).squeeze(1).tolist()


def assert_answers_go_on_from_prefixes(sampler: Engine, model: Any) -> None:
    """Answers that begin with given tokens keep them, and go on with the probabilities of `model`."""
    whole = answers(sampler, [ask("say", seed, max_tokens=20) for seed in range(3)])
    requests: list[Request] = []
    for seed, completion in enumerate(whole):
        for length in (1, 5, 5):
            request = ask("say", 10 + seed + length, max_tokens=20)
            requests.append(
                replace(request, prefix=completion.token_ids[:length], segments=Segments(by="tokens", length=5))
            )
    for request, completion in zip(requests, answers(sampler, requests), strict=True):
        given = len(request.prefix)
        assert completion.prompt_ids == whole[0].prompt_ids
        assert completion.token_ids[:given] == request.prefix
        assert given < len(completion.token_ids) <= 20
        assert (completion.prefix_tokens, completion.imposed) == (given, tuple(range(given)))
        assert completion.logprobs[:given] == (0.0,) * given
        expected = plain_logprobs(model, completion, request.sampling)
        assert completion.logprobs[given:] == pytest.approx(expected[given:], abs=1e-5)
        assert completion.segments[-1] == len(completion.token_ids) - 1
