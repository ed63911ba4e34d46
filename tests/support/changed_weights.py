"""Models whose weights change while a completion is sampled, computed with plain Transformers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from marl.core.types import Completion
from marl.models.pretrained import PretrainedSource
from marl.protocols import CacheAtUpdate, Engine
from marl.training.staleness import tokens_by_version
from tests.support.transformers_engines import ask

_CLOSE = 3e-5
"""Maximum difference of two float32 computations, in nats."""


@torch.no_grad()
def shifted_model(source: PretrainedSource, seed: int) -> Any:
    """The model of `source` with normal noise of standard deviation .05 on all weights."""
    model, generator = source.model(), torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter += torch.randn(parameter.shape, generator=generator) * 0.05
    return model


@torch.no_grad()
def logprobs_of_changing_weights(
    models: Mapping[int, Any], completion: Completion, cache_at_update: CacheAtUpdate
) -> list[float]:
    """The log-probability of each token under the model of its version; `models`: version -> model.

    With `recompute`, the model of a run of tokens reads the prompt and all tokens before. With `keep`, it reads the
    keys and values that earlier models computed.
    """
    versions = [version for version, count in tokens_by_version(completion) for _ in range(count)]
    context, cache, last = list(completion.prompt_ids), DynamicCache(), versions[0]
    unread = list(completion.prompt_ids)
    logprobs: list[float] = []
    for version, token in zip(versions, completion.token_ids, strict=True):
        if version != last and cache_at_update == "recompute":
            cache, unread = DynamicCache(), list(context)
        ids: Any = torch.tensor([unread])
        logits = models[version](input_ids=ids, past_key_values=cache, use_cache=True).logits[0, -1]
        logprobs.append(float(logits.log_softmax(-1)[token]))
        context.append(token)
        unread, last = [token], version
    return logprobs


def assert_versions_of_long_answers(engine: Engine, models: dict[int, Any], at_update: CacheAtUpdate) -> None:
    """Answers of another process, which samples on while this one waits, have the right versions."""
    for ticket in range(16):
        engine.submit(ticket, ask("word " * (1 + ticket), ticket, max_tokens=300))
    answers = dict[int, Any]()
    deadline = time.monotonic() + 240
    for version in (4, 9):
        # Requests are served in order, so tokens of the long answers were sampled before this one-token answer.
        engine.submit(100 + version, ask("one", max_tokens=1))
        while 100 + version not in answers and time.monotonic() < deadline:
            answers.update(engine.step(0.1))
        engine.load_weights("actor", models[version].named_parameters(), version)
    while len(answers) < 18 and time.monotonic() < deadline:
        answers.update(engine.step(0.1))
    assert {version for answer in answers.values() for version, _ in answer.version_runs} == {0, 4, 9}
    for answer in answers.values():
        expected = logprobs_of_changing_weights(models, answer, at_update)
        assert answer.logprobs == pytest.approx(expected, abs=_CLOSE)
