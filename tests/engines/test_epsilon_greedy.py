"""The engine of Q-networks: epsilon-greedy by the request's seed, greedy where it is measured."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest
import torch

from marl.core.config import Sampling
from marl.core.types import Completion, Request
from marl.engines.epsilon_greedy.engine import EpsilonGreedyEngine, epsilon_greedy_probabilities
from tests.support.q_samples import network, request


def engine_with(epsilon: float) -> EpsilonGreedyEngine:
    engine, weights = EpsilonGreedyEngine(source := network()), source.model().state_dict()
    engine.load_weights("actor", {**weights, "epsilon": torch.tensor(epsilon)}.items(), 7)
    return engine


def answers(engine: EpsilonGreedyEngine, *requests: Request) -> list[Completion]:
    for ticket, each in enumerate(requests):
        engine.submit(ticket, each)
    return [answer for _, answer in sorted(engine.step(0)) if isinstance(answer, Completion)]


def test_the_best_move_has_what_exploration_leaves_and_the_first_of_equals_is_best() -> None:
    assert epsilon_greedy_probabilities([0.0, 2.0, 2.0, -1.0], 0.2) == pytest.approx([0.05, 0.85, 0.05, 0.05])


def test_moves_are_as_frequent_as_their_probabilities_which_are_recorded() -> None:
    many = 2000
    seeds = (seed * 2**53 // many for seed in range(many))
    played = answers(engine_with(0.3), *(request("where", seed=seed) for seed in seeds))
    counts, logprobs = Counter(p.text for p in played), {p.text: p.logprobs[0] for p in played}
    assert sorted(map(math.exp, logprobs.values())) == pytest.approx([0.1, 0.1, 0.8])
    assert all(abs(counts[text] / many - math.exp(logprob)) < 2 / many for text, logprob in logprobs.items())
    assert played[0].versions == (7, 7)


def test_measured_play_and_temperature_0_never_explore() -> None:
    engine, cold = engine_with(1.0), Sampling(temperature=0)
    asked = [request("where", seed=seed * 2**53 // 20) for seed in range(20)]
    assert len({each.text for each in answers(engine, *asked)}) == 3
    for greedy in ([replace(r, purpose="eval") for r in asked], [replace(r, sampling=cold) for r in asked]):
        played = answers(engine, *greedy)
        assert len({each.text for each in played}) == 1
        assert {each.logprobs for each in played} == {(0.0,)}


def test_a_forced_text_is_scored_and_one_that_is_no_move_is_impossible() -> None:
    asked = request("where", ["left", "stay"], purpose="eval")
    scores = answers(engine_with(0.5), *(replace(asked, forced=text) for text in ("[left]", "[stay]", "[right]")))
    assert sorted(math.exp(score.logprobs[0]) for score in scores) == [0, 0, 1]
    assert scores[2].logprobs == (-math.inf,)


def test_a_move_without_a_head_and_a_question_without_moves_are_named() -> None:
    engine = engine_with(0.0)
    with pytest.raises(ValueError, match=r"'actor': model\.actions lacks the legal move 'up'; it has left, right"):
        engine.submit(0, request("where", ["left", "up"]))
    with pytest.raises(ValueError, match="chooses from listed moves, but any text is one"):
        engine.submit(0, replace(request("where"), options=None))
