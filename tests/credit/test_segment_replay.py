"""VinePPO: answers go on from the end of each segment, against values by enumeration."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise, product
from typing import Literal

import pytest

from marl.core.config import Segments
from marl.core.graph import Trajectory
from marl.core.types import Completion, CompletionFailure, Credit, Fork, Request, Ticket
from marl.credit.assign.replay import RolloutValueChangeAssign
from marl.protocols import Evidence, WeightlessEngine
from marl.rollout.simulator import RolloutSimulator
from tests.support.addition_task import VerbatimRole, team_config, team_deal, team_simulator

REWARDS = {"aaa": 1.0, "bab": 2.0}
CHANCE_OF_B = {"": 0.5, "a": 0.25, "b": 0.5, "aa": 0.5, "ab": 0.5, "ba": 0.75, "bb": 0.5}
"""Answer so far -> probability that the next of three letters is b."""


class LetterEngine(WeightlessEngine):
    """Samples answers of three letters, each a token and a segment, and goes on from a prefix."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self._open: dict[Ticket, Request] = {}

    def submit(self, ticket: Ticket, request: Request) -> None:
        self.requests.append(request)
        self._open[ticket] = request

    def step(self, wait_s: float) -> list[tuple[Ticket, Completion | CompletionFailure]]:
        answered, self._open = self._open, {}
        return [(ticket, self._answer(request)) for ticket, request in answered.items()]

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        for ticket in tickets:
            self._open.pop(ticket, None)

    def _answer(self, request: Request) -> Completion:
        draw = random.Random(request.seed)
        text = "".join("ab"[token] for token in request.prefix)
        while len(text) < 3:
            text += "ab"[draw.random() < CHANCE_OF_B[text]]
        ids, given = tuple(map("ab".index, text)), len(request.prefix)
        return Completion(text, (7,), ids, (0.0,) * 3, "stop", prefix_tokens=given, segments=(0, 1, 2))


def value(text: str) -> float:
    """Return the expected reward of answers that begin with `text`."""
    total = 0.0
    for rest in product("ab", repeat=3 - len(text)):
        chance, answer = 1.0, text
        for letter in rest:
            chance *= CHANCE_OF_B[answer] if letter == "b" else 1 - CHANCE_OF_B[answer]
            answer += letter
        total += chance * REWARDS.get(answer, 0.0)
    return total


def table(*stages: str) -> tuple[RolloutSimulator, LetterEngine, Trajectory]:
    """A simulator in which each of `stages` answers once, and an episode; the first stage's answer is paid."""
    said = f"{stages[0]}.move"
    expression = f"{stages[0]}.readable * (({said} == 'aaa') + 2 * ({said} == 'bab'))"
    game = team_config(*[{"role": stage} for stage in stages], rewards={stages[-1]: {"r": expression}})
    engine, role = LetterEngine(), VerbatimRole(policy="actor", segments=Segments(by="tokens", length=1))
    simulator = team_simulator(game, engine, **dict.fromkeys(stages, role))
    [episode] = simulator.play([team_deal(game)])
    return simulator, engine, episode


def credit(
    simulator: RolloutSimulator, episode: Trajectory, samples: int, form: Literal["vine", "siblings"] = "vine"
) -> Credit:
    rule = RolloutValueChangeAssign(level="segment", samples=samples, form=form).build()
    return rule(Evidence([episode], "team", simulator=simulator))


def test_the_values_by_enumeration_are_those_by_hand() -> None:
    # aaa: .5 * .75 * .5 = .1875; bab: .5 * .5 * .75 = .1875, paid 2.
    assert value("") == pytest.approx(0.5625)
    assert (value("a"), value("b"), value("ba")) == pytest.approx((0.375, 0.75, 1.5))


def test_every_segment_earns_the_change_of_the_value() -> None:
    simulator, engine, episode = table("solver")
    text = episode.turns[0].completion.text
    assigned = credit(simulator, episode, samples=1000)["e", 0]
    values = [value(text[:count]) for count in range(4)]
    assert assigned.tokens == pytest.approx([after - before for before, after in pairwise(values)], abs=0.12)
    # Value targets are the values after the segments: Math-Shepherd's labels.
    assert assigned.returns == pytest.approx(values[1:], abs=0.12)
    assert assigned.returns[-1] == REWARDS.get(text, 0.0)
    # An answer anew, then its last two letters, then its last letter: 6 letters instead of 9.
    assert simulator.tokens["credit"] == 1000 * (3 + 2 + 1)
    assert {request.prefix for request in engine.requests} == {tuple(map("ab".index, text[:n])) for n in range(3)}
    assert len({request.seed for request in engine.requests}) == len(engine.requests)


def test_siblings_compare_the_reward_with_other_continuations() -> None:
    simulator, _, episode = table("solver")
    text = episode.turns[0].completion.text
    assigned = credit(simulator, episode, 1000, "siblings")["e", 0]
    reward = REWARDS.get(text, 0.0)
    assert assigned.tokens == pytest.approx([reward - value(text[:count]) for count in range(3)], abs=0.12)


def test_the_state_after_the_last_segment_is_the_state_before_the_next_turn() -> None:
    simulator, engine, episode = table("solver", "other")
    assigned = credit(simulator, episode, samples=4)
    reward = sum(reward.value for reward in episode.rewards)
    # What the second answers is not paid, so nothing changes any more.
    assert assigned["e", 1].tokens == (0.0, 0.0, 0.0)
    assert assigned["e", 0].returns[-1] == reward
    prefixes = [
        request.prefix for request in engine.requests[2:] if request.messages == episode.turns[1].request.messages
    ]
    assert {len(prefix) for prefix in prefixes} == {0, 1, 2}


def test_only_the_forked_answer_begins_with_the_prefix() -> None:
    simulator, _, episode = table("solver", "other")
    prefix = episode.turns[0].completion.token_ids[:2]
    for continuation in simulator.play([Fork(episode, 0, prefix=prefix, n=3)]):
        assert [turn.request.prefix for turn in continuation.turns] == [prefix, ()]
        assert continuation.turns[0].completion.token_ids[:2] == prefix
        assert continuation.id.startswith("e~0.,after 2 tokens.")


def test_a_turn_without_marked_segments_is_one_step() -> None:
    simulator, engine, episode = table("solver")
    [answer] = episode.turns
    whole = Trajectory(episode.deal, episode.start)
    whole.add(replace(answer, completion=replace(answer.completion, segments=())), ())
    whole.rewards, whole.end = episode.rewards, episode.end
    assert len(set(credit(simulator, whole, 2)["e", 0].tokens)) == 1
    assert {request.prefix for request in engine.requests} == {()}
