"""PettingZoo environments as games: payments, agents that leave early, cut episodes, masks, illegal moves, seeds."""

from __future__ import annotations

import random
import re
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.utils import seeding
from pettingzoo import AECEnv
from pettingzoo.test import api_test

from marl.games.aec import AecConfig, AecGame, format_action_numbers
from marl.games.base import reset_and_play
from marl.scenario.load import validate
from tests.support.run_processes import tiny_model


class Leaving(AECEnv[str, Any, Any]):
    """Three agents stay or leave in turn; who leaves is paid the number of those who stayed, times the day's price.

    The first agent may not leave at once. After four rounds the episode is cut.
    """

    metadata = {"name": "leaving_v0", "render_modes": [], "is_parallelizable": False}  # noqa: RUF012
    possible_agents = ["ann", "bob", "cem"]  # noqa: RUF012
    render_mode = None

    def observation_space(self, agent: str) -> Discrete:
        return Discrete(10)

    def action_space(self, agent: str) -> Discrete:
        return Discrete(2, start=5)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        random_numbers, _ = seeding.np_random(seed)
        self.agents = self.possible_agents[:]
        self.price, self.turns = int(random_numbers.integers(1, 9)), 0
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: {} for agent in self.agents}
        self.infos["ann"] = {"action_mask": np.array([1, 0], dtype=np.int8)}
        self.agent_selection = "ann"
        self._skip_agent_selection = None

    def observe(self, agent: str) -> int:
        return self.price

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        assert self.action_space(agent).contains(action)
        self.infos["ann"] = {}
        self._cumulative_rewards[agent] = 0.0
        self._clear_rewards()
        self.turns += 1
        following = self.agents[(self.agents.index(agent) + 1) % len(self.agents)]
        if action == 6:
            self.terminations[agent] = True
            for other in self.agents:
                own: Any = np.float32(self.price * (len(self.agents) - 1))
                self.rewards[other] = own if other == agent else 0.25
        if self.turns == 12 or (len(self.agents) == 1 and action == 6):
            self.truncations.update({each: not self.terminations[each] for each in self.agents})
        self._accumulate_rewards()
        self.agent_selection = following
        self._deads_step_first()


class LeavingConfig(AecConfig):
    """Stay or leave."""

    kind: str = "leaving"
    default_penalty = 3.0

    def make_environment(self) -> Leaving:
        return Leaving()

    def describe_observation(self, env: AECEnv[str, Any, Any], agent: str) -> str:
        return f"{agent}: the price is {env.observe(agent)}, {len(env.agents)} are left"

    def action_names(self, env: AECEnv[str, Any, Any], agent: str) -> list[str]:
        return ["stay", "leave"]


class Unnamed(LeavingConfig):
    kind: str = "unnamed"

    def action_names(self, env: AECEnv[str, Any, Any], agent: str) -> list[str]:
        return super(LeavingConfig, self).action_names(env, agent)  # type: ignore[return-value]


class Nameless(LeavingConfig):
    kind: str = "nameless"

    def action_names(self, env: AECEnv[str, Any, Any], agent: str) -> list[str]:
        return ["stay", "stay"]


class Continuous(LeavingConfig):
    kind: str = "continuous"

    def make_environment(self) -> Leaving:
        env = Leaving()
        env.action_space = lambda agent: Box(0, 1)  # type: ignore[method-assign, return-value, assignment]
        return env


def play(game: AecGame, seed: int, *moves: str) -> dict[str, float]:
    """What each agent is paid in all."""
    game.reset(seed=seed)
    paid = dict.fromkeys(game.seats, 0.0)
    for move in moves:
        game.step(move)
        for agent, reward in game.rewards.items():
            paid[agent] += reward
    return paid


def is_over(game: AecGame) -> bool:
    return all(game.terminations[agent] or game.truncations[agent] for agent in game.seats)


def test_an_environment_passes_pettingzoos_own_checks_as_a_game() -> None:
    for settings in (LeavingConfig(), Unnamed()):
        api_test(settings.build(), num_cycles=300)


