"""Random play where any text is a move: it draws from the examples."""

from __future__ import annotations

from collections import Counter

from marl.core.config import Sampling
from marl.core.types import Completion, Message, Request
from marl.engines.scripted import Random


def test_an_example_that_is_given_twice_is_played_twice_as_often() -> None:
    engine = Random().build(None)
    moves = ("right", "right", "wrong")
    for seed in range(3000):
        request = Request("p", (Message("user", "?"),), Sampling(), seed * 2**53 // 3000, examples=moves)
        engine.submit(seed, request)
    counts = Counter(answer.text for _, answer in engine.step(0) if isinstance(answer, Completion))
    assert abs(counts["right"] / 3000 - 2 / 3) < 0.04


def test_its_probabilities_are_those_it_plays_with() -> None:
    engine = Random().build(None)
    request = Request("p", (Message("user", "?"),), Sampling(), examples=("a", "a", "b"), forced="a")
    engine.submit(0, request)
    (_, answer) = engine.step(0)[0]
    assert isinstance(answer, Completion)
    assert abs(answer.logprobs[0] - -0.405465) < 1e-5
