"""Consequences of an answer that is not a legal move."""

import random
from collections.abc import Mapping
from typing import Any

import pytest

from marl.games.base import IllegalMoveHandling, NextAgent, TextGame
from marl.games.kuhn_poker import KuhnPokerConfig
from marl.games.matrix_games import MatrixConfig
from marl.games.nim import NimConfig


def test_a_game_without_a_vocabulary_cannot_play_a_random_move() -> None:
    class Free(TextGame):
        name = "free"

    with pytest.raises(ValueError, match=r"illegal.then: 'random' .* choices: forfeit"):
        Free(("player_0",), IllegalMoveHandling(then="random"))


def test_forfeit_ends_the_game_at_the_cost_of_the_worst_loss() -> None:
    game = KuhnPokerConfig().build()
    game.reset(0)
    game.step("call")
    assert game.reward_components == {"player_0": {"illegal": -2.0}, "player_1": {"illegal": 2.0}}
    assert game.terminations == {"player_0": True, "player_1": True}


@pytest.mark.parametrize("illegal", ["", "fold", "[check]", "check ", "raise"])
def test_any_text_that_is_no_legal_move_is_an_illegal_move(illegal: str) -> None:
    game = KuhnPokerConfig().build()
    game.reset(0)
    game.step(illegal)
    assert "illegal" in game.reward_components["player_0"]


def test_none_is_for_the_dead_only() -> None:
    game = KuhnPokerConfig().build()
    game.reset(0)
    with pytest.raises(ValueError, match="player_0, who is alive"):
        game.step(None)
    game.step("")
    with pytest.raises(ValueError, match="dead"):
        game.step("check")
    while game.agents:
        game.step(None)
        assert game.reward_components == {}


def test_a_retry_asks_the_same_question_again_and_pays_nothing() -> None:
    game = KuhnPokerConfig(illegal=IllegalMoveHandling(retry=2)).build()
    game.reset(0)
    text = game.observe("player_0")["text"]
    for attempt in (1, 2):
        game.step("")
        assert game.agent_selection == "player_0"
        assert game.infos["player_0"]["attempt"] == attempt
        assert game.observe("player_0")["text"] == text
        assert game.reward_components == {}
        assert set(game.rewards.values()) == {0.0}
    game.step("check")
    assert game.infos["player_1"]["attempt"] == 0
    for _ in range(3):
        game.step("")
    assert game.reward_components == {"player_0": {"illegal": 2.0}, "player_1": {"illegal": -2.0}}


def test_a_penalty_is_paid_and_a_random_legal_move_is_played() -> None:
    game = NimConfig(illegal=IllegalMoveHandling(then="penalty", penalty=0.25)).build()
    left = set()
    for seed in range(100):
        game.reset(seed, {"pile": 8})
        game.step("9")
        assert game.reward_components == {"player_0": {"illegal": -0.25}, "player_1": {"illegal": 0.25}}
        left.add(game.infos["player_1"]["state"])
    assert left == {"5", "6", "7"}
    game.reset(0, {"pile": 1})
    game.step("")
    assert game.reward_components == {
        "player_0": {"illegal": -0.25, "outcome": 1.0},
        "player_1": {"illegal": 0.25, "outcome": -1.0},
    }
    assert game.rewards == {"player_0": 0.75, "player_1": -0.75}


def test_a_random_legal_move_is_uniform_and_free() -> None:
    game = NimConfig(illegal=IllegalMoveHandling(then="random")).build()
    counts = dict.fromkeys(("5", "6", "7"), 0)
    for seed in range(3000):
        game.reset(seed, {"pile": 8})
        game.step("")
        assert game.reward_components == {}
        counts[game.infos["player_1"]["state"]] += 1
    assert all(900 < count < 1100 for count in counts.values())  # 1000 +- 3.9 standard deviations


def test_refusal_says_what_step_would_do() -> None:
    forfeit, penalty = IllegalMoveHandling(), IllegalMoveHandling(then="penalty", retry=1)
    game = KuhnPokerConfig(illegal=forfeit).build()
    game.reset(0)
    assert (game.illegal_move_outcome().rewards, game.illegal_move_outcome().moves) == ({}, ())
    game = KuhnPokerConfig(illegal=penalty).build()
    game.reset(0)
    assert game.illegal_move_outcome().moves == ()
    game.step("")
    assert game.illegal_move_outcome().moves == ("check", "bet")
    assert game.illegal_move_outcome().rewards == {"player_0": -2.0, "player_1": 2.0}
    game = KuhnPokerConfig(illegal=IllegalMoveHandling(then="random")).build()
    game.reset(0)
    assert (game.illegal_move_outcome().rewards, game.illegal_move_outcome().moves) == ({}, ("check", "bet"))


def test_agents_that_are_asked_together_are_each_offered_their_own_moves() -> None:
    game: Any = MatrixConfig(table=[[0, 1, 2], [3, 4, 5]]).build()
    game.reset(0)
    assert [game.infos[agent]["legal"] for agent in game.agents] == [("a", "b"), ("a", "b", "c")]
    assert [game.observe(agent)["action_mask"].tolist() for agent in game.agents] == [[1, 1, 0], [1, 1, 1]]
    game.step("b")
    game.step("c")
    assert game.rewards == {"agent_0": 5.0, "agent_1": 5.0}


class _Stakes(TextGame):
    """The first player wins or loses a number of points, as it says."""

    name, zero_sum = "stakes", True

    def start_new_game(self, rng: random.Random, options: Mapping[str, Any]) -> NextAgent:
        self.points = rng.randrange(10)
        return "ann"

    def start_state_key(self) -> str:
        return str(self.points)

    def describe_observation(self, agent: str) -> str:
        return f"{self.points} points . [win] or [lose]"

    def apply_action(self, action: str) -> Mapping[str, float]:
        won = float(self.points) if action == "win" else -float(self.points)
        return {"ann": won, "bob": -won}

    def information_state(self, agent: str) -> str:
        return str(self.points)


@pytest.mark.parametrize(("illegal", "cost"), [(IllegalMoveHandling(), 9), (IllegalMoveHandling(penalty=2), 2)])
def test_an_illegal_move_of_an_own_zero_sum_game_costs_no_less_than_the_worst_loss_unless_set(
    illegal: IllegalMoveHandling, cost: float
) -> None:
    game = _Stakes(("ann", "bob"), illegal, ("win", "lose"))
    game.reset(3)
    points = game.points
    game.step("neither")
    assert game.rewards == {"ann": -cost, "bob": cost}
    assert game.points == points, "the random play is that of a copy"
