"""Environments of Gymnasium as games with one seat."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import gymnasium
from gymnasium.spaces import Space
from pettingzoo import AECEnv
from pydantic import field_validator

from marl.core.config import did_you_mean
from marl.games.aec import AecGame, GamePropertiesNotInPettingZoo, reseed_np_random
from marl.games.isolated_random import IsolatedGlobalRandom
from marl.games.wrappers.import_env import import_env_factory
from marl.games.wrappers.pettingzoo import NumericEnvConfig
from marl.games.wrappers.text_adapter import TemplateEnvTextAdapter

SEAT = "player_0"


class GymnasiumConfig(NumericEnvConfig):
    """Environment of Gymnasium with numbered actions, played by one seat, `player_0`."""

    kind: str = "gymnasium"
    example = "id: FrozenLake-v1, settings: {render_mode: ansi, is_slippery: false}"
    id: str
    """Name of a registered environment, such as `CartPole-v1`, or the import path of an environment class, such as
    `my_package.my_module:MyEnv`, or of a function named env or make_env that returns an environment."""

    @field_validator("id")
    @classmethod
    def _check_environment_exists(cls, path: str) -> str:
        if ":" in path:
            _environment_factory(path)
            return path
        if path.startswith(("GymV21Environment", "GymV26Environment")):
            # These wrappers take the name of another environment, `module:Name`, and import the module.
            raise ValueError(f"{path!r} makes an environment of another package; give its import path instead")
        try:
            gymnasium.spec(path)
        except gymnasium.error.Error as error:
            advice = did_you_mean(path, gymnasium.registry) or "choices: names that `gymnasium.pprint_registry()` shows"
            raise ValueError(f"no environment {path!r}: {error} {advice}") from error
        return path

    def build(self) -> GymnasiumGame:
        try:
            with IsolatedGlobalRandom():
                if ":" in self.id:
                    environment = _environment_factory(self.id)(**self.settings)
                else:
                    environment = gymnasium.make(self.id, **self.settings)
        except (TypeError, ImportError, gymnasium.error.Error) as error:
            raise ValueError(f"id: {self.id!r} with settings {self.settings}: {error}") from error
        env = GymnasiumAecEnv(environment, self.id)
        adapter = TemplateEnvTextAdapter(self.describe, self.actions)
        adapter.check_observation_sizes(env)
        return GymnasiumGame(env, adapter, GamePropertiesNotInPettingZoo(self.kind, self.illegal))


def _environment_factory(path: str) -> Callable[..., Any]:
    return import_env_factory(path, "id", lambda kind: issubclass(kind, gymnasium.Env))


class GymnasiumAecEnv(AECEnv[str, Any, Any]):
    """Gymnasium environment with the AEC interface of PettingZoo and one agent."""

    def __init__(self, env: gymnasium.Env[Any, Any], name: str) -> None:
        self._env = env
        self.metadata = {"name": name, "render_modes": env.metadata.get("render_modes", []), "is_parallelizable": False}
        self.render_mode = env.render_mode
        self.possible_agents = [SEAT]

    def observation_space(self, agent: str) -> Space[Any]:
        return self._env.observation_space

    def action_space(self, agent: str) -> Space[Any]:
        return self._env.action_space

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
    """Game of an environment of Gymnasium, whose moves are the names of its actions."""

    _env: GymnasiumAecEnv

    def copy(self, seed: int | None = None) -> Self:
        other = super().copy(seed)
        if seed is not None:
            # `AecGame.copy` reseeds only the wrapper, not the environment within.
            reseed_np_random(vars(other._env._env.unwrapped), seed)
        return other
