from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from marl.core.config import Sampling
from marl.core.types import Completion, CompletionFailure, Message, Request, SpanFromEarlierTurn
from marl.models.pretrained import PretrainedSource
from tests.support.transformers_engines import answers, ask, engine, plain_logprobs, raw_answers

SAMPLINGS = [
    {"temperature": 1.0},
    {"temperature": 0.7},
    {"temperature": 1.3},
    {"top_p": 0.8},
    {"top_k": 5},
    {"temperature": 1.3, "top_k": 20, "top_p": 0.9},
]


def uneven(count: int, longest: int, **sampling: Any) -> list[Request]:
    """Prompts and completions of many lengths, some prompts equal."""
    rng = np.random.default_rng(7)
    lengths = rng.integers(1, longest + 1, count)
    return [
        ask("word " * int(rng.integers(1, 9)), seed=index, max_tokens=int(length), **sampling)
        for index, length in enumerate(lengths)
    ]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_logprobs_are_those_of_a_plain_forward(bytewise: PretrainedSource, sampling: dict[str, float]) -> None:
    sampler, model = engine(bytewise, slots=5), bytewise.model()
    requests = uneven(16, 24, **sampling)
    for request, completion in zip(requests, answers(sampler, requests), strict=True):
        expected = plain_logprobs(model, completion, request.sampling)
        assert completion.logprobs == pytest.approx(expected, abs=1e-5)


def test_rows_with_different_sampling_share_a_batch(bytewise: PretrainedSource) -> None:
    sampler, model = engine(bytewise, slots=8), bytewise.model()
    requests = [ask("the same", seed=index, max_tokens=12, **kind) for index, kind in enumerate(SAMPLINGS)]  # type: ignore[arg-type]
    for request, completion in zip(requests, answers(sampler, requests), strict=True):
        assert completion.logprobs == pytest.approx(plain_logprobs(model, completion, request.sampling), abs=1e-5)


def test_temperature_zero_takes_the_likeliest_token_with_certainty(bytewise: PretrainedSource) -> None:
    [completion] = answers(engine(bytewise), [ask("hello", temperature=0, max_tokens=10)])
    ids = torch.tensor([completion.prompt_ids + completion.token_ids])
    likeliest = bytewise.model()(ids).logits[0, len(completion.prompt_ids) - 1 : -1].argmax(-1)
    assert completion.token_ids == tuple(likeliest.tolist())
    assert set(completion.logprobs) == {0.0}


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_forced_scores_equal_sampled_logprobs(words: PretrainedSource, sampling: dict[str, Any]) -> None:
    sampler = engine(words)
    requests = [
        ask("card " + "KQJ"[seed % 3] * (seed % 2), seed=seed, max_tokens=20, **sampling) for seed in range(300)
    ]
    pairs = [
        (request, completion)
        for request, completion in zip(requests, answers(sampler, requests), strict=True)
        # Text alone does not tell special tokens apart.
        if completion.finish == "stop" and not set(completion.token_ids[:-1]) & {0, 1, 3}
    ]
    assert len(pairs) > 5
    scored = answers(sampler, [replace(request, forced=completion.text) for request, completion in pairs])
    for (_, sampled), forced in zip(pairs, scored, strict=True):
        assert forced.token_ids == sampled.token_ids
        assert forced.prompt_ids == sampled.prompt_ids
        assert forced.logprobs == pytest.approx(sampled.logprobs, abs=1e-5)


def test_forced_texts_of_many_lengths_fit_small_batches(bytewise: PretrainedSource) -> None:
    sampler, model = engine(bytewise, prefill_tokens=64), bytewise.model()
    requests = [ask("p" * (1 + seed % 4 * 9), forced="x" * (seed % 7)) for seed in range(20)]
    for request, completion in zip(requests, answers(sampler, requests), strict=True):
        assert completion.text == request.forced
        assert len(completion.token_ids) == len(request.forced or "") + 1
        assert completion.logprobs == pytest.approx(plain_logprobs(model, completion, request.sampling), abs=1e-5)


def test_forced_tokens_outside_the_sampled_set_have_no_probability(bytewise: PretrainedSource) -> None:
    sampler = engine(bytewise)
    scored = answers(sampler, [ask("a", forced=chr(97 + letter), top_k=1) for letter in range(26)])
    assert min(completion.logprobs[0] for completion in scored) == -np.inf


def test_a_request_says_the_same_whatever_its_neighbours(bytewise: PretrainedSource) -> None:
    requests = uneven(100, 24)
    crowd = answers(engine(bytewise, slots=64), requests)
    few = answers(engine(bytewise, slots=3), requests)
    backwards = answers(engine(bytewise, slots=17), requests[::-1])[::-1]
    alone_engine = engine(bytewise, slots=1)
    alone = [answers(alone_engine, [request])[0] for request in requests[:30]]
    pairs = [*zip(crowd, few, strict=True), *zip(crowd, backwards, strict=True), *zip(crowd[:30], alone, strict=True)]
    assert sum(one.token_ids == other.token_ids for one, other in pairs) >= 0.999 * len(pairs)


