"""PettingZoo environments as games: whoever has an `AECEnv` gives words for its observations and names for its actions.

Actions are numbered (`Discrete`) or tuples of numbers (`MultiDiscrete`); an `action_mask`, in the observation or in the
agent's infos, says which are legal.
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

from games.base import IllegalMove, TextGame, TextGameConfig
from games.global_random import GlobalRandom

MAX_ACTIONS = 100_000
"""Largest number of actions that are named one by one."""


class Words(Protocol):
    """The words in which an environment is played."""

    def describe(self, env: AECEnv[str, Any, Any], agent: str) -> str:
        """Return what `agent` observes now, in words; `env.observe(agent)` has it in numbers."""
        ...

    def moves(self, env: AECEnv[str, Any, Any], agent: str) -> Sequence[str]:
        """Return a name for each of the agent's actions, in their order."""
        ...

    def hears(self, env: AECEnv[str, Any, Any], agent: str) -> tuple[str, ...]:
        """Return the agents whose turns `agent` can read as they were said, itself included."""
        ...


@dataclass(frozen=True, slots=True)
class AecRules:
    """Facts of a game that its environment does not tell: `zero_sum`, `common` and `foul` as in `TextGame`."""

    name: str
    illegal: IllegalMove
    zero_sum: bool = False
    common: bool = False
    foul: float = 1.0


class AecConfig(TextGameConfig):
    """Base of settings of games that PettingZoo environments are. A subclass implements `environment` and `describe`.

    The environment must be a pure function of the seed that `reset` gets, and of the actions.
    """

    zero_sum: ClassVar[bool] = False
    """The rewards of all agents add up to 0, so the others share the payment of an offender for an illegal move."""
    common: ClassVar[bool] = False
    """All agents get the same rewards, so all pay for an illegal move."""
    foul: ClassVar[float] = 1.0
    """Default cost of an illegal move: never less than the worst regular loss, or breaking the rules would pay."""

    @abstractmethod
    def environment(self) -> AECEnv[str, Any, Any]:
        """Return a new environment. One with the parallel interface goes through PettingZoo's `parallel_to_aec`."""

    @abstractmethod
    def describe(self, env: AECEnv[str, Any, Any], agent: str) -> str:
        """Return what `agent` observes now, in words; `env.observe(agent)` has it in numbers."""

    def moves(self, env: AECEnv[str, Any, Any], agent: str) -> Sequence[str]:
        """Return a name for each of the agent's actions, in their order: by default their numbers."""
        return numbered(env, agent)

    def hears(self, env: AECEnv[str, Any, Any], agent: str) -> tuple[str, ...]:
        """Return the agents whose turns `agent` can read as they were said, itself included."""
        return (agent,)

    def build(self) -> AecGame:
        rules = AecRules(self.kind, self.illegal, self.zero_sum, self.common, self.foul)
        return AecGame(self.environment(), self, rules)


