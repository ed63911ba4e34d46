"""Games whose course depends on more than seed and moves are found by a replay, and refused by `marl check`."""

from __future__ import annotations

import itertools
import random
import time
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv

from marl.core.plugins import known_kinds
from marl.evaluation import replay_check
from marl.evaluation.dry_run import play_dry_run
from marl.evaluation.dry_run_findings import scenario_errors
from marl.evaluation.replay_check import find_replay_difference, replay_errors
from marl.games.wrappers.pettingzoo import PettingZooConfig
from marl.scenario.load import game_settings, validate
from tests.support.every_game import example_settings


class Weather(ParallelEnv):
    """One agent guesses the weather for five days. The `source` of the random numbers is right or wrong."""

    metadata = {"name": "weather_v0"}  # noqa: RUF012
    possible_agents = ["ann"]  # noqa: RUF012
    render_mode = None
    games_made = itertools.count(1)

    def __init__(self, source: str = "seed", shown: bool = True) -> None:
        self.source, self.shown, self.number = source, shown, next(Weather.games_made)

    def observation_space(self, agent: str) -> Box:
        return Box(0, 1, (2,))

    def action_space(self, agent: str) -> Discrete:
        return Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents, self.day = ["ann"], 0
        np.random.seed(seed)
        self.generator = np.random.default_rng(seed)
        return {"ann": self.look()}, {"ann": {}}

    def look(self) -> np.ndarray:
        self.rain = self.draw()
        return np.array([self.day / 10, self.rain if self.shown else 0], dtype=np.float32)

    def draw(self) -> float:
        match self.source:
            case "seed":
                return float(self.generator.random())
            case "global":
                return float(np.random.rand())
            case "system":
                return random.SystemRandom().random()
            case "clock":
                return time.perf_counter_ns() % 9973 / 9973
            case "third day":
                return np.random.default_rng().random() if self.day == 3 else 0.5
            case _:
                return self.number % 97 / 97

    def step(self, actions: Any) -> Any:
        self.day += 1
        observed, over = self.look(), self.day == 5
        agents, self.agents = self.agents, [] if over else self.agents
        ended = (dict.fromkeys(agents, value) for value in (over, False))
        return {"ann": observed}, {"ann": self.rain}, *ended, {"ann": {}}


def weather(**settings: Any) -> PettingZooConfig:
    return PettingZooConfig(env=f"{__name__}:Weather", settings=settings)


@pytest.mark.parametrize("source", ["seed", "global"])
def test_random_numbers_from_the_seed_or_the_global_generator_are_repeated(source: str) -> None:
    assert find_replay_difference(weather(source=source), 0) is None


@pytest.mark.parametrize("source", ["system", "clock", "number of games"])
def test_noise_that_is_observed_is_found_at_once(source: str) -> None:
    message = find_replay_difference(weather(source=source), 0)
    assert message
    assert "'pettingzoo' is not reproducible: two plays of seed " in message
    assert "differ before step 0: observations of 'ann' '0 0." in message


def test_hidden_noise_is_found_by_what_it_pays() -> None:
    message = find_replay_difference(weather(source="system", shown=False), 0)
    assert message
    assert "before step 1: rewards of 'ann' 0." in message


def test_noise_in_the_middle_of_an_episode_is_found_with_its_step_and_both_observations() -> None:
    message = find_replay_difference(weather(source="third day"), 0)
    assert message
    first, second = message.partition("before step 3: observations of 'ann' ")[2].split(", then ")[:2]
    assert first.startswith("'0.3 0.")
    assert second.startswith("'0.3 0.")
    assert first != second.partition(". A game's")[0]


def test_a_slow_game_is_played_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_check, "TIME_LIMIT_S", 0.0)
    monkeypatch.setattr(replay_check, "MAX_MOVES", 10**9)
    assert find_replay_difference(game_settings("connect_four", {}), 0) is None


def test_marl_check_refuses_the_game_by_its_field() -> None:
    data: dict[str, Any] = {
        "game": {"kind": "pettingzoo", "env": f"{__name__}:Weather", "settings": {"source": "system"}},
        "seats": {"ann": "player"},
        "roles": {"player": {"kind": "player", "policy": "actor"}},
        "policies": {"actor": {"model": {"kind": "tiny"}, "learner": "grpo"}},
        "schedule": {"steps": 1, "groups": 1, "group_size": 2},
    }
    scenario = validate(data)
    [error] = [error for error in scenario_errors(play_dry_run(scenario)) if "reproducible" in error]
    assert error.startswith("game: 'pettingzoo' is not reproducible: two plays of seed ")
    data["game"]["settings"] = {"source": "seed"}
    assert list(replay_errors(validate(data))) == []


@pytest.mark.parametrize("kind", known_kinds("games"))
def test_every_kind_of_game_is_reproducible(kind: str) -> None:
    assert find_replay_difference(game_settings(kind, example_settings(kind)), 0) is None
