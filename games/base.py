"""Base class of text games: PettingZoo bookkeeping, illegal moves and copies of a running game."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Literal, Self

import numpy as np
from gymnasium.spaces import Dict, MultiBinary, Space
from pettingzoo import ParallelEnv
from pydantic import Field, model_validator

from marl.core.config import Config, choices_hint
from marl.core.types import NOTHING_FOUND, EpisodeMeasuresAndNewStarts, Info, Observation
from marl.games.disguise import Disguise, disguise_results_of_methods
from marl.games.environments import RenderableGameConfig
from marl.games.move_space import MoveSpace
from marl.games.rendering import RenderedGame
from marl.games.reward_values import MAX_REWARD, validate_reward
from marl.games.state_copy import IMMUTABLE_TYPES, fast_deepcopy
from marl.games.text_space import MAX_MOVE_LENGTH, MAX_OBSERVATION_LENGTH, TextSpace
from marl.games.worst_loss import worst_loss_in_random_play
from marl.protocols import Game, GameStart, IllegalMoveOutcome

_API_TEST_OPTIONS = {"options": 1}
"""Reset options that PettingZoo's `api_test` passes. Every game ignores these options."""

_SHALLOW_COPIED = ("infos", "reward_components", "reward_causes", "_no_rewards", "_all_alive")
"""Attributes of a game whose items never change in place: every step replaces them, so copies share the items."""
_NOT_COPIED = ("_rng", "_rng_state", "_observation_and_action_spaces_by_agent", "state_space", "metadata")
NextAgent = str
"""Name of the agent to move next."""
FinalRewards = Mapping[str, float]
"""Agent -> reward at the end of a game."""


