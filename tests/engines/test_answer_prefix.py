"""Answers that begin with given tokens, and go on as the model would."""

from __future__ import annotations

from dataclasses import replace

import pytest

from marl.models.pretrained import PretrainedSource
from tests.support.transformers_engines import answers, ask, assert_answers_go_on_from_prefixes, engine


def test_an_answer_goes_on_from_its_prefix_as_a_plain_forward_does(bytewise: PretrainedSource) -> None:
    assert_answers_go_on_from_prefixes(engine(bytewise, slots=3), bytewise.model())


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
