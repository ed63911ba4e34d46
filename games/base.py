"""Base class of text games: PettingZoo bookkeeping, illegal moves and copies of a running game."""

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

from marl.core.config import Config, choices_hint
from marl.core.types import Findings, Info, Observation
from marl.protocols import Game, GameConfig, IllegalMoveOutcome

_API_TEST_OPTIONS = {"options": 1}
"""Meaningless reset options passed by PettingZoo's `api_test`; a game ignores them."""


_Value = TypeVar("_Value")
_REPLACED = ("infos", "reward_components", "reward_causes")
"""Attributes replaced on every step and never changed in place, so a copy of a game can share their values."""
_NOT_COPIED = frozenset((*_REPLACED, "_rng", "_spaces", "metadata"))
_IMMUTABLE = frozenset((bool, int, float, str, bytes, type(None), frozenset))
MAX_REWARD = 1e100
"""Maximum absolute reward: the square of a larger reward could overflow a float."""


def finite(value: Any, field: str) -> float:
    """Return `value` (a number, a numpy scalar or a tensor with one element) as a finite float.

    Raises ValueError with the name `field` if `value` is no finite number or exceeds `MAX_REWARD`.
    """
    try:
        # float("3") would succeed, but text is no reward.
        number = float(value) if isinstance(value, float | int | SupportsFloat) else math.nan
    except (TypeError, ValueError, OverflowError, RuntimeError):  # arrays or tensors with several elements
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{field}: {reprlib.repr(value)} is no finite number")
    if abs(number) > MAX_REWARD:
        raise ValueError(f"{field}: {number:g} is too large; the limit is {MAX_REWARD:g}")
    return number


class IllegalMoveHandling(Config):
    """Consequences of an illegal move."""

    retry: int = Field(default=0, ge=0)
    """Number of further attempts after an illegal move; an illegal move followed by a retry costs nothing."""
    then: Literal["forfeit", "penalty", "random"] = "forfeit"
    """Consequence after the last attempt: `forfeit` ends the game at a cost, `penalty` plays a uniformly random legal
    move at a cost, `random` plays a random legal move for free."""
    penalty: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Cost for the offender, in units of reward, or None for the game's `default_penalty`."""

    @model_validator(mode="after")
    def _check_penalty(self) -> Self:
        if self.then == "random" and self.penalty is not None:
            raise ValueError(f"penalty: {self.penalty} is never paid with then: 'random'; choices: forfeit, penalty")
        return self


class TextGameConfig(GameConfig):
    """Settings shared by all text games."""

    illegal: IllegalMoveHandling = IllegalMoveHandling()
    """Consequences of an illegal move."""

    def is_zero_sum(self) -> bool:
        game = self.build()
        return isinstance(game, TextGame) and game.zero_sum


class MoveSpace(Space[str]):
    """Gymnasium action space of a finite list of moves in words."""

    def __init__(self, moves: tuple[str, ...]) -> None:
        super().__init__(None, None)
        self.moves = moves

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        moves = self.moves if mask is None else [self.moves[index] for index in np.flatnonzero(mask)]
        return moves[int(self.np_random.integers(len(moves)))]

    def contains(self, x: Any) -> bool:
        return x in self.moves

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MoveSpace) and self.moves == other.moves


def _text_space(limit: int) -> Text:
    """Return a new Gymnasium space of printable ASCII text with at most `limit` characters."""
    return Text(min_length=0, max_length=limit, charset=frozenset(map(chr, (10, *range(32, 127)))))


@lru_cache(maxsize=4096)
def _action_mask(vocabulary: tuple[str, ...], legal: tuple[str, ...]) -> np.ndarray:
    """Return the action mask: int8 [len(vocabulary)], 1 where the move is legal. Callers copy the cached array."""
    return np.array([move in legal for move in vocabulary], dtype=np.int8)


