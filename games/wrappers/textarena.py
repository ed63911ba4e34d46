"""Games of TextArena: their players are seats, their messages are observations, and any text is a move."""

from __future__ import annotations

import random
from collections.abc import Mapping
from contextlib import redirect_stdout
from io import StringIO
from typing import Annotated, Any

from pydantic import AfterValidator, Field, field_validator

from marl.core.config import DistinctValues, choices_hint
from marl.core.types import EpisodeMeasuresAndNewStarts
from marl.games.base import FinalRewards, NextAgent, TextGame, TextGameConfig
from marl.games.isolated_random import IsolatedGlobalRandom
from marl.games.wrappers.import_env import import_optional_package
from marl.games.wrappers.text_adapter import strip_terminal_codes
from marl.text.linear_patterns import check_linear_pattern, compile_pattern

_MAX_EXAMPLES = 100
_NO_EXAMPLE = ("pass",)
"""Move of random play if no observation shows an example of a move."""


class TextArenaConfig(TextGameConfig):
    """Game of TextArena, which checks moves itself: it warns after an invalid move, and a repeated one loses."""

    kind: str = "textarena"
    example = "id: TicTacToe-v0"
    id: str
    """Name of the game, such as `TicTacToe-v0`. With the suffix `-train`, an observation is the current board instead
    of the full conversation; with `-raw`, TextArena adds nothing to the game's messages."""
    players: int = Field(default=2, ge=1, le=1000)
    """Number of seats, which are named `player_0`, `player_1` ..."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the game's constructor."""
    actions: DistinctValues[str] | None = None
    """Names of all moves (default: any text is a move)."""
    examples: Annotated[str, AfterValidator(check_linear_pattern)] = r"\[([^\[\]\n]{1,60})\]"
    """Regular expression that finds example moves in a player's observation, for random play and the warm-up of tiny
    models. Its first group, or else the full match, is the move (default: text in square brackets)."""

    rules: str = ""
    """Rules of the game in words, for agents (default: none but those that the game's own observations tell)."""

    @field_validator("id")
    @classmethod
    def _check_game_exists(cls, name: str) -> str:
        registry = import_optional_package("textarena.envs.registration", "textarena").ENV_REGISTRY
        if name not in registry:
            raise ValueError(f"no game {name!r}; {choices_hint(name, registry)}")
        return name

    def build(self) -> TextArenaGame:
        return TextArenaGame(self)


class TextArenaGame(TextGame):
    """Game of TextArena, whose draws from Python's global random generator are isolated.

    The game's messages to an agent include the other agents' texts, so agents read no turn of others directly.
    """

    def __init__(self, settings: TextArenaConfig) -> None:
        self._settings, self.name, self.rules = settings, settings.id, settings.rules
        self._random = IsolatedGlobalRandom()
        self._pattern = compile_pattern(settings.examples)
        agents = tuple(f"player_{player}" for player in range(settings.players))
        super().__init__(agents, settings.illegal, settings.actions)
        self._start_environment(0)

    def _start_environment(self, seed: int) -> None:
        """Start a game in a new environment, because TextArena's wrappers keep the texts of earlier games."""
        settings, make = self._settings, import_optional_package("textarena", "textarena").make
        with self._random.reseed_on_entry(seed), redirect_stdout(StringIO()):
            try:
                self._env = make(settings.id, **settings.settings)
                self._env.reset(num_players=settings.players, seed=seed)
            except AssertionError as error:
                raise ValueError(f"players: {settings.id} does not take {settings.players}: {error}") from error
            except TypeError as error:
                raise ValueError(f"settings: {settings.id} does not take {settings.settings}: {error}") from error
            except (ImportError, LookupError, OSError, SyntaxError, ValueError) as error:
                # The game may lack an API key or a word list, or contain another Python's syntax.
                raise ValueError(f"id: {settings.id} cannot begin: {type(error).__name__}: {error}") from error

    def start_new_game(self, rng: random.Random, options: Mapping[str, Any]) -> NextAgent:
        self._start_seed = rng.getrandbits(31)
        self._start_environment(self._start_seed)
        self._read = dict.fromkeys(self.seats, "")
        self._news = dict.fromkeys(self.seats, "")
        self._invalid = 0.0
        return self._observe_next_agent()

    def _observe_next_agent(self) -> str:
        """Store the observation of the player to move, and return the player's agent."""
        with self._random:
            player, message = self._env.get_observation()
        agent = self.seats[player]
        text = message if isinstance(message, str) else "\n".join(line for _, line, _ in message)
        text, before = strip_terminal_codes(text).strip("\n"), self._read[agent]
        self._news[agent] = text.removeprefix(before) if before else text
        self._read[agent] = text
        return agent

    def start_state_key(self) -> str:
        """Return the seed, since TextArena does not show whether two seeds lead to the same start state."""
        return str(self._start_seed)

    def heard_agents(self, agent: str) -> tuple[str, ...]:
        return (agent,)

    def describe_observation(self, agent: str) -> str:
        return self._read[agent]

    def information_state(self, agent: str) -> str:
        return f"{agent}\n{self._read[agent]}"

    def example_actions(self, agent: str) -> tuple[str, ...]:
        # Names of players stand in brackets, too, but they are no moves.
        no_moves = {None, "", *map(str, self._env.state.role_mapping.values())}
        for text in (self._news[agent], self._read[agent]):
            matches = [match[min(match.re.groups, 1)] for match in self._pattern.finditer(text)]
            if examples := [example for example in dict.fromkeys(matches) if example not in no_moves]:
                return tuple(examples[:_MAX_EXAMPLES])
        return _NO_EXAMPLE

    def apply_action(self, action: str) -> NextAgent | FinalRewards:
        with self._random, redirect_stdout(StringIO()):  # hides what some games print to the terminal
            done, _ = self._env.step(action=action)
        if not done:
            return self._observe_next_agent()
        rewards, infos = self._env.close()
        self._invalid = float(any(info.get("invalid_move") for info in infos.values()))
        return {agent: (rewards or {}).get(player, 0.0) for player, agent in enumerate(self.seats)}

    def episode_measures(self) -> EpisodeMeasuresAndNewStarts:
        """Return the measure `invalid_move`: 1 if the game ended with a move that the game did not accept."""
        return EpisodeMeasuresAndNewStarts({"invalid_move": self._invalid})
