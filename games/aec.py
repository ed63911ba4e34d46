"""PettingZoo environments as text games: an adapter writes observations as text and names the actions.

Actions are integers (`Discrete`) or tuples of integers (`MultiDiscrete`). Legal actions come from an `action_mask` in
the observation or in the agent's infos.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar, Self

import numpy as np
from gymnasium.spaces import Discrete, MultiDiscrete
from pettingzoo import AECEnv

from marl.games.base import FinalRewards, IllegalMoveHandling, NextAgent, TextGame, TextGameConfig
from marl.games.isolated_random import IsolatedGlobalRandom

MAX_ACTIONS = 100_000
"""Maximum number of actions in the action space of one agent, since each action gets a name."""


class EnvTextAdapter(ABC):
    """Translation of a PettingZoo environment's observations and actions into words."""

    @abstractmethod
    def describe_observation(self, env: AECEnv[str, Any, Any], agent: str) -> str:
        """Return the current observation of `agent` as text; `env.observe(agent)` returns the numbers."""

    def action_names(self, env: AECEnv[str, Any, Any], agent: str) -> Sequence[str]:
        """Return one name per action of `agent`, in the order of the action space (default: the action's number)."""
        return format_action_numbers(env, agent)

    def heard_agents(self, env: AECEnv[str, Any, Any], agent: str) -> tuple[str, ...]:
        """Return the agents whose turns `agent` can read verbatim, itself included (default: itself alone)."""
        return (agent,)


@dataclass(frozen=True, slots=True)
class GamePropertiesNotInPettingZoo:
    """Properties of a game that a PettingZoo environment does not state; see the attributes of `TextGame`."""

    name: str
    illegal: IllegalMoveHandling
    zero_sum: bool = False
    common_reward: bool = False
    default_penalty: float = 1.0


class AecConfig(TextGameConfig, EnvTextAdapter):
    """Base of the settings of PettingZoo environments.

    A subclass implements `make_environment` and `describe_observation`.

    An environment must be a pure function of the seed passed to `reset` and of the actions.
    """

    zero_sum: ClassVar[bool] = False
    """True if the rewards of all agents add up to 0: the penalty of an illegal move then goes to the other agents."""
    common_reward: ClassVar[bool] = False
    """True if all agents always get the same reward: all agents then pay the penalty for an illegal move."""
    default_penalty: ClassVar[float] = 1.0
    """Default cost of an illegal move: at least the worst regular loss, so that no illegal move can avoid a loss."""

    def is_simultaneous(self) -> bool:
        return self.build().is_parallel

    @abstractmethod
    def make_environment(self) -> AECEnv[str, Any, Any]:
        """Return a new environment; convert a parallel environment with PettingZoo's `parallel_to_aec`."""

    def build(self) -> AecGame:
        properties = GamePropertiesNotInPettingZoo(
            self.kind, self.illegal, self.zero_sum, self.common_reward, self.default_penalty
        )
        return AecGame(self.make_environment(), self, properties)


