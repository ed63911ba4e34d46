"""PettingZoo environments as text games: an adapter puts observations into words and names the actions.

Actions are integers (`Discrete`) or tuples of integers (`MultiDiscrete`). Legal actions come from an `action_mask` in
the observation or in the agent's infos.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from gymnasium.spaces import Discrete, MultiDiscrete
from pettingzoo import AECEnv

from marl.games.base import IllegalMoveHandling, TextGame, TextGameConfig
from marl.games.isolated_random import IsolatedGlobalRandom

MAX_ACTIONS = 100_000
"""Maximum number of actions of one agent; each action gets a name."""


class TextAdapter(Protocol):
    """Translation of an environment's observations and actions into words."""

    def describe(self, env: AECEnv[str, Any, Any], agent: str) -> str:
        """Return the current observation of `agent` as text; `env.observe(agent)` returns the numbers."""
        ...

    def action_names(self, env: AECEnv[str, Any, Any], agent: str) -> Sequence[str]:
        """Return one name per action of `agent`, in the order of the action space."""
        ...

    def hears(self, env: AECEnv[str, Any, Any], agent: str) -> tuple[str, ...]:
        """Return the agents whose turns `agent` can read verbatim, itself included."""
        ...


@dataclass(frozen=True, slots=True)
class AecProperties:
    """Facts missing in a PettingZoo environment; `zero_sum`, `common_reward` and `default_penalty` as in `TextGame`."""

    name: str
    illegal: IllegalMoveHandling
    zero_sum: bool = False
    common_reward: bool = False
    default_penalty: float = 1.0


class AecConfig(TextGameConfig):
    """Base of the settings of PettingZoo environments. A subclass implements `make_environment` and `describe`.

    The environment must be a pure function of the seed passed to `reset` and of the actions.
    """

    zero_sum: ClassVar[bool] = False
    """True if the rewards of all agents add up to 0: the other agents then share an offender's penalty."""
    common_reward: ClassVar[bool] = False
    """True if all agents always get the same reward: all agents then pay the penalty for an illegal move."""
    default_penalty: ClassVar[float] = 1.0
    """Default cost of an illegal move: at least the worst regular loss, or breaking the rules would pay."""

    @abstractmethod
    def make_environment(self) -> AECEnv[str, Any, Any]:
        """Return a new environment; convert a parallel environment with PettingZoo's `parallel_to_aec`."""

    @abstractmethod
    def describe(self, env: AECEnv[str, Any, Any], agent: str) -> str:
        """Return the current observation of `agent` as text; `env.observe(agent)` returns the numbers."""

    def action_names(self, env: AECEnv[str, Any, Any], agent: str) -> Sequence[str]:
        """Return one name per action of `agent`, in the order of the action space (default: the action's number)."""
        return numbered(env, agent)

    def hears(self, env: AECEnv[str, Any, Any], agent: str) -> tuple[str, ...]:
        """Return the agents whose turns `agent` can read verbatim, itself included (default: itself alone)."""
        return (agent,)

    def build(self) -> AecGame:
        rules = AecProperties(self.kind, self.illegal, self.zero_sum, self.common_reward, self.default_penalty)
        return AecGame(self.make_environment(), self, rules)