def test_the_same_engine_settings_give_the_same_bits(bytewise: PretrainedSource) -> None:
    requests = uneven(40, 24)
    assert answers(engine(bytewise, slots=7), requests) == answers(engine(bytewise, slots=7), requests)


def test_first_tokens_follow_the_softmax(words: PretrainedSource) -> None:
    count = 20_000
    completions = answers(engine(words, slots=2_000), [ask("card K", seed=seed, max_tokens=1) for seed in range(count)])
    seen = np.bincount([completion.token_ids[0] for completion in completions], minlength=len(words.tokenizer()))
    ids = torch.tensor([completions[0].prompt_ids])
    expected = count * words.model()(ids).logits[0, -1].softmax(-1).detach().double().numpy()
    chi_square = float(((seen - expected) ** 2 / expected).sum())
    degrees = len(expected) - 1
    # Wilson and Hilferty's normal approximation of the 99.9 % quantile.
    assert chi_square < degrees * (1 - 2 / (9 * degrees) + 3.09 * (2 / (9 * degrees)) ** 0.5) ** 3


def test_cut_tokens_are_never_said(bytewise: PretrainedSource) -> None:
    sampler, model = engine(bytewise, slots=128), bytewise.model()
    requests = [ask("go", seed=seed, max_tokens=4, top_k=3, top_p=0.9) for seed in range(300)]
    completions = answers(sampler, requests)
    assert len({completion.token_ids[0] for completion in completions}) <= 3
    for request, completion in zip(requests, completions, strict=True):
        assert min(plain_logprobs(model, completion, request.sampling)) > -np.inf


def test_three_slots_serve_twenty_uneven_requests(bytewise: PretrainedSource) -> None:
    requests = uneven(20, 40)
    completions = answers(engine(bytewise, slots=3), requests)
    for request, completion in zip(requests, completions, strict=True):
        full = len(completion.token_ids) == request.sampling.max_tokens
        assert completion.finish == ("stop" if completion.token_ids[-1] == 1 else "length")
        assert full or completion.finish == "stop"


def test_lower_tickets_are_served_first(bytewise: PretrainedSource) -> None:
    sampler = engine(bytewise, slots=1)
    for ticket in (5, 3, 9, 1):
        sampler.submit(ticket, ask("x", seed=ticket, max_tokens=2))
    order = [ticket for _ in range(20) for ticket, _ in sampler.step(0)]
    assert order == [1, 3, 5, 9]