class AecGame(TextGame):
    """Text game that is played in a PettingZoo environment and pays the environment's rewards unchanged.

    If the environment's metadata set `is_parallelizable`, the agents of a round are asked together, since no
    observation changes before all agents have moved.
    """

    def __init__(
        self, env: AECEnv[str, Any, Any], adapter: EnvTextAdapter, properties: GamePropertiesNotInPettingZoo
    ) -> None:
        self._env, self._adapter = env, adapter
        self._random = IsolatedGlobalRandom()
        self.name, self.default_penalty = properties.name, properties.default_penalty
        self.zero_sum, self.common_reward = properties.zero_sum, properties.common_reward
        self.is_parallel = bool(env.metadata.get("is_parallelizable", False))
        """True if all agents move in each round, and no observation changes before the last of them has moved."""
        self._action_of: dict[str, dict[str, Any]] = {}
        """Agent -> name of an action -> action of the environment."""
        moves: dict[str, None] = {}
        for agent in possible_agents(env):
            actions = _enumerate_actions(env, agent)
            names = list(adapter.action_names(env, agent))
            distinct = len({*names})
            if len(names) != len(actions) or distinct != len(names):
                raise ValueError(
                    f"{self.name}: moves of {agent!r}: {len(names)} names ({distinct} different) "
                    f"for {len(actions)} actions"
                )
            self._action_of[agent] = dict(zip(names, actions, strict=True))
            moves |= dict.fromkeys(names)
        super().__init__(tuple(env.possible_agents), properties.illegal, tuple(moves))

    def start_new_game(self, rng: random.Random, options: Mapping[str, Any]) -> NextAgent:
        self._start_seed = rng.getrandbits(31)
        self._truncated: set[str] = set()
        self._observations: dict[str, str] = {}
        """Agent -> text of its current observation."""
        self._history: dict[str, list[str]] = {agent: [] for agent in self.seats}
        """Agent -> texts of its observations and actions so far, alternating."""
        self._returns = dict.fromkeys(self.seats, 0.0)
        with self._random.reseed_on_entry(self._start_seed):
            self._env.reset(seed=self._start_seed)
        return self._env.agent_selection

    def start_state_key(self) -> str:
        """Return the environment's seed, since equal starts of two different seeds cannot be recognized."""
        return str(self._start_seed)

    def heard_agents(self, agent: str) -> tuple[str, ...]:
        return self._adapter.heard_agents(self._env, agent)

    def agents_asked_together(self, agent: str) -> tuple[str, ...]:
        env, agents = self._env, self._env.agents
        if not self.is_parallel:
            return (agent,)
        following = agents[agents.index(agent) :]
        return tuple([name for name in following if not (env.terminations[name] or env.truncations[name])])

    def describe_observation(self, agent: str) -> str:
        if agent not in self._env.agents:
            return "The game is over."
        # An environment may draw random numbers for an observation, so each observation is described once.
        if agent not in self._observations:
            with self._random:
                self._observations[agent] = self._adapter.describe_observation(self._env, agent)
        return self._observations[agent]

    def information_state(self, agent: str) -> str:
        """Return the observations and actions of `agent` so far."""
        return "\n".join([agent, *self._history[agent], self.describe_observation(agent)])

    def legal_actions(self, agent: str) -> tuple[str, ...]:
        with self._random:
            mask, actions = action_mask(self._env, agent), self._action_of[agent]
        if mask is None:
            return tuple(actions)
        names = tuple([name for name, legal in zip(actions, mask, strict=True) if legal])
        if not names:
            raise ValueError(f"{self.name}: the action mask of {agent!r} allows no action, and it is to move")
        return names

    def apply_action(self, action: str) -> NextAgent | FinalRewards:
        env, agent = self._env, self._env.agent_selection
        self._history[agent] += [self.describe_observation(agent), action]
        # PettingZoo's `step` clears the acting agent's cumulative reward, so this agent starts from 0.
        before = env._cumulative_rewards | {agent: 0.0}
        self._observations = {}
        with self._random:
            env.step(self._action_of[agent][action])
        payments: dict[str, Any] = {}
        for payee, total in env._cumulative_rewards.items():
            if payment := total - before.get(payee, 0.0):
                payments[payee] = payment
        self.add_rewards(payments)
        for payee, payment in payments.items():
            self._returns[payee] += float(payment)
        # PettingZoo requires that dead agents step with None before the next live agent moves.
        with self._random:
            while env.agents and (env.terminations[env.agent_selection] or env.truncations[env.agent_selection]):
                if env.truncations[env.agent_selection]:
                    self._truncated.add(env.agent_selection)
                env.step(None)
        if env.agents:
            return env.agent_selection
        returns = self._returns
        lowest, highest = min(returns.values()), max(returns.values())
        # Environments may sum rewards in float32, so the tolerance grows with the size of the rewards.
        tolerance = 1e-6 * (1 + highest - lowest)
        violated = self.zero_sum and abs(sum(returns.values())) > tolerance
        if violated or (self.common_reward and highest - lowest > tolerance):
            declared = "zero_sum" if self.zero_sum else "common"
            raise ValueError(f"{self.name}: declared as {declared}, but its environment paid {returns}")
        return {}

    def copy(self, seed: int | None = None) -> Self:
        """Return a copy as `TextGame.copy` does; `seed` also reseeds the global generators and `env.np_random`."""
        other = super().copy(seed)
        if seed is not None:
            other._random.reseed_on_entry(seed)
            reseed_np_random(vars(other._env.unwrapped), seed)
        return other

    def _end_game(self) -> None:
        super()._end_game()
        self.truncations |= dict.fromkeys(self._truncated, True)
        self.terminations |= dict.fromkeys(self._truncated, False)


def possible_agents(env: AECEnv[str, Any, Any]) -> list[str]:
    """Return the names of all agents of an environment.

    Raises:
        ValueError: if the environment does not list them, as PettingZoo allows for agents that are made during play.
    """
    try:
        return list(env.possible_agents)
    except AttributeError as error:
        name = env.metadata.get("name", type(env.unwrapped).__name__)
        raise ValueError(
            f"env: {name} has no `possible_agents`, but a game's agents are known before it begins; give the "
            "environment this attribute, with the names of all agents"
        ) from error


def action_mask(env: AECEnv[str, Any, Any], agent: str) -> Sequence[int] | None:
    """Return the action mask of `agent` (1: legal now, 0: illegal), or None if the environment has no mask."""
    observation = env.observe(agent)
    mask = observation.get("action_mask") if isinstance(observation, Mapping) else None
    return env.infos[agent].get("action_mask") if mask is None else mask


def format_action_numbers(env: AECEnv[str, Any, Any], agent: str) -> list[str]:
    """Return the agent's actions as texts: an integer as `0`, `1` ..., a tuple of integers as `0 0`, `0 1` ..."""
    actions = _enumerate_actions(env, agent)
    return [str(action) if isinstance(action, int) else " ".join(map(str, action)) for action in actions]


def reseed_np_random(env_attributes: dict[str, Any], seed: int) -> None:
    """Replace the generator `np_random` in an environment's `env_attributes`, if present, by a generator with
    `seed`."""
    for name in ("np_random", "_np_random"):
        if isinstance(env_attributes.get(name), np.random.Generator):
            env_attributes[name] = np.random.default_rng(seed)


def _enumerate_actions(env: AECEnv[str, Any, Any], agent: str) -> list[Any]:
    """Return the actions in the agent's action space, in the order of their numbers.

    Raises ValueError unless the space is Discrete or flat MultiDiscrete with at most `MAX_ACTIONS` actions.
    """
    space = env.action_space(agent)
    if not isinstance(space, Discrete | MultiDiscrete) or (isinstance(space, MultiDiscrete) and space.nvec.ndim > 1):
        raise ValueError(
            f"actions of {agent!r} are {space}; choices: Discrete, flat MultiDiscrete, or a `TextGame` of your own"
        )
    count = int(space.n) if isinstance(space, Discrete) else int(np.prod(space.nvec, dtype=float))
    if count > MAX_ACTIONS:
        raise ValueError(f"actions of {agent!r} are {count:,}; at most {MAX_ACTIONS:,} can be named")
    if isinstance(space, Discrete):
        return [int(space.start) + number for number in range(int(space.n))]
    return [np.array(numbers, dtype=space.dtype) + space.start for numbers in product(*map(range, space.nvec))]
