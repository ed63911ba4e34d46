"""Base of games that are played in words: PettingZoo bookkeeping and illegal moves."""

from __future__ import annotations

import copy
import math
import random
import reprlib
from collections.abc import Iterable, Mapping
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Literal, Self, SupportsFloat, TypeVar

import numpy as np
from gymnasium import Env
from gymnasium.spaces import Dict, MultiBinary, Space, Text
from pettingzoo import AECEnv, ParallelEnv
from pydantic import Field, model_validator

from marl.config import Config, nearest
from marl.protocols import Game, GameConfig, Refusal
from marl.types import Findings, Info, Observation

_API_TEST_OPTIONS = {"options": 1}
"""Options without meaning, with which PettingZoo's `api_test` resets."""


_Value = TypeVar("_Value")
_REPLACED = ("infos", "reward_components", "reward_causes")
"""Attributes of a game whose values are replaced, never changed, so that a copy of it may share them."""
_NOT_COPIED = frozenset((*_REPLACED, "_rng", "_spaces", "metadata"))
_IMMUTABLE = frozenset((bool, int, float, str, bytes, type(None), frozenset))
MAX_REWARD = 1e100
"""Greatest size of a reward: the squares of such numbers can still be added up."""


def finite(value: Any, field: str) -> float:
    """Return a number (numpy's and a tensor's as well) as a float; raise ValueError that names `field` for others."""
    try:
        # Text that spells a number does not count as one.
        number = float(value) if isinstance(value, float | int | SupportsFloat) else math.nan
    except (TypeError, ValueError, OverflowError, RuntimeError):  # an array or a tensor with several numbers
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{field}: {reprlib.repr(value)} is no finite number")
    if abs(number) > MAX_REWARD:
        raise ValueError(f"{field}: {number:g} is too large; the limit is {MAX_REWARD:g}")
    return number