class AecGame(TextGame):
    """A text game played in a PettingZoo environment, whose rewards it passes on unchanged.

    If the environment's metadata set `is_parallelizable`, the agents of a round are asked together: no observation
    changes before all agents have moved.
    """

    def __init__(self, env: AECEnv[str, Any, Any], words: TextAdapter, rules: AecProperties) -> None:
        self._env, self._words = env, words
        self._random = IsolatedGlobalRandom()
        self.name, self.default_penalty = rules.name, rules.default_penalty
        self.zero_sum, self.common_reward = rules.zero_sum, rules.common_reward
        self._in_rounds = bool(env.metadata.get("is_parallelizable", False))
        self._values: dict[str, dict[str, Any]] = {}
        """Agent -> name of an action -> the action."""
        moves: dict[str, None] = {}
        for agent in env.possible_agents:
            values = _values(env, agent)
            names = list(words.action_names(env, agent))
            distinct = len({*names})
            if len(names) != len(values) or distinct != len(names):
                raise ValueError(
                    f"{self.name}: moves of {agent!r}: {len(names)} names ({distinct} different) "
                    f"for {len(values)} actions"
                )
            self._values[agent] = dict(zip(names, values, strict=True))
            moves |= dict.fromkeys(names)
        super().__init__(tuple(env.possible_agents), rules.illegal, tuple(moves))

    def deal(self, rng: random.Random, options: Mapping[str, Any]) -> str:
        self._start_seed = rng.getrandbits(31)
        self._truncated: set[str] = set()
        self._observations: dict[str, str] = {}
        """Agent -> its observation before the next move, in words."""
        self._history: dict[str, list[str]] = {agent: [] for agent in self.seats}
        """Agent -> its observations and actions, alternating."""
        self._returns = dict.fromkeys(self.seats, 0.0)
        with self._random.seeded(self._start_seed):
            self._env.reset(seed=self._start_seed)
        return self._env.agent_selection

    def start_key(self) -> str:
        """Return the environment's seed. Two seeds may lead to equal starts, but nothing shows which seeds do."""
        return str(self._start_seed)

    def hears(self, agent: str) -> tuple[str, ...]:
        return self._words.hears(self._env, agent)

    def together(self, agent: str) -> tuple[str, ...]:
        env, agents = self._env, self._env.agents
        if not self._in_rounds:
            return (agent,)
        following = agents[agents.index(agent) :]
        return tuple([name for name in following if not (env.terminations[name] or env.truncations[name])])

    def describe(self, agent: str) -> str:
        if agent not in self._env.agents:
            return "The game is over."
        # Described once per move: an environment may draw random numbers for an observation, and every reader has to
        # see the same text.
        if agent not in self._observations:
            with self._random:
                self._observations[agent] = self._words.describe(self._env, agent)
        return self._observations[agent]

    def information_state(self, agent: str) -> str:
        """Return the observations and actions of `agent` so far."""
        return "\n".join([agent, *self._history[agent], self.describe(agent)])

    def legal_actions(self, agent: str) -> tuple[str, ...]:
        with self._random:
            mask, values = action_mask(self._env, agent), self._values[agent]
        if mask is None:
            return tuple(values)
        names = tuple([name for name, legal in zip(values, mask, strict=True) if legal])
        if not names:
            raise ValueError(f"{self.name}: the action mask of {agent!r} allows no action, and it is to move")
        return names

    def apply_action(self, action: str) -> str | Mapping[str, float]:
        env, agent = self._env, self._env.agent_selection
        self._history[agent] += [self.describe(agent), action]
        # PettingZoo accumulates an agent's rewards since its last action, so the acting agent starts from 0.
        before = env._cumulative_rewards | {agent: 0.0}
        self._observations = {}
        with self._random:
            env.step(self._values[agent][action])
        payments: dict[str, Any] = {}
        for payee, total in env._cumulative_rewards.items():
            if payment := total - before.get(payee, 0.0):
                payments[payee] = payment
        self.add_rewards(payments)
        for payee, payment in payments.items():
            self._returns[payee] += float(payment)
        self._step_dead_agents()
        if env.agents:
            return env.agent_selection
        self._check_declared_rewards()
        return {}

    def copy(self, seed: int | None = None) -> Self:
        """Return a copy as `TextGame.copy` does; `seed` also reseeds the global generators and `env.np_random`."""
        other = super().copy(seed)
        if seed is not None:
            other._random.seeded(seed)
            reseed(vars(other._env.unwrapped), seed)
        return other

    def _check_declared_rewards(self) -> None:
        """Raise ValueError if the returns contradict the declared `zero_sum` or `common_reward`."""
        returns = self._returns
        lowest, highest = min(returns.values()), max(returns.values())
        # Environments may sum rewards in single precision, so rounding errors grow with the rewards.
        tolerance = 1e-6 * (1 + highest - lowest)
        violated = self.zero_sum and abs(sum(returns.values())) > tolerance
        if violated or (self.common_reward and highest - lowest > tolerance):
            declared = "zero_sum" if self.zero_sum else "common"
            raise ValueError(f"{self.name}: declared as {declared}, but its environment paid {returns}")

    def _step_dead_agents(self) -> None:
        """Step terminated and truncated agents with None, as PettingZoo requires, until a live agent is to move."""
        env = self._env
        with self._random:
            while env.agents and (env.terminations[env.agent_selection] or env.truncations[env.agent_selection]):
                if env.truncations[env.agent_selection]:
                    self._truncated.add(env.agent_selection)
                env.step(None)

    def _end(self) -> None:
        super()._end()
        self.truncations |= dict.fromkeys(self._truncated, True)
        self.terminations |= dict.fromkeys(self._truncated, False)


def action_mask(env: AECEnv[str, Any, Any], agent: str) -> Sequence[int] | None:
    """Return the action mask of `agent` (1: legal now, 0: illegal), or None if the environment has no mask."""
    observation = env.observe(agent)
    mask = observation.get("action_mask") if isinstance(observation, Mapping) else None
    return env.infos[agent].get("action_mask") if mask is None else mask


def numbered(env: AECEnv[str, Any, Any], agent: str) -> list[str]:
    """Return the numbers of the agent's actions as text: `0`, `1` ...; tuples as `0 0`, `0 1` ..."""
    return [str(value) if isinstance(value, int) else " ".join(map(str, value)) for value in _values(env, agent)]


def reseed(attributes: dict[str, Any], seed: int) -> None:
    """Replace the `np_random` generator of Gymnasium and PettingZoo in `attributes`, if there is one."""
    for name in ("np_random", "_np_random"):
        if isinstance(attributes.get(name), np.random.Generator):
            attributes[name] = np.random.default_rng(seed)


def _values(env: AECEnv[str, Any, Any], agent: str) -> list[Any]:
    """Return the agent's actions in the order of its action space.

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
