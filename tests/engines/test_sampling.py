from __future__ import annotations

import numpy as np
import torch

from marl.core.config import Sampling
from marl.engines.transformers.sampling import (
    SamplingTensors,
    draw_tokens,
    next_token_logprobs,
    random_counters_from_seeds,
    truncate_logits,
    uniform_random_numbers,
)


def test_random_numbers_are_those_of_splitmix64() -> None:
    # First outputs of Vigna's splitmix64.c from state 0; our numbers keep their upper 24 bits.
    outputs = np.array([0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F], np.uint64)
    expected = ((outputs >> np.uint64(40)).astype(np.float64) + 1) / 2**24
    got = uniform_random_numbers(np.zeros(3, np.uint64), np.arange(3))
    assert np.array_equal(got, expected.astype(np.float32))


def test_random_numbers_are_uniform_and_differ_between_neighbouring_seeds() -> None:
    keys = random_counters_from_seeds(range(-500, 500))
    table = np.stack([uniform_random_numbers(keys, np.full(1000, position)) for position in range(100)])
    assert table.min() > 0
    assert table.max() <= 1
    assert abs(table.mean() - 0.5) < 0.005
    assert abs(np.corrcoef(table[:, :-1].ravel(), table[:, 1:].ravel())[0, 1]) < 0.01
    assert abs(np.corrcoef(table[:-1].ravel(), table[1:].ravel())[0, 1]) < 0.01


def test_top_p_keeps_the_smallest_set_that_reaches_the_mass() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    for p, count in ((0.4, 1), (0.6, 2), (0.79, 2), (0.9, 3), (0.96, 4)):
        cut = truncate_logits(logits, torch.tensor([[4]]), torch.tensor([[p]]))
        assert int(cut.isfinite().sum()) == count


def test_the_likeliest_token_survives_any_truncation() -> None:
    cut = truncate_logits(torch.tensor([[0.0, 3.0, 1.0]]), torch.tensor([[3]]), torch.tensor([[1e-9]]))
    assert cut.isfinite().tolist() == [[False, True, False]]


def test_top_k_comes_before_top_p() -> None:
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    # Of the two likeliest, the first has 4/7 of the mass: enough for 0.55, though it has but 0.4 of the whole.
    shaping = SamplingTensors.from_settings([Sampling(top_k=2, top_p=0.55)], torch.device("cpu"))
    assert next_token_logprobs(logits, shaping).exp().tolist() == [[1, 0, 0, 0]]


def test_no_truncation_leaves_the_softmax_alone() -> None:
    logits = torch.randn(5, 40, generator=torch.Generator().manual_seed(0))
    samplings = [Sampling(), Sampling(top_k=3), Sampling(), Sampling(temperature=0), Sampling(top_p=0.5)]
    logprobs = next_token_logprobs(logits, SamplingTensors.from_settings(samplings, torch.device("cpu")))
    assert torch.equal(logprobs[[0, 2]], logits[[0, 2]].log_softmax(-1))
    assert torch.allclose(logprobs.exp().sum(-1), torch.ones(5))


def test_tokens_without_probability_are_never_draw() -> None:
    logprobs = torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]]).log().expand(4, -1)
    smallest = 2.0**-24
    tokens, chosen = draw_tokens(logprobs, torch.tensor([smallest, 0.5, 0.5 + smallest, 1.0]))
    assert tokens.tolist() == [1, 1, 3, 3]
    assert chosen.exp().tolist() == [0.5] * 4