class IllegalMove(Config):
    """Consequences of an answer that is not a legal move."""

    retry: int = Field(default=0, ge=0)
    """Number of times the same agent is asked again; an answer that is followed by a retry costs nothing."""
    then: Literal["forfeit", "penalty", "random"] = "forfeit"
    """End the game at a cost, play a uniformly random legal move at a cost, or play one for free."""
    penalty: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Cost for the offender, in units of the game's reward. None: the game's own `foul`."""

    @model_validator(mode="after")
    def _check_penalty(self) -> Self:
        if self.then == "random" and self.penalty is not None:
            raise ValueError(f"penalty: {self.penalty} is never paid with then: 'random'; choices: forfeit, penalty")
        return self


class TextGameConfig(GameConfig):
    """Settings that all games in words share."""

    illegal: IllegalMove = IllegalMove()
    """Consequences of an answer that is not a legal move."""

    def is_zero_sum(self) -> bool:
        game = self.build()
        return isinstance(game, TextGame) and game.zero_sum


class MoveSpace(Space[str]):
    """Action space with a finite list of moves."""

    def __init__(self, moves: tuple[str, ...]) -> None:
        super().__init__(None, None)
        self.moves = moves

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        moves = [move for i, move in enumerate(self.moves) if mask is None or mask[i]]
        return moves[int(self.np_random.integers(len(moves)))]

    def contains(self, x: Any) -> bool:
        return x in self.moves

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MoveSpace) and self.moves == other.moves


def _text_space(limit: int) -> Text:
    """Return a space of printable ASCII text, up to `limit` characters; a new one each time, as it has random state."""
    return Text(min_length=0, max_length=limit, charset=frozenset(map(chr, (10, *range(32, 127)))))


@lru_cache(maxsize=4096)
def _action_mask(vocabulary: tuple[str, ...], legal: tuple[str, ...]) -> np.ndarray:
    """Return int8 [len(vocabulary)], 1 where the move is legal. The array is cached: callers copy it."""
    return np.array([move in legal for move in vocabulary], dtype=np.int8)


class TextGame(AECEnv[str, Observation, str]):
    """A turn-based game in words: a pure function of seed, options and actions.

    Subclasses implement `deal`, `describe`, `state_of`, `move`, `start_key` and, where moves are restricted, `legal`.
    """

    name: str
    zero_sum: bool = False
    """The rewards of all agents add up to 0, so the others share the payment of an offender for an illegal move."""
    common: bool = False
    """All agents get the same rewards, so all pay for an illegal move."""
    foul: float = 1.0
    """Default cost of an illegal move: never less than the worst regular loss, or breaking the rules would pay."""
    choices: ClassVar[tuple[str, ...]] = ()
    """Names of the options of `reset(options=...)`."""
    lists_moves: ClassVar[bool] = False
    """`legal` always lists the moves, though the game has no list of all moves."""
    rules: str = ""
    """The rules in words, from which somebody who has never heard of the game can play it and read its observations."""

    infos: dict[str, Any]
    reward_components: dict[str, dict[str, float]]
    reward_causes: dict[tuple[str, str], str]

    def __init__(
        self, agents: tuple[str, ...], illegal: IllegalMove, vocabulary: tuple[str, ...] | None = None
    ) -> None:
        if vocabulary is None and not self.lists_moves and illegal.then != "forfeit":
            raise ValueError(f"illegal.then: {illegal.then!r} needs a game with a list of moves; choices: forfeit")
        self.metadata = {"name": self.name, "render_modes": [], "is_parallelizable": False}
        self.possible_agents = list(agents)
        self.seats = agents
        self.vocabulary = vocabulary
        """All moves of the game; None if any text is a move."""
        self.illegal = illegal
        self.cost = self.foul if illegal.penalty is None else illegal.penalty
        self.render_mode = None
        self._seed: int | None = 0
        self._rng: random.Random | None = None

    @property
    def rng(self) -> random.Random:
        """The game's random numbers. They are made when the first is drawn, as most copies of a game draw none."""
        if self._rng is None:
            self._rng = random.Random(self._seed)
        return self._rng

    # --- implemented by games --------------------------------------------------------------------------------------

    def deal(self, rng: random.Random, options: Mapping[str, Any]) -> str:
        """Set up a new game and return the agent to move first."""
        raise NotImplementedError

    def describe(self, agent: str) -> str:
        """Return the observation of `agent`, in words."""
        raise NotImplementedError

    def state_of(self, agent: str) -> str:
        """Return the information state of `agent`: all that it knows."""
        raise NotImplementedError

    def move(self, action: str) -> str | Mapping[str, float]:
        """Apply a legal move and return the agent to move next, or at the end the final reward of each agent."""
        raise NotImplementedError

    def start_key(self) -> str:
        """Return a name of the start state: equal keys, equal starts."""
        raise NotImplementedError

    def legal(self, agent: str) -> tuple[str, ...] | None:
        """Return the legal moves of `agent`, whose observation is final; None if any text is one."""
        return self.vocabulary

    def admits(self, action: str) -> bool:
        """Return True if `action` is a move now. A game that reads moves from any text says here which it can read."""
        return bool(action) and (self._legal is None or action in self._legal)

    def hears(self, agent: str) -> tuple[str, ...]:
        """Return the agents whose turns `agent` can see, itself included: the edges of the trajectory graph."""
        return self.seats

    def together(self, agent: str) -> tuple[str, ...]:
        """Return the agents whose observations are final when `agent` is to move, itself first."""
        return (agent,)

    def gates(self, agent: str) -> tuple[int, ...]:
        """Return the steps, by number, whose moves decided that `agent` speaks now, or whom it hears."""
        return ()

    def problem(self) -> str:
        """Return the key of the problem that is worked on now; "" where there is none."""
        return ""

    def examples(self, agent: str) -> tuple[str, ...]:
        """Return example moves of `agent`, where any text is a move."""
        return ()

    # --- PettingZoo ------------------------------------------------------------------------------------------------

    @cached_property
    def _spaces(self) -> dict[str, tuple[Space[Any], Space[str]]]:
        """Agent -> (observation space, action space)."""
        moves = self.vocabulary
        if moves is None:
            return {agent: (Dict(text=_text_space(65536)), _text_space(4096)) for agent in self.seats}
        return {
            agent: (Dict(text=_text_space(65536), action_mask=MultiBinary(len(moves))), MoveSpace(moves))
            for agent in self.seats
        }

    def observation_space(self, agent: str) -> Space[Any]:
        return self._spaces[agent][0]

    def action_space(self, agent: str) -> Space[str]:
        return self._spaces[agent][1]

    def observe(self, agent: str) -> Observation:
        observation: Observation = {"text": self.describe(agent)}
        if self.vocabulary is not None:
            legal = self.infos[agent]["legal"] if self.infos.get(agent) else ()
            observation["action_mask"] = _action_mask(self.vocabulary, legal or ()).copy()
        return observation

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> None:
        """Deal a new game. `options` (see `choices`) choose the start; `seed` decides what they leave open.

        Raises ValueError if an option is unknown or its value impossible.
        """
        self._seed, self._rng = seed, None
        self.steps_taken = 0
        """Number of steps so far, the one that is being played included."""
        self.agents = agents = list(self.seats)
        self.rewards = dict.fromkeys(agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(agents, 0.0)
        self.terminations = dict.fromkeys(agents, False)
        self.truncations = dict.fromkeys(agents, False)
        self._skip_agent_selection = None  # PettingZoo leaves it behind when dead agents are not stepped
        self.reward_components, self.reward_causes = {}, {}
        self._request_move(self.deal(self.rng, self._check_options(options)), 0)

    def step(self, action: str | None) -> None:
        """Play a move; any text that is not a legal move, such as "", is an illegal one. None: for dead agents only."""
        agent = self.agent_selection
        if self.reward_components:
            self.reward_components, self.reward_causes = {}, {}
            self._clear_rewards()
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)  # type: ignore[arg-type]
            return
        if action is None:
            raise ValueError(f"{self.name}: step(None) for {agent}, who is alive; an illegal move is any other text")
        self.steps_taken += 1
        self._cumulative_rewards[agent] = 0.0
        played = action if self.admits(action) else self._refuse(agent)
        if played is not None:
            outcome = self.move(played)
            if isinstance(outcome, str):
                self._request_move(outcome, 0)
            else:
                self.pay(outcome, cause="result of the game")
                self._end()
        if self.reward_components:
            self._accumulate_rewards()

    def pay(self, payments: Mapping[str, float], name: str = "outcome", cause: str = "") -> None:
        """Add to the rewards of this step, under a component's name; `cause` says which rule paid it.

        Raises ValueError if a payment is no finite number.
        """
        for agent, payment in payments.items():
            value = finite(payment, f"{self.name}: reward {name!r} of {agent!r}")
            components = self.reward_components.setdefault(agent, {})
            components[name] = components.get(name, 0.0) + value
            self.rewards[agent] += value
            if cause:
                self.reward_causes[agent, name] = cause

    def findings(self) -> Findings:
        """Return the measures of the finished episode, and new starts that came up in it."""
        return Findings()

    def copy(self, seed: int | None = None) -> Self:
        """Return a game in the same state, to be played on by itself.

        `seed`: of all that is left to chance in it. None: it draws what this game would draw.

        Attributes are copied as deep as they are lists, sets and dicts; settings are shared, as they are frozen, and
        other objects go through `copy.deepcopy`. A subclass whose attributes cannot be copied so has a method of its
        own.
        """
        other = type(self).__new__(type(self))
        memo: dict[int, Any] = {}
        vars(other).update(
            {name: _copied(value, memo) for name, value in vars(self).items() if name not in _NOT_COPIED}
        )
        vars(other).update({name: copy.copy(vars(self)[name]) for name in _REPLACED if name in vars(self)})
        other.metadata, other._rng = self.metadata, None
        if seed is not None:
            other._seed = seed
        elif self._rng is not None:
            other._rng = random.Random()
            other._rng.setstate(self._rng.getstate())
        return other

    def refusal(self) -> Refusal:
        """Return what `step` would do with an illegal move now."""
        if self._attempt < self.illegal.retry or self.illegal.then == "forfeit":
            return Refusal()
        payments = self._illegal_payments(self.agent_selection) if self.illegal.then == "penalty" else {}
        return Refusal(payments, self._legal or ())

    # --- bookkeeping -----------------------------------------------------------------------------------------------

    def _check_options(self, options: Mapping[str, Any] | None) -> Mapping[str, Any]:
        if not options or options == _API_TEST_OPTIONS:
            return {}
        for name in options:
            if name not in self.choices:
                raise ValueError(f"{self.name}: unknown reset option {name!r}; {nearest(name, list(self.choices))}")
        return options

    def _request_move(self, agent: str, attempt: int) -> None:
        """Make `agent` the one to move, and fill in the infos of all that are asked together with it."""
        self.agent_selection = agent
        self._attempt = attempt
        self._legal = self.legal(agent)
        self.infos = {each: {} for each in self.agents}
        together = self.together(agent)
        for each in together:
            self.infos[each] = Info(
                legal=self._legal if each == agent else self.legal(each),
                hears=self.hears(each),
                together=together,
                state=self.state_of(each),
                attempt=attempt,
                problem=self.problem(),
                examples=self.examples(each),
                rules=self.rules,
                gates=self.gates(each),
            )

    def _end(self) -> None:
        self._legal = ()
        self.terminations = dict.fromkeys(self.agents, True)
        self.infos = {agent: {} for agent in self.agents}

    def _refuse(self, agent: str) -> str | None:
        """Apply the settings for illegal moves and return the move to be played instead, if any."""
        if self._attempt < self.illegal.retry:
            self._request_move(agent, self._attempt + 1)
            return None
        if self.illegal.then != "random":
            self.pay(self._illegal_payments(agent), "illegal", f"{agent} made no legal move")
        if self.illegal.then == "forfeit":
            self._end()
            return None
        return self.rng.choice(self._legal or ())

    def _illegal_payments(self, offender: str) -> dict[str, float]:
        if self.common:
            return dict.fromkeys(self.agents, -self.cost)
        rest = [agent for agent in self.agents if agent != offender]
        share = self.cost / len(rest) if self.zero_sum and rest else 0.0
        return {offender: -self.cost} | dict.fromkeys(rest, share)