class IllegalMoveHandling(Config):
    """Settings for illegal moves: further attempts, and the consequence after the last attempt."""

    retry: int = Field(default=0, ge=0)
    """Number of further attempts that an agent gets after an illegal move; only the last illegal attempt costs."""
    then: Literal["forfeit", "penalty", "random"] = "forfeit"
    """Consequence of an illegal last attempt: `forfeit` ends the game at a cost, `penalty` plays a uniformly random
    legal move (of some games with free text: an example move) at a cost, `random` does so at no cost."""
    penalty: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Cost of an illegal move for its agent, in units of reward (default: the game's `default_penalty`)."""

    @model_validator(mode="after")
    def _refuse_unused_penalty(self) -> Self:
        if self.then == "random" and self.penalty is not None:
            raise ValueError(f"penalty: {self.penalty} is never paid with then: 'random'; choices: forfeit, penalty")
        return self


class TextGameConfig(RenderableGameConfig):
    """Settings shared by all text games."""

    illegal: IllegalMoveHandling = IllegalMoveHandling()
    """Further attempts after an illegal move, and its consequence."""
    disguise: int | None = Field(default=None, ge=0)
    """Seed of a disguise of the game: invented words, other signs for numbers and other names and another order of
    moves, with the same rules, states and values. Null: the game's own words."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        disguise_results_of_methods(cls)

    def build_parallel_environment(self, render_mode: str | None = None) -> ParallelEnv[str, Observation, str]:
        if self.illegal.retry and self.is_simultaneous():
            raise ValueError(f"illegal.retry: {self.illegal.retry}, but parallel games ask each agent once; choices: 0")
        return super().build_parallel_environment(render_mode)

    def forfeit_cost(self) -> float | None:
        game = self.build()
        return game.penalty if isinstance(game, TextGame) and self.illegal.then == "forfeit" else None

    def is_zero_sum(self) -> bool:
        game = self.build()
        return isinstance(game, TextGame) and game.zero_sum


@lru_cache(maxsize=4096)
def _legal_move_mask(moves: tuple[str, ...], legal_moves: tuple[str, ...]) -> np.ndarray:
    """Return the action mask: int8 [len(moves)], 1 where the move is legal. Callers copy the cached array."""
    return np.array([move in legal_moves for move in moves], dtype=np.int8)


class TextGame(RenderedGame):
    """Base class of turn-based games with texts as observations and moves.

    An episode is a pure function of seed, reset options and moves. Subclasses implement `start_new_game`,
    `describe_observation`, `information_state`, `apply_action`, `start_state_key` and, if only some moves are legal,
    `legal_actions`.
    """

    stage_name: str = ""
    """Name of the workflow's current stage, or "" if the game has no stages."""
    zero_sum: bool = False
    """True if the rewards of all agents add up to 0: the penalty of an illegal move then goes to the other agents."""
    common_reward: bool = False
    """True if all agents always get the same reward: all agents then pay the penalty for an illegal move."""
    default_penalty: float = 1.0
    """Default cost of an illegal move: at least the worst regular loss, so that no illegal move can avoid a loss. If a
    zero-sum game does not set it, its worst loss in random play takes the place of a smaller default."""
    reset_options: ClassVar[tuple[str, ...]] = ()
    """Names of the options that `reset(options=...)` accepts, each of which fixes a part of the start."""
    enumerates_legal_moves: ClassVar[bool] = False
    """True if `legal_actions` always lists the legal moves, although `all_actions` is None."""
    plays_examples: ClassVar[bool] = False
    """True if one of `example_actions` can be played instead of an illegal move where any text can be a move."""
    disguise: Disguise | None = None
    """Words and names of moves that agents read and say instead of the game's own, or None for the game's own."""
    rules: str = ""
    """Rules of the game in words, so complete that a reader can play it and understand its observations."""

    infos: dict[str, Any]
    reward_components: dict[str, dict[str, float]]
    reward_causes: dict[tuple[str, str], str]

    def __init__(
        self, agents: tuple[str, ...], illegal: IllegalMoveHandling, vocabulary: tuple[str, ...] | None = None
    ) -> None:
        replaceable = vocabulary is not None or self.enumerates_legal_moves or self.plays_examples
        if illegal.then != "forfeit" and not replaceable:
            raise ValueError(f"illegal.then: {illegal.then!r} needs a game with a list of moves; choices: forfeit")
        super().__init__(self.name, agents)
        self.all_actions = vocabulary
        """All moves that can be legal at some point of the game, or None if any text can be a move."""
        self.illegal = illegal
        self._no_rewards = dict.fromkeys(agents, 0.0)
        self._all_alive = dict.fromkeys(agents, False)
        self._seed: int | None = 0
        self._rng: random.Random | None = None
        self._rng_state: tuple[Any, ...] | None = None
        """State of the generator from which this game was copied, until this game draws a number."""

    @cached_property
    def penalty(self) -> float:
        """Amount that an illegal move costs: `illegal.penalty`, or if that is None, the game's default.

        In zero-sum games without a default of their own, it is at least the worst loss seen in random play.
        """
        if self.illegal.penalty is not None:
            return self.illegal.penalty
        if not self.zero_sum or self.default_penalty != TextGame.default_penalty:
            return self.default_penalty
        return max(self.default_penalty, worst_loss_in_random_play(self.copy(0)))

    @property
    def rng(self) -> random.Random:
        """Random number generator of the game."""
        # The generator is created at the first draw, since seeding is slow and most copies of a game draw nothing.
        if self._rng is None:
            self._rng = random.Random(self._seed)
            if self._rng_state is not None:
                self._rng.setstate(self._rng_state)
        return self._rng

    # --- implemented by games --------------------------------------------------------------------------------------

    def start_new_game(self, rng: random.Random, options: Mapping[str, Any]) -> NextAgent:
        """Set up a new game and return the agent to move first."""
        raise self._missing_method("start_new_game")

    def describe_observation(self, agent: str) -> str:
        """Return the observation of `agent` as text."""
        raise self._missing_method("describe_observation")

    def apply_action(self, action: str) -> NextAgent | FinalRewards:
        """Apply a legal move, and return the agent to move next or, at the end of the game, agent -> final reward."""
        raise self._missing_method("apply_action")

    def start_state_key(self) -> str:
        """Return the identifier of the start state: episodes with equal keys began from the same start."""
        raise self._missing_method("start_state_key")

    def legal_actions(self, agent: str) -> tuple[str, ...] | None:
        """Return the legal moves of `agent`, or None if any text is legal."""
        return self.all_actions

    def is_legal(self, action: str) -> bool:
        """Return True if `action` is legal now. Games with free text override this method to parse `action`."""
        return bool(action) and (self._legal is None or action in self._legal)

    def heard_agents(self, agent: str) -> tuple[str, ...]:
        """Return the agents whose turns `agent` can read, itself included: sources of edges in the trajectory graph."""
        return self.seats

    def agents_asked_together(self, agent: str) -> tuple[str, ...]:
        """Return the agents who can be asked for a move at the same time, with `agent` (to move) first.

        No move of one of these agents changes the observation of another.
        """
        return (agent,)

    def step_indices_that_decided_turn(self, agent: str) -> tuple[int, ...]:
        """Return the indices of earlier steps whose moves decided that `agent` moves now, or which agents it reads."""
        return ()

    def problem_key(self) -> str:
        """Return the key of the problem that the agents work on now, or "" in a game without problems."""
        return ""

    def example_actions(self, agent: str) -> tuple[str, ...]:
        """Return example moves of `agent`, among which random play chooses if any text is a move."""
        return ()

    def example_moves_by_program_caller(self, agent: str) -> Mapping[str, tuple[str, ...]] | None:
        """Return agent -> example moves, for the agents that answer model calls of the program at the seat of `agent`.

        The result is None if no program sits there.
        """
        return None

    # --- PettingZoo ------------------------------------------------------------------------------------------------

    @cached_property
    def _observation_and_action_spaces_by_agent(self) -> dict[str, tuple[Space[Any], Space[str]]]:
        """Agent -> (observation space, action space). Spaces hold a random state, so no two agents share one."""
        spaces: dict[str, tuple[Space[Any], Space[str]]] = {}
        moves = self._shown_moves(self.all_actions)
        for agent in self.seats:
            text = TextSpace(MAX_OBSERVATION_LENGTH)
            if moves is None:
                spaces[agent] = Dict(text=text), TextSpace(MAX_MOVE_LENGTH)
            else:
                spaces[agent] = Dict(text=text, action_mask=MultiBinary(len(moves))), MoveSpace(moves)
        return spaces

    def observation_space(self, agent: str) -> Space[Any]:
        return self._observation_and_action_spaces_by_agent[agent][0]

    def action_space(self, agent: str) -> Space[str]:
        return self._observation_and_action_spaces_by_agent[agent][1]

    def observe(self, agent: str) -> Observation:
        text, moves = self.describe_observation(agent), self.all_actions
        if self.disguise:
            text, moves = self.disguise.text(text), self._shown_moves(moves)
        observation: Observation = {"text": text}
        if moves is not None:
            info = self.infos.get(agent)
            observation["action_mask"] = _legal_move_mask(moves, (info and info["legal"]) or ()).copy()
        return observation

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> None:
        """Deal a new game. `options` (see `reset_options`) fix parts of the start; `seed` determines the others.

        Raises ValueError for an unknown option, or for an option with an impossible value.
        """
        if options == _API_TEST_OPTIONS:
            options = None
        for name in options or ():
            if name not in self.reset_options:
                hint = choices_hint(name, list(self.reset_options))
                raise ValueError(f"{self.name}: unknown reset option {name!r}; {hint}")
        self._seed, self._rng_state = seed, None
        if self._rng is not None:
            # To seed a generator takes half of the time of making one.
            self._rng.seed(seed)
        self.steps_taken = 0
        """Number of steps so far, including the current step."""
        self.agents = list(self.seats)
        # To copy a dict takes half of the time of filling one.
        self.rewards, self._cumulative_rewards = self._no_rewards.copy(), self._no_rewards.copy()
        self.terminations, self.truncations = self._all_alive.copy(), self._all_alive.copy()
        # PettingZoo sets this attribute when an agent dies, and would keep it if dead agents were not stepped.
        self._skip_agent_selection = None
        self.reward_components, self.reward_causes = {}, {}
        self._ask_agent_for_move(self.start_new_game(self.rng, options or {}), 0)

    def step(self, action: str | None) -> None:
        """Play `action`; any text other than a legal move is an illegal move. Terminated agents step with None."""
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
        if self.disguise:
            action = self.disguise.original_move(action, self._legal or ())
        legal_action = action if self.is_legal(action) else self._retry_or_replace_illegal_move(agent)
        if legal_action is not None:
            outcome = self.apply_action(legal_action)
            if isinstance(outcome, str):
                self._ask_agent_for_move(outcome, 0)
            else:
                self.add_rewards(outcome, cause="result of the game")
                self._end_game()
        if self.reward_components:
            self._accumulate_rewards()

    def add_rewards(self, reward_by_agent: Mapping[str, float], name: str = "outcome", cause: str = "") -> None:
        """Add `reward_by_agent` (agent -> amount) to the rewards of this step as the reward component `name`.

        `cause` names the rule behind the payment, for records. Raises ValueError if an amount is no finite number.
        """
        for agent, payment in reward_by_agent.items():
            reward = payment
            # Usual payments are not validated, since the text for a possible error takes longer than this check.
            if type(payment) is not float or not abs(payment) <= MAX_REWARD:
                reward = validate_reward(payment, f"{self.name}: reward {name!r} of {agent!r}")
            components = self.reward_components.setdefault(agent, {})
            components[name] = components.get(name, 0.0) + reward
            self.rewards[agent] += reward
            if cause:
                self.reward_causes[agent, name] = cause

    def episode_measures(self) -> EpisodeMeasuresAndNewStarts:
        """Return the measures of the finished episode, and the new start states that the game found in it."""
        return NOTHING_FOUND

    def copy(self, seed: int | None = None) -> Self:
        """Return an independent game in the same state.

        `seed` reseeds the copy's random generator (None: the copy draws the same random numbers as this game).

        Lists, sets and dicts are copied recursively, frozen settings are shared, and other objects are copied with
        `copy.deepcopy`. A subclass overrides this method if an attribute needs another way of copying.
        """
        other = type(self).__new__(type(self))
        memo, attributes = self.fast_copies(), vars(other)
        for name, attribute in vars(self).items():
            if type(attribute) in IMMUTABLE_TYPES:
                attributes[name] = attribute
            elif name in _SHALLOW_COPIED:
                attributes[name] = attribute.copy()
            elif name not in _NOT_COPIED:
                attributes[name] = fast_deepcopy(attribute, memo)
        other.metadata = self.metadata
        self._set_random_numbers_of_copy(other, seed)
        return other

    def _set_random_numbers_of_copy(self, other: Self, seed: int | None) -> None:
        """Let `other` draw the random numbers of `seed`, or without one those that this game would draw next."""
        other._rng, other._rng_state = None, None
        other._seed = self._seed if seed is None else seed
        if seed is None:
            other._rng_state = self._rng_state if self._rng is None else self._rng.getstate()

    def fast_copies(self) -> dict[int, Any]:
        """Return id of an object of this game -> its copy, for objects with a faster way than a deep copy."""
        return {}

    def redeal(self, agent: str, rng: random.Random) -> bool:
        """Draw all that `agent` cannot know anew, as the deal would given what `agent` knows, and return True.

        Chances of the other agents' moves are ignored. Returns False, and changes nothing, if the game has no such
        way: a search then deals at random until what `agent` knows is the same (default).
        """
        return False

    def random_returns(self, random_number: Callable[[], float]) -> tuple[float, ...] | None:
        """Return each agent's rewards from here to the end of one game of uniformly random legal moves.

        `random_number` draws uniformly from [0, 1). The result is None if the game has no faster way than playing
        (default). This game does not change.
        """
        return None

    def illegal_move_outcome(self) -> IllegalMoveOutcome:
        """Return what an illegal move would lead to now: payments, and the moves from which one is drawn instead."""
        if self._attempt < self.illegal.retry or self.illegal.then == "forfeit":
            return IllegalMoveOutcome()
        payments = self._illegal_move_rewards(self.agent_selection) if self.illegal.then == "penalty" else {}
        return IllegalMoveOutcome(payments, self._shown_moves(self._legal) or ())

    # --- methods for turns, the end of the game and illegal moves --------------------------------------------------

    def _ask_agent_for_move(self, agent: str, illegal_move_count: int) -> None:
        """Ask `agent` for a move, and the agents asked together with it.

        `illegal_move_count` is the number of illegal moves in this turn.
        """
        self.agent_selection, self._attempt = agent, illegal_move_count
        self._legal = self.legal_actions(agent)
        self.infos = {name: {} for name in self.agents}
        together = self.agents_asked_together(agent)
        for member in together:
            examples = self.example_actions(member)
            info: Info = {
                "legal": self._shown_moves(self._legal if member == agent else self.legal_actions(member)),
                "hears": self.heard_agents(member),
                "together": together,
                "state": self.information_state(member),
                "attempt": illegal_move_count,
                "problem": self.problem_key(),
                "stage": self.stage_name,
                "examples": (self._shown_moves(examples) or ()) if examples else (),
                "rules": self.disguise.rules if self.disguise else self.rules,
                "gates": self.step_indices_that_decided_turn(member),
            }
            if (callers := self.example_moves_by_program_caller(member)) is not None:
                info["callers"] = callers
            self.infos[member] = info

    def _shown_moves(self, moves: tuple[str, ...] | None) -> tuple[str, ...] | None:
        """Return `moves` as agents see them: with other names and in another order if the game is disguised."""
        return self.disguise.moves(moves) if self.disguise and moves else moves

    def _end_game(self) -> None:
        self._legal = ()
        self.terminations = dict.fromkeys(self.agents, True)
        self.infos = {agent: {} for agent in self.agents}

    def _retry_or_replace_illegal_move(self, agent: str) -> str | None:
        """Let `agent` try again, or pay the penalty; return a random move to play instead, or None."""
        if self._attempt < self.illegal.retry:
            self._ask_agent_for_move(agent, self._attempt + 1)
            return None
        if self.illegal.then != "random":
            self.add_rewards(self._illegal_move_rewards(agent), "illegal", f"{agent} made no legal move")
        if self.illegal.then == "forfeit":
            self._end_game()
            return None
        return self.rng.choice(self._legal or self.example_actions(agent))

    def _illegal_move_rewards(self, offender: str) -> dict[str, float]:
        """Return agent -> reward for an illegal move of `offender`; in zero-sum games opponents share the penalty."""
        if self.common_reward:
            return dict.fromkeys(self.agents, -self.penalty)
        opponents = [agent for agent in self.agents if agent != offender]
        share = self.penalty / len(opponents) if self.zero_sum and opponents else 0.0
        return {offender: -self.penalty} | dict.fromkeys(opponents, share)


def equiprobable_starts(option_name: str, values: Collection[Any]) -> tuple[GameStart, ...]:
    """Return one start state per value of the reset option `option_name`, all with the same probability."""
    return tuple(GameStart(1 / len(values), {option_name: value}) for value in values)


def format_move_menu(moves: Iterable[str]) -> str:
    """Return the moves that an observation offers as text, such as `[check] [bet]`."""
    return " ".join([f"[{move}]" for move in moves])


def reset_and_play(
    game: Game, seed: int | None, options: Mapping[str, Any] | None, actions: Iterable[str | None]
) -> None:
    """Reset `game` and play `actions`, where None is an illegal move; a fork of an episode begins this way."""
    game.reset(seed, options)
    for action in actions:
        game.step("" if action is None else action)
