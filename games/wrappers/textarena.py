"""Games of TextArena: players are seats, what they are told is their observation, and any text is a move."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

from pydantic import Field, PositiveInt, field_validator

from games.base import TextGame, TextGameConfig
from games.global_random import GlobalRandom
from games.wrappers.imports import package
from games.wrappers.words import printable
from marl.config import nearest
from marl.types import Findings

_MOST_EXAMPLES = 100
_NO_EXAMPLE = ("pass",)
"""Said at random where nothing shows what a move looks like."""


class TextArenaConfig(TextGameConfig):
    """A game of TextArena. It judges moves itself: a wrong one is told off, and loses if it is repeated."""

    kind: str = "textarena"
    example = "id: TicTacToe-v0"
    id: str
    """Name of the game, such as `TicTacToe-v0`; with `-train` it shows the present board in place of all that was said,
    with `-raw` nothing is added to its messages."""
    players: PositiveInt = 2
    """Number of seats, `player_0`, `player_1` ..."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the game's constructor."""
    actions: tuple[str, ...] | None = None
    """The only moves there are. None: any text."""
    examples: str = r"\[([^\[\]\n]{1,60})\]"
    """Regular expression that finds examples of moves in what a player read last, for random play and the warm-up of
    tiny models: its first group, or all of it. Default: text in square brackets, which most games ask for."""

    @field_validator("id")
    @classmethod
    def _exists(cls, name: str) -> str:
        known = package("textarena.envs.registration", "textarena").ENV_REGISTRY
        if name not in known:
            raise ValueError(f"no game {name!r}; {nearest(name, known)}")
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
    """A game of TextArena. It draws from Python's global generator, which gets a state of its own for it.

    What the game tells an agent includes what others said, so agents read no turn of others directly.
    """

    def __init__(self, settings: TextArenaConfig) -> None:
        self._settings, self.name = settings, settings.id
        self._random = GlobalRandom()
        self._pattern = re.compile(settings.examples)
        agents = tuple(f"player_{player}" for player in range(settings.players))
        super().__init__(agents, settings.illegal, settings.actions)
        self._make(0)

    def _make(self, seed: int) -> None:
        """Begin a new game, in a new environment: its wrappers keep what was said in earlier ones."""
        settings, make = self._settings, package("textarena", "textarena").make
        with self._random.seeded(seed), redirect_stdout(StringIO()):
            try:
                self._env = make(settings.id, **settings.settings)
                self._env.reset(num_players=settings.players, seed=seed)
            except AssertionError as error:
                raise ValueError(f"players: {settings.id} does not take {settings.players}: {error}") from error
            except TypeError as error:
                raise ValueError(f"settings: {settings.id} does not take {settings.settings}: {error}") from error
            except (ImportError, LookupError, OSError, SyntaxError, ValueError) as error:
                # No key of an endpoint, no list of words, a module that this Python cannot read.
                raise ValueError(f"id: {settings.id} cannot begin: {type(error).__name__}: {error}") from error

    def deal(self, rng: random.Random, options: Mapping[str, Any]) -> str:
        self._start_seed = rng.getrandbits(31)
        self._make(self._start_seed)
        self._read = dict.fromkeys(self.seats, "")
        self._news = dict.fromkeys(self.seats, "")
        self._invalid = 0.0
        return self._listen()

    def _listen(self) -> str:
        """Take what the player to move is told; return its agent."""
        with self._random:
            player, message = self._env.get_observation()
        agent = self.seats[player]
        text = message if isinstance(message, str) else "\n".join(part for _, part, _ in message)
        text, before = printable(text).strip("\n"), self._read[agent]
        self._news[agent] = text.removeprefix(before) if before else text
        self._read[agent] = text
        return agent

    def start_key(self) -> str:
        """Return the seed: two seeds may lead to one start, but that cannot be seen from here."""
        return str(self._start_seed)

    def hears(self, agent: str) -> tuple[str, ...]:
        return (agent,)

    def describe(self, agent: str) -> str:
        return self._read[agent]

    def state_of(self, agent: str) -> str:
        return f"{agent}\n{self._read[agent]}"

    def examples(self, agent: str) -> tuple[str, ...]:
        speakers = {str(name) for name in self._env.state.role_mapping.values()}
        for text in (self._news[agent], self._read[agent]):
            matches = [match[1 if match.re.groups else 0] for match in self._pattern.finditer(text)]
            if examples := dict.fromkeys(example for example in matches if example and example not in speakers):
                return tuple(examples)[:_MOST_EXAMPLES]
        return _NO_EXAMPLE

    def move(self, action: str) -> str | Mapping[str, float]:
        with self._random, redirect_stdout(StringIO()):  # some games print
            done, _ = self._env.step(action=action)
        if not done:
            return self._listen()
        rewards, infos = self._env.close()
        self._invalid = float(any(info.get("invalid_move") for info in infos.values()))
        return {agent: (rewards or {}).get(player, 0.0) for player, agent in enumerate(self.seats)}

    def findings(self) -> Findings:
        """Return `invalid_move`: 1 if the game ended by a move that it did not accept."""
        return Findings({"invalid_move": self._invalid})