def _copied(value: _Value, memo: dict[int, Any]) -> _Value:
    """Return a copy of an attribute, many times as fast as `copy.deepcopy` where it is plain data.

    `memo`: id of a container -> its copy, so that one container under two names stays one.
    """
    kind = type(value)
    if kind in _IMMUTABLE or isinstance(value, Config):
        return value
    if kind is tuple:
        return value if all(type(each) is str for each in value) else tuple([_copied(each, memo) for each in value])  # type: ignore[attr-defined,return-value]
    if id(value) in memo:
        return memo[id(value)]
    if kind is dict:
        memo[id(value)] = {key: _copied(each, memo) for key, each in value.items()}  # type: ignore[attr-defined]
    elif kind is list or kind is set:
        memo[id(value)] = kind([_copied(each, memo) for each in value])  # type: ignore[attr-defined,call-arg]
    elif isinstance(value, AECEnv | ParallelEnv | Env):
        return _copied_environment(value, memo)  # type: ignore[return-value]
    else:
        return copy.deepcopy(value, memo)
    return memo[id(value)]


def _copied_environment(env: Any, memo: dict[int, Any]) -> Any:
    """Return a copy of an environment of others as it is now, wrappers included.

    `copy.deepcopy` would make most of PettingZoo's anew and lose where they are: they inherit from `EzPickle`, whose
    copies are what a constructor returns for the same arguments.
    """
    if id(env) not in memo:
        memo[id(env)] = other = object.__new__(type(env))
        vars(other).update({name: _copied(value, memo) for name, value in vars(env).items()})
    return memo[id(env)]


def replay(game: Game, seed: int | None, options: Mapping[str, Any] | None, actions: Iterable[str | None]) -> None:
    """Reset `game` and play `actions`, where None is an illegal answer. Episodes are forked this way."""
    game.reset(seed, options)
    for action in actions:
        game.step("" if action is None else action)
