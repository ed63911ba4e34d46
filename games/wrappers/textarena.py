"""Games of TextArena: players are seats, the game's messages are observations, and any text is a move."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

from pydantic import Field, PositiveInt, field_validator

from marl.core.config import choices_hint
from marl.core.types import Findings
from marl.games.base import TextGame, TextGameConfig
from marl.games.isolated_random import IsolatedGlobalRandom
from marl.games.wrappers.import_env import import_optional
from marl.games.wrappers.text_adapter import clean_rendering

_MOST_EXAMPLES = 100
_NO_EXAMPLE = ("pass",)
"""Move of random play where no text shows an example of a move."""


class TextArenaConfig(TextGameConfig):
    """A game of TextArena. The game checks moves itself: it warns after an invalid move, and a repeated one loses."""

    kind: str = "textarena"
    example = "id: TicTacToe-v0"
    id: str
    """Name of the game, such as `TicTacToe-v0`. With the suffix `-train` an observation is the present board instead of
    the full conversation; with `-raw` nothing is added to the game's messages."""
    players: PositiveInt = 2
    """Number of seats, `player_0`, `player_1` ..."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the game's constructor."""
    actions: tuple[str, ...] | None = None
    """Names of all moves. None: any text is a move."""
    examples: str = r"\[([^\[\]\n]{1,60})\]"
    """Regular expression for examples of moves in a player's last observation, for random play and the warm-up of tiny
    models. The first group, or else the full match, is the move. Default: text in square brackets."""

    @field_validator("id")
    @classmethod
    def _exists(cls, name: str) -> str:
        registry = import_optional("textarena.envs.registration", "textarena").ENV_REGISTRY
        if name not in registry:
            raise ValueError(f"no game {name!r}; {choices_hint(name, registry)}")
        return name

    @field_validator("examples")
    @classmethod
    def _is_pattern(cls, pattern: str) -> str:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
        return pattern

    def build(self) -> TextArenaGame:
        return TextArenaGame(self)


class TextArenaGame(TextGame):
    """A game of TextArena, with an isolated state of Python's global random generator, which TextArena draws from.

    The game's messages to an agent include other agents' texts, so agents hear no turn of others directly.
    """

    def __init__(self, settings: TextArenaConfig) -> None:
        self._settings, self.name = settings, settings.id
        self._random = IsolatedGlobalRandom()
        self._pattern = re.compile(settings.examples)
        agents = tuple(f"player_{player}" for player in range(settings.players))
        super().__init__(agents, settings.illegal, settings.actions)
        self._make(0)

    def _make(self, seed: int) -> None:
        """Start a new game in a new environment, as TextArena's wrappers keep the texts of earlier games."""
        settings, make = self._settings, import_optional("textarena", "textarena").make
        with self._random.seeded(seed), redirect_stdout(StringIO()):
            try:
                self._env = make(settings.id, **settings.settings)
                self._env.reset(num_players=settings.players, seed=seed)
            except AssertionError as error:
                raise ValueError(f"players: {settings.id} does not take {settings.players}: {error}") from error
            except TypeError as error:
                raise ValueError(f"settings: {settings.id} does not take {settings.settings}: {error}") from error
            except (ImportError, LookupError, OSError, SyntaxError, ValueError) as error:
                # Such as a missing API key, a missing word list, or a module in another Python's syntax.
                raise ValueError(f"id: {settings.id} cannot begin: {type(error).__name__}: {error}") from error

    def deal(self, rng: random.Random, options: Mapping[str, Any]) -> str:
        self._start_seed = rng.getrandbits(31)
        self._make(self._start_seed)
        self._read = dict.fromkeys(self.seats, "")
        self._news = dict.fromkeys(self.seats, "")
        self._invalid = 0.0
        return self._listen()

    def _listen(self) -> str:
        """Read the observation of the player to move; return the player's agent."""
        with self._random:
            player, message = self._env.get_observation()
        agent = self.seats[player]
        text = message if isinstance(message, str) else "\n".join(line for _, line, _ in message)
        text, before = clean_rendering(text).strip("\n"), self._read[agent]
        self._news[agent] = text.removeprefix(before) if before else text
        self._read[agent] = text
        return agent

    def start_key(self) -> str:
        """Return the seed; two seeds may lead to the same start state, which TextArena does not show."""
        return str(self._start_seed)

    def hears(self, agent: str) -> tuple[str, ...]:
        return (agent,)

    def describe(self, agent: str) -> str:
        return self._read[agent]

    def information_state(self, agent: str) -> str:
        return f"{agent}\n{self._read[agent]}"

    def example_actions(self, agent: str) -> tuple[str, ...]:
        speakers = {str(name) for name in self._env.state.role_mapping.values()}
        for text in (self._news[agent], self._read[agent]):
            matches = [match[1 if match.re.groups else 0] for match in self._pattern.finditer(text)]
            if examples := dict.fromkeys(example for example in matches if example and example not in speakers):
                return tuple(examples)[:_MOST_EXAMPLES]
        return _NO_EXAMPLE

    def apply_action(self, action: str) -> str | Mapping[str, float]:
        with self._random, redirect_stdout(StringIO()):  # some games print
            done, _ = self._env.step(action=action)
        if not done:
            return self._listen()
        rewards, infos = self._env.close()
        self._invalid = float(any(info.get("invalid_move") for info in infos.values()))
        return {agent: (rewards or {}).get(player, 0.0) for player, agent in enumerate(self.seats)}

    def findings(self) -> Findings:
        """Return the measure `invalid_move`: 1 if the game ended with a move that it did not accept."""
        return Findings({"invalid_move": self._invalid})
