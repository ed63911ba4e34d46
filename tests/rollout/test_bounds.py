"""Episodes without end, and code of games, roles and credit rules that does not come back."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from marl.core.types import Credit, Message
from marl.core.watchdog import CallTimeoutError
from marl.credit_stage.stage import CreditStage
from marl.games.base import FinalRewards, NextAgent, TextGame
from marl.protocols import AssignConfig, Evidence, PromptContext
from marl.roles.answering import PlayerRole
from marl.rollout.game_errors import EpisodeLimits, GameError
from marl.rollout.simulator import RolloutSimulator
from marl.scenario.schema import CreditConfig
from tests.support.small_games import (
    PAIR,
    FunctionEngine,
    Pennies,
    PenniesConfig,
    make_deal,
    make_simulator,
    random_move,
)


def limited(simulator: RolloutSimulator, max_turns: int = 10_000, deadline_s: float = 600.0) -> RolloutSimulator:
    return RolloutSimulator(
        simulator.games, simulator.casting, simulator.engines, deadline_s=deadline_s, max_turns=max_turns
    )


def test_a_game_that_never_ends_is_named_with_its_seed_and_the_turns_it_was_played() -> None:
    game = PenniesConfig(rounds=10**9)
    with pytest.raises(GameError, match=r"game Pennies is not over after 50 turns \(schedule\.max_turns\)") as caught:
        limited(make_simulator(game, FunctionEngine(random_move)), max_turns=50).play([make_deal("e", game, seed=77)])
    assert "seed 77" in str(caught.value)
    assert "30 earlier actions, then [" in str(caught.value)
    assert len(str(caught.value)) < 500


def test_a_game_that_ends_with_its_last_turn_is_within_the_limit() -> None:
    game = PenniesConfig(rounds=5)
    [trajectory] = limited(make_simulator(game, FunctionEngine(random_move)), max_turns=10).play([make_deal("e", game)])
    assert len(trajectory.turns) == 10


def test_an_episode_without_end_is_dropped_where_games_that_raise_are() -> None:
    game = PenniesConfig(rounds=10**9)
    simulator = limited(make_simulator(game, FunctionEngine(random_move)), max_turns=50)
    simulator.drops.limit = 1
    assert simulator.play([make_deal("e", game)]) == []
    assert simulator.drops.count == 1


class HangingConfig(PenniesConfig):
    """Pennies of which one method does not come back."""

    kind: str = "hanging"
    where: str = "move"

    def build(self) -> Hanging:
        return Hanging(self)


class Hanging(Pennies):
    def __init__(self, config: HangingConfig) -> None:
        TextGame.__init__(self, PAIR, config.illegal, ("heads", "tails"))
        self.rounds, self.where = config.rounds, config.where

    def hang(self, where: str) -> None:
        while self.where == where:
            time.sleep(0)

    def start_new_game(self, rng: random.Random, options: Mapping[str, Any]) -> NextAgent:
        self.hang("deal")
        return super().start_new_game(rng, options)

    def describe_observation(self, agent: str) -> str:
        self.hang("describe")
        return super().describe_observation(agent)

    def apply_action(self, action: str) -> NextAgent | FinalRewards:
        self.hang("move")
        return super().apply_action(action)


@pytest.mark.parametrize("where", ["deal", "describe", "move"])
def test_a_game_whose_code_does_not_come_back_is_named(where: str) -> None:
    game = HangingConfig(where=where)
    simulator = limited(make_simulator(game, FunctionEngine(random_move)), deadline_s=0.2)
    simulator.drops.limit = 5
    with pytest.raises(
        CallTimeoutError, match=r"^game Hanging \(episode e, seed 7, .* did not come back within 0\.2 s"
    ):
        simulator.play([make_deal("e", game, seed=7)])


class Slow(PlayerRole):
    """Role whose prompt or reading does not come back."""

    kind: str = "slow"
    hangs: str = ""

    def messages(self, context: PromptContext) -> tuple[Message, ...]:
        while self.hangs == "messages":
            pass
        return super().messages(context)

    def parse(self, text: str, legal: tuple[str, ...] | None) -> str | None:
        while self.hangs == "parse":
            pass
        return super().parse(text, legal)


@pytest.mark.parametrize("method", ["messages", "parse"])
def test_a_role_whose_code_does_not_come_back_is_named(method: str) -> None:
    game = PenniesConfig()
    slow = make_simulator(game, FunctionEngine(random_move), player=Slow(policy="actor", hangs=method))
    with pytest.raises(CallTimeoutError, match=rf"^role 'player' \(episode e, .*test_bounds\.py:\d+, in {method}"):
        limited(slow, deadline_s=0.2).play([make_deal("e", game)])


class Endless(AssignConfig):
    """Rule that thinks for ever, or plays for longer than a rule may think."""

    kind: str = "endless"
    plays: bool = False

    def __call__(self, evidence: Evidence) -> Credit:
        if self.plays:
            game = PenniesConfig()
            for number in range(4):
                evidence.simulator.play([make_deal(f"{number}", game)])  # type: ignore[union-attr]
            return {}
        return {("e", number): None for number in itertools.count() if number < 0}  # type: ignore[misc]


def judged(rule: Endless, deadline_s: float) -> None:
    game = PenniesConfig()

    def slowly(request: Any) -> str:
        time.sleep(0.05)
        return random_move(request)

    played = make_simulator(game, FunctionEngine(random_move)).play([make_deal("e", game)])
    simulator = limited(make_simulator(game, FunctionEngine(slowly)), deadline_s=5.0)
    settings = CreditConfig.model_validate({"assign": rule, "baseline": "none"})
    CreditStage(settings, deadline_s=deadline_s)(Evidence(played, game.kind, simulator=simulator))


def test_a_credit_rule_whose_code_does_not_come_back_is_named() -> None:
    with pytest.raises(
        CallTimeoutError, match=r"^credit \(endless, none\) did not come back within 0\.2 s .*in <dictcomp>"
    ):
        judged(Endless(), 0.2)


def test_what_a_credit_rule_plays_is_not_the_time_of_its_own_code() -> None:
    judged(Endless(plays=True), 0.2)


@pytest.mark.parametrize("number", [np.float32(0.5), np.int64(1), np.array(0.5), torch.tensor(0.5), torch.tensor([2])])
def test_rewards_may_be_numbers_of_numpy_and_torch(number: Any) -> None:
    class Paying(Pennies):
        def step(self, action: str | None) -> None:
            super().step(action)
            self.reward_components = {PAIR[0]: {"bonus": number}}

    class PayingConfig(PenniesConfig):
        def build(self) -> Pennies:
            return Paying(self)

    game = PayingConfig()
    [trajectory] = make_simulator(game, FunctionEngine(random_move)).play([make_deal("e", game)])
    assert [type(reward.value) for reward in trajectory.rewards] == [float, float]
    assert trajectory.returns == {PAIR[0]: 2 * float(number)}


def test_limits_are_generous_by_default() -> None:
    assert EpisodeLimits() == EpisodeLimits(10_000, 600.0)
