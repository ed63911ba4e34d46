"""Games of OpenSpiel: observations or information states as text, names of actions, and seeded chance."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from bisect import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, product
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from marl.core.config import choices_hint
from marl.games.base import FinalRewards, NextAgent, TextGame, TextGameConfig
from marl.games.reward_values import MAX_REWARD
from marl.games.wrappers.import_env import import_optional_package
from marl.games.wrappers.text_adapter import strip_terminal_codes, to_move_name
from marl.protocols import GameStart
from marl.text.linear_patterns import check_linear_pattern, compile_pattern

MAX_ENUMERATED_HISTORIES = 50_000
"""Maximum number of histories of a game whose start states are listed, so that evaluation can enumerate the game."""
CHANCE = "chance"
_LARGE_NUMBER = re.compile(r"\d{3}|\de")
"""Number in the parameters of a game that may make the game large."""
_MAX_GAME_BYTES, _MAX_LOADING_S = 2 << 30, 30.0
"""Maximum address space (bytes) and time (s) for loading and beginning a game with a large parameter."""
_SEEDS = ("rng_seed", "seed")
"""Names of the parameters that seed the random numbers of a game with its own generator."""
TextKind = Literal["information_state", "observation"]


class OpenSpielConfig(TextGameConfig):
    """Game of OpenSpiel. The seed determines chance, and players who move at the same time are asked together."""

    kind: str = "openspiel"
    example = "name: leduc_poker"
    name: str
    """Name of the game, optionally with parameters in OpenSpiel's notation: `leduc_poker(players=3)`."""
    parameters: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Parameters of the OpenSpiel game: name -> value, such as `players: 3`."""
    strings: TextKind | None = None
    """Text that a player reads: its information state (all that it knows) or its observation (default: the observation
    in games of perfect information, and the information state in others, if the game has this text)."""
    rules: str = ""
    """Rules of the game in words, for agents (default: none, because OpenSpiel has no rules in words)."""
    move_names: dict[Annotated[str, AfterValidator(check_linear_pattern)], str] = Field(default_factory=dict)
    """Regular expression -> its replacement in the names of moves: with `{'player=. move=': ''}`, `player=0 move=Call`
    is called `Call`. Default: OpenSpiel's names."""

    @model_validator(mode="after")
    def _check_playable(self) -> Self:
        spiel, game = _import_pyspiel(), self.load_openspiel_game()
        facts = game.get_type()
        if facts.dynamics == spiel.GameType.Dynamics.MEAN_FIELD:
            raise ValueError(f"name: {self.name!r} is a mean field game, which has no players who take turns")
        samples_itself = facts.chance_mode == spiel.GameType.ChanceMode.SAMPLED_STOCHASTIC
        if samples_itself and not self._seed_parameter_name(game):
            raise ValueError(f"name: {self.name!r} draws random numbers of its own and takes no seed")
        self.observation_text_kind(game)
        return self

    def load_openspiel_game(self, seed: int | None = None) -> Any:
        """Return the game (`pyspiel.Game`). `seed` seeds the game's own random generator, if the game has one.

        Raises:
            ValueError: if the game does not exist, or does not accept the parameters.
        """
        spiel, name = _import_pyspiel(), self.name.partition("(")[0]
        names = spiel.registered_names()
        if name not in names:
            raise ValueError(f"name: no game {name!r}; {choices_hint(name, names)}")
        if re.search(_LARGE_NUMBER, f"{self.name} {self.parameters}"):
            _test_loading_in_subprocess(self.name, tuple(self.parameters.items()))
        try:
            game = spiel.load_game(self.name, dict(self.parameters)) if self.parameters else spiel.load_game(self.name)
            parameter = self._seed_parameter_name(game)
            if seed is not None and parameter:
                written = spiel.game_parameters_from_string(self.name)
                written.pop("name")
                game = spiel.load_game(name, written | self.parameters | {parameter: seed})
        except spiel.SpielError as error:
            raise ValueError(f"parameters: {self.name!r} with {self.parameters}: {error}") from error
        return game

    def _seed_parameter_name(self, game: Any) -> str | None:
        """Return the name of the parameter that seeds the game's own random generator, or None if it has none."""
        facts = game.get_type()
        if facts.chance_mode != _import_pyspiel().GameType.ChanceMode.SAMPLED_STOCHASTIC:
            return None
        return next((name for name in _SEEDS if name in facts.parameter_specification), None)

    def observation_text_kind(self, game: Any) -> TextKind:
        """Return the kind of text that players of `game` read; raise ValueError if the game lacks this kind."""
        facts = game.get_type()
        provides: dict[TextKind, bool] = {
            "observation": facts.provides_observation_string,
            "information_state": facts.provides_information_state_string,
        }
        choices: list[TextKind] = list(provides)
        if self.strings is not None:
            choices = [self.strings]
        elif not has_perfect_information(game):
            choices.reverse()
        for name in choices:
            if provides[name]:
                return name
        raise ValueError(f"strings: {self.name!r} has no {' and no '.join(choices)} strings")

    def build(self) -> OpenSpielGame:
        return OpenSpielGame(self)

    def is_simultaneous(self) -> bool:
        return self.load_openspiel_game().get_type().dynamics == _import_pyspiel().GameType.Dynamics.SIMULTANEOUS

    def all_start_states(self) -> tuple[GameStart, ...] | None:
        """Return one start per chance outcome at the root, or None if chance occurs later or the game is too large."""
        return _enumerate_starts(self.name, tuple(self.parameters.items()))


