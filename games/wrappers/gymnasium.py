"""Environments of Gymnasium as games with a single seat."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import gymnasium
from gymnasium.spaces import Space
from pettingzoo import AECEnv
from pydantic import field_validator

from marl.core.config import similar
from marl.games.aec import AecGame, AecProperties, reseed
from marl.games.isolated_random import IsolatedGlobalRandom
from marl.games.wrappers.import_env import import_env_factory
from marl.games.wrappers.pettingzoo import NumericEnvConfig
from marl.games.wrappers.text_adapter import TemplateTextAdapter

SEAT = "player_0"


class GymnasiumConfig(NumericEnvConfig):
    """An environment of Gymnasium with numbered actions, played by one seat, `player_0`."""

    kind: str = "gymnasium"
    example = "id: FrozenLake-v1, settings: {render_mode: ansi, is_slippery: false}"
    id: str
    """Name of a registered environment, such as `CartPole-v1`, or the import path of a class of environments,
    `my_package.my_module:MyEnv`, or of a function that makes one and is named env or make_env."""

    @field_validator("id")
    @classmethod
    def _exists(cls, path: str) -> str:
        if ":" in path:
            _maker(path)
            return path
        try:
            gymnasium.spec(path)
        except gymnasium.error.Error as error:
            advice = similar(path, gymnasium.registry) or "choices: names that `gymnasium.pprint_registry()` shows"
            raise ValueError(f"no environment {path!r}: {error} {advice}") from error
        return path

    def build(self) -> GymnasiumGame:
        env = SingleAgentEnv(self._make(), self.id)
        words = TemplateTextAdapter(self.describe, self.actions)
        words.check(env)
        return GymnasiumGame(env, words, AecProperties(self.kind, self.illegal))

    def _make(self) -> gymnasium.Env[Any, Any]:
        try:
            with IsolatedGlobalRandom():
                if ":" in self.id:
                    return _maker(self.id)(**self.settings)
                return gymnasium.make(self.id, **self.settings)
        except (TypeError, ImportError, gymnasium.error.Error) as error:
            raise ValueError(f"id: {self.id!r} with settings {self.settings}: {error}") from error


def _maker(path: str) -> Callable[..., Any]:
    return import_env_factory(path, "id", lambda kind: issubclass(kind, gymnasium.Env))


class SingleAgentEnv(AECEnv[str, Any, Any]):
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
        """Reseed the environment's random generators."""
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


class GymnasiumGame(AecGame):
    """An environment of Gymnasium, whose moves are the names of its actions."""

    _env: SingleAgentEnv

    def copy(self, seed: int | None = None) -> Self:
        other = super().copy(seed)
        if seed is not None:
            other._env.reseed(seed)
        return other