def test_payments_on_the_way_arrive_once_and_who_has_left_is_not_asked_again() -> None:
    game: Any = LeavingConfig().build()
    paid = play(game, 0, "stay", "leave", "stay", "stay", "leave", "leave")
    price = game._env.price
    assert is_over(game)
    assert not any(game.truncations.values())
    assert paid == {"ann": 0.25 + 0.25, "bob": 2.0 * price, "cem": 0.25 + price}
    assert all(type(reward) is float for reward in paid.values())


def test_an_episode_that_the_environment_cuts_is_truncated_and_not_terminated() -> None:
    game = LeavingConfig().build()
    play(game, 0, *["stay"] * 12)
    assert is_over(game)
    assert game.truncations == dict.fromkeys(game.seats, True)
    assert not any(game.terminations.values())


def test_masked_actions_are_illegal_moves_with_the_consequences_of_the_scenario() -> None:
    game: Any = LeavingConfig().build()
    game.reset(seed=0)
    assert game.infos["ann"]["legal"] == ("stay",)
    assert list(game.observe("ann")["action_mask"]) == [1, 0]
    assert play(game, 0, "leave") == {"ann": -3.0, "bob": 0.0, "cem": 0.0}
    assert is_over(game)
    patient = LeavingConfig.model_validate({"illegal": {"retry": 1, "then": "random"}}).build()
    assert play(patient, 0, "leave", "leave")["ann"] == 0.0
    assert patient.agent_selection == "bob", "the only legal move was played"


def test_an_agent_knows_what_it_saw_and_did_and_nothing_of_what_others_said() -> None:
    game: Any = LeavingConfig().build()
    play(game, 0, "stay", "leave", "stay")
    price = game._env.price
    lines = ("ann", f"ann: the price is {price}, 3 are left", "stay", f"ann: the price is {price}, 2 are left")
    assert game.infos["ann"]["state"] == "\n".join(lines)
    assert game.infos["ann"]["hears"] == ("ann",)


def test_the_same_seed_and_moves_give_the_same_episode_again() -> None:
    game: Any = LeavingConfig().build()
    again: Any = LeavingConfig().build()
    starts = set()
    for seed in range(8):
        game.reset(seed=seed)
        moves = []
        while not is_over(game):
            moves.append(random.Random(seed).choice(game.infos[game.agent_selection]["legal"]))
            game.step(moves[-1])
        reset_and_play(again, seed, None, moves[:-1])
        again.step(moves[-1])
        assert (again.start_state_key(), again.rewards, again._env.price) == (
            game.start_state_key(),
            game.rewards,
            game._env.price,
        )
        starts.add(game._env.price)
    assert len(starts) > 2, "the seed reaches the environment"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (Nameless(), "nameless: moves of 'ann': 2 names (1 different) for 2 actions"),
        (Continuous(), "actions of 'ann' are Box(0.0, 1.0, (1,), float32); choices: Discrete, flat MultiDiscrete, or"),
    ],
)
def test_actions_that_cannot_be_named_are_refused_when_the_game_is_built(settings: AecConfig, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        settings.build()


def test_an_environment_is_a_game_of_a_scenario_by_import_path() -> None:
    scenario = {
        "game": {"kind": f"{__name__}:LeavingConfig"},
        "seats": dict.fromkeys(("ann", "bob", "cem"), "player"),
        "roles": {"player": {"kind": "player", "policy": "actor"}},
        "policies": {"actor": {"model": tiny_model(), "learner": {"kind": "grpo"}}},
        "schedule": {"steps": 1, "groups": 1, "group_size": 2},
    }
    assert isinstance(validate(scenario).game.build(), AecGame)


def test_a_mask_that_allows_nothing_is_reported_with_its_agent() -> None:
    game = LeavingConfig().build()
    game.reset(0)
    game._env.infos["bob"] = {"action_mask": np.array([0, 0], dtype=np.int8)}
    with pytest.raises(ValueError, match="leaving: the action mask of 'bob' allows no action, and it is to move"):
        game.step(game.infos["ann"]["legal"][0])


def test_actions_without_names_are_called_by_their_own_numbers() -> None:
    env = Leaving()
    assert format_action_numbers(env, "ann") == ["5", "6"]