class TextGame(AECEnv[str, Observation, str]):
    """A turn-based game in words: a pure function of seed, options and actions.

    Subclasses implement `deal`, `describe`, `information_state`, `apply_action`, `start_key` and, if only some moves
    are legal, `legal_actions`.
    """

    name: str
    zero_sum: bool = False
    """True if the rewards of all agents add up to 0: the other agents then share an offender's penalty."""
    common_reward: bool = False
    """True if all agents always get the same reward: all agents then pay the penalty for an illegal move."""
    default_penalty: float = 1.0
    """Default cost of an illegal move: at least the worst regular loss, or breaking the rules would pay."""
    reset_options: ClassVar[tuple[str, ...]] = ()
    """Names of the options of `reset(options=...)`."""
    enumerates_legal_moves: ClassVar[bool] = False
    """True if `legal_actions` always lists the moves, although the game has no list of all moves."""
    rules: str = ""
    """Rules in words, complete enough for a reader to play the game and understand its observations."""

    infos: dict[str, Any]
    reward_components: dict[str, dict[str, float]]
    reward_causes: dict[tuple[str, str], str]

    def __init__(
        self, agents: tuple[str, ...], illegal: IllegalMoveHandling, vocabulary: tuple[str, ...] | None = None
    ) -> None:
        if vocabulary is None and not self.enumerates_legal_moves and illegal.then != "forfeit":
            raise ValueError(f"illegal.then: {illegal.then!r} needs a game with a list of moves; choices: forfeit")
        self.metadata = {"name": self.name, "render_modes": [], "is_parallelizable": False}
        self.possible_agents = list(agents)
        self.seats = agents
        self.all_actions = vocabulary
        """All moves of the game, or None if any text is a move."""
        self.illegal = illegal
        self.penalty = self.default_penalty if illegal.penalty is None else illegal.penalty
        self.render_mode = None
        self._seed: int | None = 0
        self._rng: random.Random | None = None

    @property
    def rng(self) -> random.Random:
        """Random number generator of the game."""
        # Created at the first draw: seeding is slow, and most copies of a game draw no random number.
        if self._rng is None:
            self._rng = random.Random(self._seed)
        return self._rng

    # --- implemented by games --------------------------------------------------------------------------------------

    def deal(self, rng: random.Random, options: Mapping[str, Any]) -> str:
        """Set up a new game and return the agent to move first."""
        raise NotImplementedError

    def describe(self, agent: str) -> str:
        """Return the observation of `agent` as text."""
        raise NotImplementedError

    def information_state(self, agent: str) -> str:
        """Return the information state of `agent`: equal texts if and only if the agent knows the same."""
        raise NotImplementedError

    def apply_action(self, action: str) -> str | Mapping[str, float]:
        """Apply a legal move and return the next agent to move, or at the end the final reward of each agent."""
        raise NotImplementedError

    def start_key(self) -> str:
        """Return the identifier of the start state; games with equal keys started alike."""
        raise NotImplementedError

    def legal_actions(self, agent: str) -> tuple[str, ...] | None:
        """Return the legal moves of `agent`, or None if any text is legal."""
        return self.all_actions

    def is_legal(self, action: str) -> bool:
        """Return True if `action` is legal now. Games with free text override this method to parse `action`."""
        return bool(action) and (self._legal is None or action in self._legal)

    def hears(self, agent: str) -> tuple[str, ...]:
        """Return the agents whose turns `agent` can read, itself included: sources of edges in the trajectory graph."""
        return self.seats

    def together(self, agent: str) -> tuple[str, ...]:
        """Return the agents whose observations are final now, with `agent` (to move) first: they can answer at once."""
        return (agent,)

    def gates(self, agent: str) -> tuple[int, ...]:
        """Return the indices of earlier steps whose moves decided that `agent` speaks now, or whom `agent` hears."""
        return ()

    def problem_key(self) -> str:
        """Return the key of the current problem, or "" in a game without problems."""
        return ""

    def example_actions(self, agent: str) -> tuple[str, ...]:
        """Return example moves of `agent` for random play, needed if any text is a move."""
        return ()

    # --- PettingZoo ------------------------------------------------------------------------------------------------

    @cached_property
    def _spaces(self) -> dict[str, tuple[Space[Any], Space[str]]]:
        """Agent -> (observation space, action space). Every agent has its own, as spaces hold random state."""
        spaces: dict[str, tuple[Space[Any], Space[str]]] = {}
        moves = self.all_actions
        for agent in self.seats:
            if moves is None:
                spaces[agent] = Dict(text=_text_space(65536)), _text_space(4096)
            else:
                observations = Dict(text=_text_space(65536), action_mask=MultiBinary(len(moves)))
                spaces[agent] = observations, MoveSpace(moves)
        return spaces

    def observation_space(self, agent: str) -> Space[Any]:
        return self._spaces[agent][0]

    def action_space(self, agent: str) -> Space[str]:
        return self._spaces[agent][1]

    def observe(self, agent: str) -> Observation:
        observation: Observation = {"text": self.describe(agent)}
        if self.all_actions is not None:
            legal = self.infos[agent]["legal"] if self.infos.get(agent) else ()
            observation["action_mask"] = _action_mask(self.all_actions, legal or ()).copy()
        return observation

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> None:
        """Deal a new game. `options` (see `reset_options`) fix parts of the start; `seed` draws all other parts.

        Raises ValueError if an option is unknown or its value impossible.
        """
        if options == _API_TEST_OPTIONS:
            options = None
        for name in options or ():
            if name not in self.reset_options:
                hint = choices_hint(name, list(self.reset_options))
                raise ValueError(f"{self.name}: unknown reset option {name!r}; {hint}")
        self._seed, self._rng = seed, None
        self.steps_taken = 0
        """Number of steps so far, including the current step."""
        self.agents = agents = list(self.seats)
        self.rewards = dict.fromkeys(agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(agents, 0.0)
        self.terminations = dict.fromkeys(agents, False)
        self.truncations = dict.fromkeys(agents, False)
        # PettingZoo sets this attribute for dead agents and keeps it from an episode whose dead agents are not stepped.
        self._skip_agent_selection = None
        self.reward_components, self.reward_causes = {}, {}
        self._request_move(self.deal(self.rng, options or {}), 0)

    def step(self, action: str | None) -> None:
        """Play a move. Any text other than a legal move, such as "", is an illegal move; dead agents step with None."""
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
        legal_action = action if self.is_legal(action) else self._refuse(agent)
        if legal_action is not None:
            outcome = self.apply_action(legal_action)
            if isinstance(outcome, str):
                self._request_move(outcome, 0)
            else:
                self.add_rewards(outcome, cause="result of the game")
                self._end()
        if self.reward_components:
            self._accumulate_rewards()

    def add_rewards(self, payments: Mapping[str, float], name: str = "outcome", cause: str = "") -> None:
        """Add `payments` (agent -> amount) to the rewards of this step as the reward component `name`.

        `cause` names the rule behind the payment, for records. Raises ValueError if an amount is no finite number.
        """
        for agent, payment in payments.items():
            value = finite(payment, f"{self.name}: reward {name!r} of {agent!r}")
            components = self.reward_components.setdefault(agent, {})
            components[name] = components.get(name, 0.0) + value
            self.rewards[agent] += value
            if cause:
                self.reward_causes[agent, name] = cause

    def findings(self) -> Findings:
        """Return the measures of the finished episode, and new starts found in it."""
        return Findings()

    def copy(self, seed: int | None = None) -> Self:
        """Return an independent game in the same state.

        `seed` replaces the random numbers of the copy; with None the copy draws the same numbers as this game would.

        Lists, sets and dicts are copied recursively, frozen settings are shared, and other objects are copied with
        `copy.deepcopy`. A subclass with attributes unfit for this overrides the method.
        """
        other = type(self).__new__(type(self))
        memo: dict[int, Any] = {}
        attributes: dict[str, Any] = {}
        for name, value in vars(self).items():
            if name not in _NOT_COPIED:
                attributes[name] = _copied(value, memo)
        for name in _REPLACED:
            if name in vars(self):
                attributes[name] = copy.copy(vars(self)[name])
        vars(other).update(attributes)
        other.metadata, other._rng = self.metadata, None
        if seed is not None:
            other._seed = seed
        elif self._rng is not None:
            other._rng = random.Random()
            other._rng.setstate(self._rng.getstate())
        return other

    def illegal_move_outcome(self) -> IllegalMoveOutcome:
        """Return the payments and replacement moves that would follow an illegal move now."""
        if self._attempt < self.illegal.retry or self.illegal.then == "forfeit":
            return IllegalMoveOutcome()
        payments = self._illegal_payments(self.agent_selection) if self.illegal.then == "penalty" else {}
        return IllegalMoveOutcome(payments, self._legal or ())

    # --- bookkeeping -----------------------------------------------------------------------------------------------

    def _request_move(self, agent: str, attempt: int) -> None:
        """Select `agent` to move, and fill in the infos of all agents asked at the same time."""
        self.agent_selection = agent
        self._attempt = attempt
        self._legal = self.legal_actions(agent)
        self.infos = {name: {} for name in self.agents}
        together = self.together(agent)
        for member in together:
            self.infos[member] = Info(
                legal=self._legal if member == agent else self.legal_actions(member),
                hears=self.hears(member),
                together=together,
                state=self.information_state(member),
                attempt=attempt,
                problem=self.problem_key(),
                examples=self.example_actions(member),
                rules=self.rules,
                gates=self.gates(member),
            )

    def _end(self) -> None:
        self._legal = ()
        self.terminations = dict.fromkeys(self.agents, True)
        self.infos = {agent: {} for agent in self.agents}

    def _refuse(self, agent: str) -> str | None:
        """Apply the settings for illegal moves; return the random move played instead, or None if no move is played."""
        if self._attempt < self.illegal.retry:
            self._request_move(agent, self._attempt + 1)
            return None
        if self.illegal.then != "random":
            self.add_rewards(self._illegal_payments(agent), "illegal", f"{agent} made no legal move")
        if self.illegal.then == "forfeit":
            self._end()
            return None
        return self.rng.choice(self._legal or ())

    def _illegal_payments(self, offender: str) -> dict[str, float]:
        if self.common_reward:
            return dict.fromkeys(self.agents, -self.penalty)
        opponents = [agent for agent in self.agents if agent != offender]
        share = self.penalty / len(opponents) if self.zero_sum and opponents else 0.0
        return {offender: -self.penalty} | dict.fromkeys(opponents, share)


def _copied(value: _Value, memo: dict[int, Any]) -> _Value:
    """Return a deep copy of an attribute, for plain data many times faster than `copy.deepcopy`.

    `memo` maps the id of a container to its copy: two attributes sharing a container share its copy as well.
    """
    kind = type(value)
    if kind in _IMMUTABLE or isinstance(value, Config):
        return value
    if kind is tuple:
        # Most tuples of a game hold moves or agents: text, which needs no copy.
        return value if all(type(item) is str for item in value) else tuple([_copied(item, memo) for item in value])  # type: ignore[attr-defined,return-value]
    if id(value) in memo:
        return memo[id(value)]
    if kind is dict:
        memo[id(value)] = {key: _copied(item, memo) for key, item in value.items()}  # type: ignore[attr-defined]
    elif kind is list or kind is set:
        memo[id(value)] = kind([_copied(item, memo) for item in value])  # type: ignore[attr-defined,call-arg]
    elif isinstance(value, AECEnv | ParallelEnv | Env):
        return _copied_environment(value, memo)  # type: ignore[return-value]
    else:
        return copy.deepcopy(value, memo)
    return memo[id(value)]


def _copied_environment(env: Any, memo: dict[int, Any]) -> Any:
    """Return a copy of a third-party environment in its current state, wrappers included."""
    # `copy.deepcopy` would lose the state of most PettingZoo environments: they inherit from `EzPickle`, which copies
    # by calling the constructor again with the same arguments.
    if id(env) not in memo:
        memo[id(env)] = other = object.__new__(type(env))
        vars(other).update({name: _copied(value, memo) for name, value in vars(env).items()})
    return memo[id(env)]


def replay(game: Game, seed: int | None, options: Mapping[str, Any] | None, actions: Iterable[str | None]) -> None:
    """Reset `game` and play `actions`, where None is an illegal move. Episodes are forked this way."""
    game.reset(seed, options)
    for action in actions:
        game.step("" if action is None else action)
