"""Games of OpenSpiel: information states or observations as text, actions by their names, chance from the seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import product
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from marl.core.config import choices_hint
from marl.games.base import MAX_REWARD, TextGame, TextGameConfig
from marl.games.wrappers.import_env import import_optional
from marl.games.wrappers.text_adapter import clean_rendering, one_line
from marl.protocols import GameStart

MAX_ENUMERATED_HISTORIES = 50_000
"""Maximum number of histories of a game for which start states are enumerated."""
CHANCE = "chance"
_SEEDS = ("rng_seed", "seed")
"""Parameters that seed a game's own random numbers."""
TextKind = Literal["information_state", "observation"]


class OpenSpielConfig(TextGameConfig):
    """A game of OpenSpiel. Chance is drawn from the seed, and simultaneous moves are requested together."""

    kind: str = "openspiel"
    example = "name: leduc_poker"
    name: str
    """Name of the game, optionally with parameters in OpenSpiel's notation: `leduc_poker(players=3)`."""
    parameters: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Parameters of the game."""
    strings: TextKind | None = None
    """Text that a player reads: its information state (all that it knows) or its observation. None: the observation
    where nothing is hidden, and the information state elsewhere, if the game has them."""

    @model_validator(mode="after")
    def _can_be_played(self) -> Self:
        spiel, game = _spiel(), self.load()
        facts = game.get_type()
        if facts.dynamics == spiel.GameType.Dynamics.MEAN_FIELD:
            raise ValueError(f"name: {self.name!r} is a mean field game, which has no players who take turns")
        own_random = facts.chance_mode == spiel.GameType.ChanceMode.SAMPLED_STOCHASTIC
        if own_random and not self._seed_parameter(game):
            raise ValueError(f"name: {self.name!r} draws random numbers of its own and takes no seed")
        self.reader(game)
        return self

    def load(self, seed: int | None = None) -> Any:
        """Return the game (`pyspiel.Game`). With `seed`, the game's own random numbers, if any, start from the seed.

        Raises:
            ValueError: if the game does not exist, or does not accept the parameters.
        """
        spiel, name = _spiel(), self.name.partition("(")[0]
        names = spiel.registered_names()
        if name not in names:
            raise ValueError(f"name: no game {name!r}; {choices_hint(name, names)}")
        try:
            game = spiel.load_game(self.name, dict(self.parameters)) if self.parameters else spiel.load_game(self.name)
            parameter = self._seed_parameter(game)
            if seed is not None and parameter:
                written = spiel.game_parameters_from_string(self.name)
                written.pop("name")
                game = spiel.load_game(name, written | self.parameters | {parameter: seed})
        except spiel.SpielError as error:
            raise ValueError(f"parameters: {self.name!r} with {self.parameters}: {error}") from error
        return game

    def _seed_parameter(self, game: Any) -> str | None:
        facts = game.get_type()
        if facts.chance_mode != _spiel().GameType.ChanceMode.SAMPLED_STOCHASTIC:
            return None
        return next((name for name in _SEEDS if name in facts.parameter_specification), None)

    def reader(self, game: Any) -> TextKind:
        """Return the kind of text that players read; raise ValueError if the game does not provide it."""
        facts = game.get_type()
        has: dict[TextKind, bool] = {
            "observation": facts.provides_observation_string,
            "information_state": facts.provides_information_state_string,
        }
        choices: list[TextKind] = list(has) if has_perfect_information(game) else list(reversed(has))
        if self.strings is not None:
            choices = [self.strings]
        for name in choices:
            if has[name]:
                return name
        raise ValueError(f"strings: {self.name!r} has no {' and no '.join(choices)} strings")

    def build(self) -> OpenSpielGame:
        return OpenSpielGame(self)

    def starts(self) -> tuple[GameStart, ...] | None:
        """Return the chance outcomes at the root, or None if chance occurs later or the game is too large."""
        return _starts(self.name, tuple(self.parameters.items()))


class OpenSpielGame(TextGame):
    """A game of OpenSpiel, whose moves are the names of actions; a name may depend on the position."""

    reset_options = (CHANCE,)  # the first outcomes of chance, as numbers of OpenSpiel's actions
    enumerates_legal_moves = True

    def __init__(self, settings: OpenSpielConfig) -> None:
        self._settings = settings
        self._game = game = settings.load()
        kinds, self.name = _spiel().GameType.Utility, settings.name
        facts = game.get_type()
        self.zero_sum, self.common_reward = facts.utility == kinds.ZERO_SUM, facts.utility == kinds.IDENTICAL
        self._pays_on_the_way = facts.reward_model == _spiel().GameType.RewardModel.REWARDS
        self._knows_states = facts.provides_information_state_string
        self._reader, self._open = settings.reader(game), has_perfect_information(game)
        if abs(worst := game.min_utility()) < MAX_REWARD:
            self.default_penalty = max(self.default_penalty, -worst)
        super().__init__(tuple(f"player_{player}" for player in range(game.num_players())), settings.illegal)

    def deal(self, rng: random.Random, options: Mapping[str, Any]) -> str:
        own_seed = rng.getrandbits(31) if self._settings._seed_parameter(self._game) else None
        if own_seed is not None:
            self._game = self._settings.load(own_seed)
        self._state = self._game.new_initial_state()
        self._joint: dict[int, int] = {}
        self._past: dict[str, list[str]] = {agent: [] for agent in self.seats}
        self._returns = [0.0] * len(self.seats)
        self._draw(options.get(CHANCE, ()))
        self._start = f"{self._state.history()}{'' if own_seed is None else f'/{own_seed}'}"
        return self._following()

    def _draw(self, first: Sequence[int] = ()) -> None:
        """Draw chance outcomes until a player is to move; `first` are the outcomes of the first chance nodes."""
        given_outcomes, state = list(first), self._state
        while state.is_chance_node():
            actions, chances = zip(*state.chance_outcomes(), strict=True)
            if given_outcomes and given_outcomes[0] not in actions:
                choices = ", ".join(map(str, actions))
                raise ValueError(f"{CHANCE}: no outcome {given_outcomes[0]!r}; choices: {choices}")
            # Given outcomes draw no random number.
            state.apply_action(given_outcomes.pop(0) if given_outcomes else self.rng.choices(actions, chances)[0])
        if given_outcomes:
            raise ValueError(f"{CHANCE}: {len(given_outcomes)} outcomes more than chance has before the first move")

    def _following(self) -> str:
        """Return the agent to move; with simultaneous moves, the first agent without a move in this round."""
        state = self._state
        return self.seats[self._waiting()[0] if state.is_simultaneous_node() else state.current_player()]

    def _waiting(self) -> list[int]:
        """Return the players with legal actions and without a move in this round of simultaneous moves."""
        players = range(len(self.seats))
        return [player for player in players if player not in self._joint and self._state.legal_actions(player)]

    def start_key(self) -> str:
        return f"{self.name}{self._start}"

    def together(self, agent: str) -> tuple[str, ...]:
        if not self._state.is_simultaneous_node():
            return (agent,)
        return tuple([self.seats[player] for player in self._waiting()])

    def hears(self, agent: str) -> tuple[str, ...]:
        return self.seats if self._open else (agent,)

    def describe(self, agent: str) -> str:
        if self._state.is_terminal():
            return "The game is over."
        player = self.seats.index(agent)
        if self._reader == "observation":
            return clean_rendering(self._state.observation_string(player)).strip("\n")
        return clean_rendering(self._state.information_state_string(player)).strip("\n")

    def information_state(self, agent: str) -> str:
        """Return OpenSpiel's information state, or the agent's observations and moves so far if the game has none."""
        if self._knows_states:
            return f"{agent}\n{self._state.information_state_string(self.seats.index(agent))}"
        return "\n".join([agent, *self._past[agent], self.describe(agent)])

    def legal_actions(self, agent: str) -> tuple[str, ...]:
        return tuple(self._actions(self.seats.index(agent)))

    def _actions(self, player: int) -> dict[str, int]:
        """Return name -> number of each legal action of `player`."""
        numbers = self._state.legal_actions(player)
        names = [one_line(self._state.action_to_string(player, number)) or str(number) for number in numbers]
        if len({*names}) < len(names):
            names = [f"{name} ({number})" for name, number in zip(names, numbers, strict=True)]
        return dict(zip(names, numbers, strict=True))

    def apply_action(self, action: str) -> str | Mapping[str, float]:
        agent, state = self.agent_selection, self._state
        player = self.seats.index(agent)
        number = self._actions(player)[action]
        if not self._knows_states:
            self._past[agent] += [self.describe(agent), action]
        if state.is_simultaneous_node():
            self._joint[player] = number
            if self._waiting():
                return self._following()
            # Players without a choice in this round take part with OpenSpiel's placeholder.
            state.apply_actions([self._joint.get(seat, _spiel().INVALID_ACTION) for seat in range(len(self.seats))])
            self._joint = {}
        else:
            state.apply_action(number)
        self._draw()
        return self._pay_out()

    def _pay_out(self) -> str | Mapping[str, float]:
        """Add the rewards since the last move; return the agent to move, or {} at the end of the game."""
        state = self._state
        if self._pays_on_the_way or state.is_terminal():
            before, self._returns = self._returns, list(state.returns())
            rewards = [new - old for new, old in zip(self._returns, before, strict=True)]
            self.add_rewards({agent: value for agent, value in zip(self.seats, rewards, strict=True) if value})
        return {} if state.is_terminal() else self._following()


def has_perfect_information(game: Any) -> bool:
    """Return True for a game of perfect information."""
    return game.get_type().information == _spiel().GameType.Information.PERFECT_INFORMATION


def _spiel() -> Any:
    return import_optional("pyspiel", "openspiel")


@lru_cache(maxsize=16)
def _starts(name: str, parameters: tuple[tuple[str, Any], ...]) -> tuple[GameStart, ...] | None:
    """Return the chance outcomes at a game's root, or None if chance occurs later or there are too many histories."""
    game = OpenSpielConfig(name=name, parameters=dict(parameters)).load()
    if game.get_type().chance_mode == _spiel().GameType.ChanceMode.SAMPLED_STOCHASTIC:
        return None
    starts, walked = [], 0
    for first, probability in _outcomes(game.new_initial_state(), 1.0):
        starts.append(GameStart(probability, {CHANCE: first.history()}))
        for state in _histories(first):
            walked += 1
            if state.is_chance_node() or walked > MAX_ENUMERATED_HISTORIES:
                return None
    return tuple(starts)


def _outcomes(state: Any, probability: float) -> Iterator[tuple[Any, float]]:
    """Yield (state, probability) of every state after the chance nodes that begin at `state`."""
    if not state.is_chance_node():
        yield state, probability
        return
    for action, chance in state.chance_outcomes():
        yield from _outcomes(state.child(action), probability * chance)


def _histories(first: Any) -> Iterator[Any]:
    """Yield `first` and every state reachable from it without passing a chance node."""
    stack = [first]
    while stack:
        state = stack.pop()
        yield state
        if not (state.is_terminal() or state.is_chance_node()):
            stack += _children(state)


def _children(state: Any) -> Iterator[Any]:
    """Yield the state after each move, or after each joint move."""
    if not state.is_simultaneous_node():
        yield from map(state.child, state.legal_actions())
        return
    menus = [state.legal_actions(player) or [_spiel().INVALID_ACTION] for player in range(state.num_players())]
    for joint in product(*menus):
        after = state.clone()
        after.apply_actions(list(joint))
        yield after