class AecGame(TextGame):
    """An environment, played by the names of its actions. Its rewards are paid as it pays them.

    Agents of an environment whose metadata say `is_parallelizable`, as those of all parallel ones do, are asked
    together in each round: no observation changes before all have moved. Each agent's observation is put into words
    once a move, so that an environment which draws random numbers for it shows the same one to everybody who looks.
    """

    def __init__(self, env: AECEnv[str, Any, Any], words: Words, rules: AecRules) -> None:
        self._env, self._words = env, words
        self._random = GlobalRandom()
        self.name, self.foul = rules.name, rules.foul
        self.zero_sum, self.common = rules.zero_sum, rules.common
        self._in_rounds = bool(env.metadata.get("is_parallelizable", False))
        self._values = {agent: self._named(agent) for agent in env.possible_agents}
        moves = dict.fromkeys(name for values in self._values.values() for name in values)
        super().__init__(tuple(env.possible_agents), rules.illegal, tuple(moves))

    def deal(self, rng: random.Random, options: Mapping[str, Any]) -> str:
        self._start_seed = rng.getrandbits(31)
        self._cut: set[str] = set()
        self._shown: dict[str, str] = {}
        self._past: dict[str, list[str]] = {agent: [] for agent in self.seats}
        self._paid = dict.fromkeys(self.seats, 0.0)
        with self._random.seeded(self._start_seed):
            self._env.reset(seed=self._start_seed)
        return self._env.agent_selection

    def start_key(self) -> str:
        """Return the environment's seed: two seeds may lead to one start, but that cannot be seen from here."""
        return str(self._start_seed)

    def hears(self, agent: str) -> tuple[str, ...]:
        return self._words.hears(self._env, agent)

    def together(self, agent: str) -> tuple[str, ...]:
        env, agents = self._env, self._env.agents
        if not self._in_rounds:
            return (agent,)
        later = agents[agents.index(agent) :]
        return tuple([each for each in later if not (env.terminations[each] or env.truncations[each])])

    def describe(self, agent: str) -> str:
        if agent not in self._env.agents:
            return "The game is over."
        if agent not in self._shown:
            with self._random:
                self._shown[agent] = self._words.describe(self._env, agent)
        return self._shown[agent]

    def state_of(self, agent: str) -> str:
        """Return all that the agent has observed and done."""
        return "\n".join([agent, *self._past[agent], self.describe(agent)])

    def legal(self, agent: str) -> tuple[str, ...]:
        with self._random:
            mask, values = action_mask(self._env, agent), self._values[agent]
        if mask is None:
            return tuple(values)
        names = tuple([name for name, legal in zip(values, mask, strict=True) if legal])
        if not names:
            raise ValueError(f"{self.name}: the action mask of {agent!r} allows no action, and it is to move")
        return names

    def move(self, action: str) -> str | Mapping[str, float]:
        env, agent = self._env, self._env.agent_selection
        self._past[agent] += [self.describe(agent), action]
        # An environment counts what an agent is paid since its last action.
        before = env._cumulative_rewards | {agent: 0.0}
        self._shown = {}
        with self._random:
            env.step(self._values[agent][action])
        gained = {each: total - before.get(each, 0.0) for each, total in env._cumulative_rewards.items()}
        payments = {each: payment for each, payment in gained.items() if payment}
        self.pay(payments)
        for each, payment in payments.items():
            self._paid[each] += float(payment)
        self._remove_dead()
        if env.agents:
            return env.agent_selection
        self._check_payments()
        return {}

    def copy(self, seed: int | None = None) -> Self:
        """Return as described in the base. `seed` reaches the global generators, and the environment's `np_random`."""
        other = super().copy(seed)
        if seed is not None:
            other._random.seeded(seed)
            reseed(vars(other._env.unwrapped), seed)
        return other

    def _check_payments(self) -> None:
        """Raise ValueError if the environment has not paid what is declared of it."""
        paid = self._paid
        least, most = min(paid.values()), max(paid.values())
        slack = 1e-6 * (1 + most - least)  # environments may add up in single precision
        if (self.zero_sum and abs(sum(paid.values())) > slack) or (self.common and most - least > slack):
            declared = "zero_sum" if self.zero_sum else "common"
            raise ValueError(f"{self.name}: declared as {declared}, but its environment paid {paid}")

    def _remove_dead(self) -> None:
        """Step the agents that are done with None, as PettingZoo asks, until it is somebody's turn or all are."""
        env = self._env
        with self._random:
            while env.agents and (env.terminations[env.agent_selection] or env.truncations[env.agent_selection]):
                if env.truncations[env.agent_selection]:
                    self._cut.add(env.agent_selection)
                env.step(None)

    def _end(self) -> None:
        super()._end()
        self.truncations |= dict.fromkeys(self._cut, True)
        self.terminations |= dict.fromkeys(self._cut, False)

    def _named(self, agent: str) -> dict[str, Any]:
        """Return name -> value of the agent's actions; raise ValueError if there is not one name for each."""
        values = _values(self._env, agent)
        names = list(self._words.moves(self._env, agent))
        if len(names) != len(values) or len({*names}) != len(names):
            raise ValueError(
                f"{self.name}: moves of {agent!r}: {len(names)} names ({len({*names})} different) "
                f"for {len(values)} actions"
            )
        return dict(zip(names, values, strict=True))


def action_mask(env: AECEnv[str, Any, Any], agent: str) -> Sequence[int] | None:
    """Return 1 for each action that is legal now and 0 for each other one; None if all always are."""
    observation = env.observe(agent)
    mask = observation.get("action_mask") if isinstance(observation, Mapping) else None
    return env.infos[agent].get("action_mask") if mask is None else mask


def numbered(env: AECEnv[str, Any, Any], agent: str) -> list[str]:
    """Return the agent's actions as the environment numbers them: `0`, `1` ...; tuples as `0 0`, `0 1` ..."""
    return [str(value) if isinstance(value, int) else " ".join(map(str, value)) for value in _values(env, agent)]


def reseed(attributes: dict[str, Any], seed: int) -> None:
    """Replace the generator that Gymnasium and PettingZoo call `np_random`, if an environment has one."""
    for name in ("np_random", "_np_random"):
        if isinstance(attributes.get(name), np.random.Generator):
            attributes[name] = np.random.default_rng(seed)


def _values(env: AECEnv[str, Any, Any], agent: str) -> list[Any]:
    """Return the actions that the agent's names stand for, in their order."""
    space = _actions(env, agent)
    if isinstance(space, Discrete):
        return [int(space.start) + number for number in range(int(space.n))]
    return [np.array(numbers, dtype=space.dtype) + space.start for numbers in product(*map(range, space.nvec))]


def _actions(env: AECEnv[str, Any, Any], agent: str) -> Discrete | MultiDiscrete:
    """Return an agent's action space; raise ValueError unless its actions are numbered, and few enough to be named."""
    space = env.action_space(agent)
    if not isinstance(space, Discrete | MultiDiscrete) or (isinstance(space, MultiDiscrete) and space.nvec.ndim > 1):
        raise ValueError(
            f"actions of {agent!r} are {space}; choices: Discrete, flat MultiDiscrete, or a `TextGame` of your own"
        )
    count = int(space.n) if isinstance(space, Discrete) else int(np.prod(space.nvec, dtype=float))
    if count > MAX_ACTIONS:
        raise ValueError(f"actions of {agent!r} are {count:,}; at most {MAX_ACTIONS:,} can be named")
    return space
