"""Environments of Gymnasium as games with one seat."""

from __future__ import annotations

import re
from typing import Any

import gymnasium
import pytest

from marl.games.wrappers.gymnasium import GymnasiumConfig
from tests.support.wrapped_game_play import determinism_faults, over

LAKE: dict[str, Any] = {"id": "FrozenLake-v1", "settings": {"render_mode": "ansi", "is_slippery": False}}


def test_the_lake_is_shown_as_text_and_the_goal_is_paid() -> None:
    game = GymnasiumConfig.model_validate(LAKE | {"actions": ["left", "down", "right", "up"]}).build()
    game.reset(0)
    assert game.observe("player_0")["text"] == "[S]FFF\nFHFH\nFFFH\nHFFG"
    for move in ("down", "down", "right", "right", "down", "right"):
        assert game.rewards["player_0"] == 0.0
        game.step(move)
    assert game.terminations == {"player_0": True}
    assert game.rewards == {"player_0": 1.0}


def test_observations_and_rewards_are_those_of_the_environment() -> None:
    game, env = GymnasiumConfig(id="CartPole-v1").build(), gymnasium.make("CartPole-v1")
    game.reset(7)
    observation, _ = env.reset(seed=int(game.start_state_key()))
    paid = 0.0
    for number in range(500):
        assert game.observe("player_0")["text"] == " ".join(f"{float(value):.4g}" for value in observation)
        game.step(str(number % 2))
        observation, reward, terminated, _, _ = env.step(number % 2)
        paid += float(reward) - game.rewards["player_0"]
        if terminated:
            break
    assert over(game)
    assert paid == 0.0


def test_an_episode_that_is_cut_is_truncated() -> None:
    game = GymnasiumConfig(id="MountainCar-v0", settings={"max_episode_steps": 3}).build()
    game.reset(0)
    for _ in range(3):
        game.step("0")
    assert game.truncations == {"player_0": True}
    assert game.terminations == {"player_0": False}


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_same_seed_gives_the_same_episode_also_after_a_fork() -> None:
    for settings in ({"id": "Blackjack-v1"}, {"id": "FrozenLake-v1", "settings": {"render_mode": "ansi"}}):
        config = GymnasiumConfig.model_validate(settings)
        assert [fault for seed in range(5) for fault in determinism_faults(config, seed)] == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"id": "FrozenLak-v1"}, "no environment 'FrozenLak-v1'"),
        ({"id": "os:MyEnv-v0"}, "'os:MyEnv-v0' is no import path"),
        ({"id": "os:system", "settings": {"command": "true"}}, "os is in Python's standard library"),
        ({"id": "Pendulum-v1"}, "actions of 'player_0' are Box"),
        ({"id": "CartPole-v1", "settings": {"gravity": 1}}, "id: 'CartPole-v1' with settings {'gravity': 1}"),
    ],
)
def test_what_cannot_be_played_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        GymnasiumConfig.model_validate(settings).build()


def test_a_copy_with_a_seed_meets_other_chances_so_that_search_does_not_foresee_its_own() -> None:
    game = GymnasiumConfig.model_validate(LAKE | {"settings": {"render_mode": "ansi"}}).build()
    game.reset(0)
    same, others = game.copy(), [game.copy(seed) for seed in range(6)]
    texts = []
    for each in (game, same, *others):
        each.step("2")
        texts.append(each.observe("player_0")["text"])
    assert texts[0] == texts[1]
    assert len({*texts}) > 1
