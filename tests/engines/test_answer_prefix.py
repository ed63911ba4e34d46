"""Answers that begin with given tokens, and go on as the model would."""

from __future__ import annotations

from dataclasses import replace

import pytest

from marl.core.config import Segments
from marl.models.pretrained import PretrainedSource
from tests.support.transformers_engines import answers, ask, engine, plain_logprobs


def test_an_answer_goes_on_from_its_prefix_as_a_plain_forward_does(bytewise: PretrainedSource) -> None:
    sampler, model = engine(bytewise, slots=3), bytewise.model()
    whole = answers(sampler, [ask("say", seed, max_tokens=20) for seed in range(3)])
    requests = []
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
        assert completion.segments[0] == min(4, len(completion.token_ids) - 1)


def test_a_stop_text_may_begin_in_the_prefix(bytewise: PretrainedSource) -> None:
    sampler = engine(bytewise)
    [completion] = answers(sampler, [ask("say", 3, max_tokens=12)])
    ids, chat = completion.token_ids, sampler.chat_tokenizer
    stop = chat.text(ids[4:6])
    request = replace(ask("say", 3, max_tokens=12, temperature=0, stop=(stop,)), prefix=ids[:5])
    [again] = answers(sampler, [request])
    assert stop not in again.text
    assert again.token_ids[:5] == ids[:5]


def test_a_prefix_that_leaves_nothing_to_sample_is_refused(bytewise: PretrainedSource) -> None:
    with pytest.raises(ValueError, match="a prefix of 4 tokens leaves none to sample; a completion has at most 4"):
        engine(bytewise).submit(0, replace(ask("say", max_tokens=4), prefix=(1, 2, 3, 4)))
    with pytest.raises(ValueError, match="either a prefix or a forced text"):
        engine(bytewise).submit(0, replace(ask("say", forced="x"), prefix=(1,)))
