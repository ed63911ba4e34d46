"""PettingZoo environments as games: whoever has an `AECEnv` gives words for its observations and names for its actions.

Actions are numbered (`Discrete`); an `action_mask`, in the observation or in the agent's infos, says which are legal.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from gymnasium.spaces import Discrete
from pettingzoo import AECEnv

from games.base import TextGame, TextGameConfig


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
        """Return a name for each of the agent's actions, in their order."""
        return [str(number) for number in range(_actions(env, agent).n)]

    def hears(self, env: AECEnv[str, Any, Any], agent: str) -> tuple[str, ...]:
        """Return the agents whose turns `agent` can read as they were said, itself included."""
        return (agent,)

    def build(self) -> AecGame:
        return AecGame(self)


class AecGame(TextGame):
    """An environment, played by the names of its actions. Its rewards are paid as it pays them."""

    def __init__(self, settings: AecConfig) -> None:
        self._settings = settings
        self._env = env = settings.environment()
        self.name, self.foul = settings.kind, settings.foul
        self.zero_sum, self.common = settings.zero_sum, settings.common
        self._numbers = {agent: self._numbered(agent) for agent in env.possible_agents}
        moves = dict.fromkeys(name for numbers in self._numbers.values() for name in numbers)
        super().__init__(tuple(env.possible_agents), settings.illegal, tuple(moves))

    def deal(self, rng: random.Random, options: Mapping[str, Any]) -> str:
        self._seed = rng.getrandbits(31)
        self._cut: set[str] = set()
        self._past: dict[str, list[str]] = {agent: [] for agent in self.seats}
        self._env.reset(seed=self._seed)
        return self._env.agent_selection

    def start_key(self) -> str:
        """Return the environment's seed: two seeds may lead to one start, but that cannot be seen from here."""
        return str(self._seed)

    def hears(self, agent: str) -> tuple[str, ...]:
        return self._settings.hears(self._env, agent)

    def describe(self, agent: str) -> str:
        return self._settings.describe(self._env, agent) if agent in self._env.agents else "The game is over."

    def state_of(self, agent: str) -> str:
        """Return all that the agent has observed and done."""
        return "\n".join([agent, *self._past[agent], self.describe(agent)])

    def legal(self, agent: str) -> tuple[str, ...]:
        observation, numbers = self._env.observe(agent), self._numbers[agent]
        mask = observation.get("action_mask") if isinstance(observation, Mapping) else None
        if mask is None and (mask := self._env.infos[agent].get("action_mask")) is None:
            return tuple(numbers)
        return tuple([name for name, legal in zip(numbers, mask, strict=True) if legal])

    def move(self, action: str) -> str | Mapping[str, float]:
        env, agent = self._env, self._env.agent_selection
        self._past[agent] += [self.describe(agent), action]
        # An environment counts what an agent is paid since its last action.
        before = env._cumulative_rewards | {agent: 0.0}
        env.step(self._numbers[agent][action])
        after = env._cumulative_rewards
        self.pay({each: total - before[each] for each, total in after.items() if total != before[each]})
        self._remove_dead()
        return env.agent_selection if env.agents else {}

    def _remove_dead(self) -> None:
        """Step the agents that are done with None, as PettingZoo asks, until it is somebody's turn or all are."""
        env = self._env
        while env.agents and (env.terminations[env.agent_selection] or env.truncations[env.agent_selection]):
            if env.truncations[env.agent_selection]:
                self._cut.add(env.agent_selection)
            env.step(None)

    def _end(self) -> None:
        super()._end()
        self.truncations |= dict.fromkeys(self._cut, True)
        self.terminations |= dict.fromkeys(self._cut, False)

    def _numbered(self, agent: str) -> dict[str, int]:
        """Return name -> number of the agent's actions; raise ValueError if there is not one name for each."""
        space = _actions(self._env, agent)
        names = list(self._settings.moves(self._env, agent))
        if len(names) != space.n or len({*names}) != len(names):
            raise ValueError(
                f"{self.name}: moves of {agent!r}: {len(names)} names ({len({*names})} different) for {space.n} actions"
            )
        return {name: int(space.start) + i for i, name in enumerate(names)}


def _actions(env: AECEnv[str, Any, Any], agent: str) -> Discrete:
    """Return an agent's action space; raise ValueError unless its actions are numbered."""
    space = env.action_space(agent)
    if not isinstance(space, Discrete):
        raise ValueError(f"actions of {agent!r} are {space}; choices: Discrete, or a `TextGame` of your own")
    return space