def test_distinct_prompts_are_read_once(bytewise: PretrainedSource, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = engine(bytewise, slots=4)
    read: list[tuple[int, ...]] = []
    plain = sampler.network.prefill
    monkeypatch.setattr(sampler.network, "prefill", lambda prompts: read.extend(prompts) or plain(prompts))
    answers(sampler, [ask("one", seed=seed, max_tokens=3 + seed) for seed in range(12)])
    assert len(read) == 1


def test_prompts_of_many_lengths_are_read_in_several_forwards(
    bytewise: PretrainedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler, model = engine(bytewise, prefill_tokens=100), bytewise.model()
    monkeypatch.setattr("marl.engines.transformers.model_runner._MAX_LOGITS_PER_FORWARD", 6 * 259)
    requests = [ask("p" * (1 + seed % 8 * 6), seed=seed, max_tokens=5) for seed in range(24)]
    for request, completion in zip(requests, answers(sampler, requests), strict=True):
        assert completion.logprobs == pytest.approx(plain_logprobs(model, completion, request.sampling), abs=1e-5)


def test_the_sampled_end_token_is_kept_but_not_in_the_text(words: PretrainedSource) -> None:
    completions = answers(engine(words), [ask("card K", seed=seed, max_tokens=30) for seed in range(40)])
    ended = [completion for completion in completions if completion.finish == "stop"]
    assert ended
    for completion in ended:
        assert completion.token_ids[-1] == words.tokenizer().eos_token_id
        assert "<eos>" not in completion.text
        assert len(completion.logprobs) == len(completion.token_ids)


def test_stop_texts_end_a_completion_and_are_cut_from_its_text(words: PretrainedSource) -> None:
    sampler = engine(words)
    requests = [ask("card K", seed=seed, max_tokens=40, stop=("]", "bet call")) for seed in range(60)]
    stopped = 0
    for completion in answers(sampler, requests):
        whole = sampler.chat_tokenizer.text(completion.token_ids)
        assert "]" not in completion.text
        assert "bet call" not in completion.text
        before = sampler.chat_tokenizer.text(completion.token_ids[:-1])
        assert "]" not in before
        assert "bet call" not in before
        if whole != completion.text:
            stopped += 1
            assert completion.finish == "stop"
            assert whole.startswith(completion.text)
    assert stopped > 10


def test_stop_texts_of_several_bytes_are_found(bytewise: PretrainedSource) -> None:
    sampler = engine(bytewise)
    ids = tuple(bytewise.tokenizer()("ab ändé ✓ c", add_special_tokens=False).input_ids)
    ends = [
        count for count in range(1, len(ids) + 1) if sampler.chat_tokenizer.ends_with_stop_text(("é ✓",), ids[:count])
    ]
    text = sampler.chat_tokenizer.text(ids[: ends[0]])
    assert text == "ab ändé ✓"
    assert sampler.chat_tokenizer.truncate_at_stop_text(("é ✓",), text) == "ab änd"


def test_a_prompt_longer_than_the_context_overflows(bytewise: PretrainedSource) -> None:
    sampler = engine(bytewise, max_context=32)
    long, fits = raw_answers(sampler, [ask("x" * 40), ask("x" * 20, max_tokens=100, seed=3)])
    assert isinstance(long, CompletionFailure)
    assert long.finish == "overflow"
    assert "32" in long.reason
    assert isinstance(fits, Completion)
    assert len(fits.prompt_ids) + len(fits.token_ids) <= 32
    [forced] = raw_answers(sampler, [ask("x" * 20, forced="y" * 20)])
    assert isinstance(forced, CompletionFailure)


def test_a_completion_may_fill_the_context_to_the_last_token(bytewise: PretrainedSource) -> None:
    sampler = engine(bytewise, max_context=16)
    completions = answers(sampler, [ask("x" * 9, max_tokens=100, seed=seed) for seed in range(30)])
    full = [completion for completion in completions if completion.finish == "length"]
    assert {len(completion.prompt_ids) + len(completion.token_ids) for completion in full} == {16}
    model = bytewise.model()
    for completion in full:
        assert completion.logprobs == pytest.approx(plain_logprobs(model, completion, Sampling()), abs=1e-5)


def test_cancelled_requests_are_not_answered(bytewise: PretrainedSource) -> None:
    sampler = engine(bytewise, slots=2)
    for ticket in range(6):
        sampler.submit(ticket, ask("x", seed=ticket, max_tokens=5))
    first = [ticket for ticket, _ in sampler.step(0)]
    sampler.cancel([0, 4, 77])
    rest = [ticket for _ in range(40) for ticket, _ in sampler.step(0)]
    assert sorted(first + rest) == [ticket for ticket in range(6) if ticket not in (0, 4)]


def test_a_ticket_in_use_is_refused(bytewise: PretrainedSource) -> None:
    sampler = engine(bytewise)
    sampler.submit(1, ask("x"))
    with pytest.raises(ValueError, match="ticket 1"):
        sampler.submit(1, ask("y"))


def test_continued_tokens_are_kept_byte_for_byte(bytewise: PretrainedSource) -> None:
    sampler = engine(bytewise)
    tokenizer = bytewise.tokenizer()
    first = answers(sampler, [ask("hi", seed=seed, max_tokens=30) for seed in range(30)])
    for completion in first:
        ids = completion.prompt_ids + completion.token_ids
        request = Request("actor", (Message("user", "again"),), Sampling(max_tokens=2), continues=ids)
        [second] = answers(sampler, [request])
        assert second.prompt_ids[: len(ids)] == ids
        added = tokenizer.decode(second.prompt_ids[len(ids) :])
        assert added == ("again<assistant>" if completion.finish == "stop" else "<eos>again<assistant>")


def test_a_completion_says_which_tokens_of_its_prompt_were_marked(bytewise: PretrainedSource) -> None:
    marks = tuple(
        SpanFromEarlierTurn(("e", nth), "heard", 0, begin, end)
        for nth, (begin, end) in enumerate([(0, 3), (5, 7), (9, 9)])
    )
    plain = [ask("Ann: é 42"), ask("Ann: é 42", forced="ok")]
    told = [replace(request, marks=marks) for request in plain]
    for before, after in zip(answers(engine(bytewise), plain), answers(engine(bytewise), told), strict=True):
        # Two bytes are the letter é; the last mark is the end of the message, behind ten bytes.
        assert after.mark_tokens == ((0, 3), (5, 8), (10, 10))
        assert replace(after, mark_tokens=()) == before


@pytest.mark.parametrize("temperature", [1.0, 0.0])
@pytest.mark.parametrize("forced", [None, "K"])
def test_weights_that_are_no_numbers_are_named(words: PretrainedSource, temperature: float, forced: str | None) -> None:
    sampler = engine(words)
    sampler.network.model.get_input_embeddings().weight.fill_(torch.nan)
    sampler.submit(0, ask("card K", temperature=temperature, forced=forced))
    with pytest.raises(FloatingPointError, match="version 0"):
        sampler.step(0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator")
@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-3), ("bfloat16", 0.1)])
def test_logprobs_hold_on_a_gpu(bytewise: PretrainedSource, dtype: str, tolerance: float, cache: str) -> None:
    checkpoint = replace(bytewise, dtype=dtype, device="cuda")
    sampler, model = engine(checkpoint, slots=5, cache=cache), checkpoint.model()
    requests = uneven(16, 24)
    for request, completion in zip(requests, answers(sampler, requests), strict=True):
        assert completion.logprobs == pytest.approx(plain_logprobs(model, completion, request.sampling), abs=tolerance)