class OpenSpielGame(TextGame):
    """Game of OpenSpiel, whose moves are the names of actions; a name may depend on the position."""

    # The reset option `chance` holds the first outcomes of chance, as numbers of OpenSpiel's actions.
    reset_options = (CHANCE,)
    enumerates_legal_moves = True
    _without_resampling: ClassVar[set[str]] = set()
    """Names of games for which OpenSpiel cannot draw another history of an information state."""

    def __init__(self, settings: OpenSpielConfig) -> None:
        self._settings = settings
        self._game = game = settings.load_openspiel_game()
        kinds, self.name, self.rules = _import_pyspiel().GameType.Utility, settings.name, settings.rules
        facts = game.get_type()
        self.zero_sum, self.common_reward = facts.utility == kinds.ZERO_SUM, facts.utility == kinds.IDENTICAL
        self._pays_on_the_way = facts.reward_model == _import_pyspiel().GameType.RewardModel.REWARDS
        self._knows_states = facts.provides_information_state_string
        self._text_kind, self._is_open = settings.observation_text_kind(game), has_perfect_information(game)
        if abs(worst := game.min_utility()) < MAX_REWARD:
            self.default_penalty = max(self.default_penalty, -worst)
        super().__init__(tuple(f"player_{player}" for player in range(game.num_players())), settings.illegal)

    def start_new_game(self, rng: random.Random, options: Mapping[str, Any]) -> NextAgent:
        own_seed = rng.getrandbits(31) if self._settings._seed_parameter_name(self._game) else None
        if own_seed is not None:
            self._game = self._settings.load_openspiel_game(own_seed)
        self._state = self._game.new_initial_state()
        self._joint: dict[int, int] = {}
        self._past: dict[str, list[str]] = {agent: [] for agent in self.seats}
        self._returns = [0.0] * len(self.seats)
        self._draw_chance_outcomes(options.get(CHANCE, ()))
        self._start = f"{self._state.history()}{'' if own_seed is None else f'/{own_seed}'}"
        return self._next_agent()

    def _draw_chance_outcomes(self, first_outcomes: Sequence[int] = ()) -> None:
        """Draw chance outcomes until a player is to move, with `first_outcomes` for the first chance nodes."""
        given_outcomes, state = list(first_outcomes), self._state
        while state.is_chance_node():
            actions, chances = zip(*state.chance_outcomes(), strict=True)
            if given_outcomes and given_outcomes[0] not in actions:
                choices = ", ".join(map(str, actions))
                raise ValueError(f"{CHANCE}: no outcome {given_outcomes[0]!r}; choices: {choices}")
            # For a given outcome, no random number is drawn.
            state.apply_action(given_outcomes.pop(0) if given_outcomes else self.rng.choices(actions, chances)[0])
        if given_outcomes:
            raise ValueError(f"{CHANCE}: {len(given_outcomes)} outcomes more than chance has before the first move")

    def _next_agent(self) -> str:
        """Return the agent to move; with simultaneous moves, the first agent without a move in this round."""
        state = self._state
        return self.seats[self._players_without_move()[0] if state.is_simultaneous_node() else state.current_player()]

    def _players_without_move(self) -> list[int]:
        """Return the players with legal actions who have not yet moved in this round of simultaneous moves."""
        players = range(len(self.seats))
        return [player for player in players if player not in self._joint and self._state.legal_actions(player)]

    def start_state_key(self) -> str:
        return f"{self.name}{self._start}"

    def fast_copies(self) -> dict[int, Any]:
        # A deep copy would write the state as text and read it again.
        copies = {id(self._game): self._game}
        if "_state" in vars(self):
            copies[id(self._state)] = self._state.clone()
        return copies

    def redeal(self, agent: str, rng: random.Random) -> bool:
        if not self._knows_states or self._joint or self.name in self._without_resampling:
            return False
        player = self.seats.index(agent)
        try:
            resampled = self._state.resample_from_infostate(player, rng.random)
        except _import_pyspiel().SpielError:
            # Most games of OpenSpiel do not implement this, and each attempt prints a message.
            type(self)._without_resampling.add(self.name)
            return False
        if resampled.information_state_string(player) != self._state.information_state_string(player):
            return False
        self._state = resampled
        return True

    def random_returns(self, random_number: Callable[[], float]) -> tuple[float, ...] | None:
        state = self._state.clone()
        while not state.is_terminal():
            if state.is_chance_node():
                actions, chances = zip(*state.chance_outcomes(), strict=True)
                bounds = list(accumulate(chances))
                state.apply_action(actions[bisect(bounds, random_number() * bounds[-1], 0, len(bounds) - 1)])
            elif state.is_simultaneous_node():
                return None
            else:
                actions = state.legal_actions()
                state.apply_action(actions[int(random_number() * len(actions))])
        return tuple([after - before for after, before in zip(state.returns(), self._returns, strict=True)])

    def agents_asked_together(self, agent: str) -> tuple[str, ...]:
        if not self._state.is_simultaneous_node():
            return (agent,)
        return tuple([self.seats[player] for player in self._players_without_move()])

    def heard_agents(self, agent: str) -> tuple[str, ...]:
        return self.seats if self._is_open else (agent,)

    def describe_observation(self, agent: str) -> str:
        if self._state.is_terminal():
            return "The game is over."
        player = self.seats.index(agent)
        if self._text_kind == "observation":
            return strip_terminal_codes(self._state.observation_string(player)).strip("\n")
        return strip_terminal_codes(self._state.information_state_string(player)).strip("\n")

    def information_state(self, agent: str) -> str:
        """Return OpenSpiel's information state, or the agent's observations and moves so far if the game has none."""
        if self._knows_states:
            return f"{agent}\n{self._state.information_state_string(self.seats.index(agent))}"
        return "\n".join([agent, *self._past[agent], self.describe_observation(agent)])

    def legal_actions(self, agent: str) -> tuple[str, ...]:
        return tuple(self._action_number_by_name(self.seats.index(agent)))

    def _action_number_by_name(self, player: int) -> dict[str, int]:
        """Return OpenSpiel's number of each legal action of `player`, by the name of the action."""
        numbers = self._state.legal_actions(player)
        names = [self._move_name(player, number) for number in numbers]
        if len({*names}) < len(names):
            names = [f"{name} ({number})" for name, number in zip(names, numbers, strict=True)]
        return dict(zip(names, numbers, strict=True))

    def _move_name(self, player: int, number: int) -> str:
        name = self._state.action_to_string(player, number)
        for pattern, replacement in self._settings.move_names.items():
            name = compile_pattern(pattern).sub(replacement, name)
        return to_move_name(name) or str(number)

    def apply_action(self, action: str) -> NextAgent | FinalRewards:
        agent, state = self.agent_selection, self._state
        player = self.seats.index(agent)
        number = self._action_number_by_name(player)[action]
        if not self._knows_states:
            self._past[agent] += [self.describe_observation(agent), action]
        if state.is_simultaneous_node():
            self._joint[player] = number
            if self._players_without_move():
                return self._next_agent()
            # Players without a choice in this round move with OpenSpiel's placeholder.
            placeholder = _import_pyspiel().INVALID_ACTION
            state.apply_actions([self._joint.get(seat, placeholder) for seat in range(len(self.seats))])
            self._joint = {}
        else:
            state.apply_action(number)
        self._draw_chance_outcomes()
        if self._pays_on_the_way or state.is_terminal():
            rewards: dict[str, float] = {}
            for seat, before, after in zip(self.seats, self._returns, state.returns(), strict=True):
                if after != before:
                    rewards[seat] = after - before
            self.add_rewards(rewards)
            self._returns = list(state.returns())
        return {} if state.is_terminal() else self._next_agent()


