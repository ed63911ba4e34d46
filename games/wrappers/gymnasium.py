"""Environments of Gymnasium as games with a single seat."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import gymnasium
from gymnasium.spaces import Space
from pettingzoo import AECEnv
from pydantic import field_validator

from games.aec import AecGame, AecRules, reseed
from games.global_random import GlobalRandom
from games.wrappers.imports import maker
from games.wrappers.pettingzoo import DescribedConfig
from games.wrappers.words import TemplateWords
from marl.config import similar

SEAT = "player_0"


class GymnasiumConfig(DescribedConfig):
    """An environment of Gymnasium with numbered actions, played by one seat, `player_0`."""

    kind: str = "gymnasium"
    example = "id: FrozenLake-v1, settings: {render_mode: ansi, is_slippery: false}"
    id: str
    """Name of a registered environment, such as `CartPole-v1`, or the import path of a class of environments,
    `my_package.my_module:MyEnv`, or of a function that makes one and is named env or make_env."""

    @field_validator("id")
    @classmethod
    def _exists(cls, place: str) -> str:
        if ":" in place:
            _maker(place)
            return place
        try:
            gymnasium.spec(place)
        except gymnasium.error.Error as error:
            advice = similar(place, gymnasium.registry) or "choices: names that `gymnasium.pprint_registry()` shows"
            raise ValueError(f"no environment {place!r}: {error} {advice}") from error
        return place

    def build(self) -> SingleSeatGame:
        env = SingleSeat(self._make(), self.id)
        words = TemplateWords(self.describe, self.actions)
        words.check(env)
        return SingleSeatGame(env, words, AecRules(self.kind, self.illegal))

    def _make(self) -> gymnasium.Env[Any, Any]:
        try:
            with GlobalRandom():
                if ":" in self.id:
                    return _maker(self.id)(**self.settings)
                return gymnasium.make(self.id, **self.settings)
        except (TypeError, ImportError, gymnasium.error.Error) as error:
            raise ValueError(f"id: {self.id!r} with settings {self.settings}: {error}") from error


def _maker(place: str) -> Callable[..., Any]:
    return maker(place, "id", lambda kind: issubclass(kind, gymnasium.Env))


class SingleSeat(AECEnv[str, Any, Any]):
    """A Gymnasium environment with the AEC interface of PettingZoo."""

    def __init__(self, env: gymnasium.Env[Any, Any], name: str) -> None:
        self._env = env
        self.metadata = {"name": name, "render_modes": env.metadata.get("render_modes", []), "is_parallelizable": False}
        self.render_mode = env.render_mode
        self.possible_agents = [SEAT]

    def observation_space(self, agent: str) -> Space[Any]:
        return self._env.observation_space

    def action_space(self, agent: str) -> Space[Any]:
        return self._env.action_space

    def reseed(self, seed: int) -> None:
        """Let the environment draw other random numbers from now on."""
        reseed(vars(self._env.unwrapped), seed)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self._observation, info = self._env.reset(seed=seed, options=options)
        self.agents, self.agent_selection = [SEAT], SEAT
        self.rewards, self._cumulative_rewards = {SEAT: 0.0}, {SEAT: 0.0}
        self.terminations, self.truncations = {SEAT: False}, {SEAT: False}
        self.infos = {SEAT: info}
        self._skip_agent_selection = None

    def observe(self, agent: str) -> Any:
        return self._observation

    def render(self) -> Any:
        return self._env.render()

    def step(self, action: Any) -> None:
        if self.terminations[SEAT] or self.truncations[SEAT]:
            self._was_dead_step(action)
            return
        self._observation, reward, terminated, truncated, info = self._env.step(action)
        self._cumulative_rewards[SEAT] = 0.0
        self.rewards = {SEAT: float(reward)}
        self.terminations, self.truncations = {SEAT: terminated}, {SEAT: truncated and not terminated}
        self.infos = {SEAT: info}
        self._accumulate_rewards()


class SingleSeatGame(AecGame):
    """An environment of Gymnasium, played by the names of its actions."""

    _env: SingleSeat

    def copy(self, seed: int | None = None) -> Self:
        other = super().copy(seed)
        if seed is not None:
            other._env.reseed(seed)
        return other