@lru_cache(maxsize=256)
def _test_loading_in_subprocess(name: str, parameters: tuple[tuple[str, bool | int | float | str], ...]) -> None:
    """Load a game and begin it in a process of its own, whose memory and time are limited.

    Raises:
        ValueError: if the process exceeds a limit, as `breakthrough(rows=30000,columns=30000)` does.
    """
    arguments = [name, dict(parameters)] if parameters else [name]
    program = (
        "import json, resource, sys, pyspiel\n"
        f"resource.setrlimit(resource.RLIMIT_AS, ({_MAX_GAME_BYTES}, {_MAX_GAME_BYTES}))\n"
        "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
        "state = pyspiel.load_game(*json.loads(sys.argv[1])).new_initial_state()\n"
        "state.legal_actions(), str(state)\n"
    )
    command = [sys.executable, "-I", "-c", program, json.dumps(arguments)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_MAX_LOADING_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise ValueError(f"parameters: {name!r} does not begin within {_MAX_LOADING_S:g} s; make it smaller") from error
    # The process dies by a signal, or raises MemoryError; other errors are reported when the game is loaded here.
    if done.returncode < 0 or b"MemoryError" in done.stderr or b"bad_alloc" in done.stderr:
        raise ValueError(
            f"parameters: {name!r} with {dict(parameters)} needs more than {_MAX_GAME_BYTES >> 30} GiB of memory to "
            "begin; make it smaller"
        )


def has_perfect_information(game: Any) -> bool:
    """Return True for a game of perfect information."""
    return game.get_type().information == _import_pyspiel().GameType.Information.PERFECT_INFORMATION


def _import_pyspiel() -> Any:
    """Return OpenSpiel's module `pyspiel`; raise ValueError if it is not installed."""
    return import_optional_package("pyspiel", "openspiel")


@lru_cache(maxsize=16)
def _enumerate_starts(name: str, parameters: tuple[tuple[str, Any], ...]) -> tuple[GameStart, ...] | None:
    """Return one start per chance outcome at a game's root, or None if chance occurs later or the game is too large."""
    game = OpenSpielConfig(name=name, parameters=dict(parameters)).load_openspiel_game()
    if game.get_type().chance_mode == _import_pyspiel().GameType.ChanceMode.SAMPLED_STOCHASTIC:
        return None
    starts: list[GameStart] = []
    histories = 0
    for first, probability in _states_after_chance(game.new_initial_state(), 1.0):
        starts.append(GameStart(probability, {CHANCE: first.history()}))
        stack = [first]
        while stack:
            state = stack.pop()
            histories += 1
            if state.is_chance_node() or histories > MAX_ENUMERATED_HISTORIES:
                return None
            if not state.is_terminal():
                stack += _successor_states(state)
    return tuple(starts)


def _states_after_chance(state: Any, probability: float) -> Iterator[tuple[Any, float]]:
    """Yield each state at which chance ends, with its probability, for every outcome of the chance nodes from `state`.

    `probability` is the probability of `state`. A `state` that is no chance node is yielded unchanged.
    """
    if not state.is_chance_node():
        yield state, probability
        return
    for action, chance in state.chance_outcomes():
        yield from _states_after_chance(state.child(action), probability * chance)


def _successor_states(state: Any) -> Iterator[Any]:
    """Yield the state after each legal move or, if players move at the same time, after each joint move."""
    if not state.is_simultaneous_node():
        yield from map(state.child, state.legal_actions())
        return
    menus = [state.legal_actions(player) or [_import_pyspiel().INVALID_ACTION] for player in range(state.num_players())]
    for joint in product(*menus):
        after = state.clone()
        after.apply_actions(list(joint))
        yield after
