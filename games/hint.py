"""Signalling games about a symbol: the common base, and hint and guess (a Lewis signalling game)."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from marl.games.base import (
    FinalRewards,
    IllegalMoveHandling,
    NextAgent,
    TextGame,
    TextGameConfig,
    equiprobable_starts,
    format_move_menu,
)
from marl.protocols import GameStart

SPEAKER, GUESSER = AGENTS = ("speaker", "guesser")
SYMBOLS = ("red", "green", "blue", "black", "white", "brown")
WORDS = ("one", "two", "three", "four", "five", "six")


class SymbolSignallingGame(TextGame):
    """Base of signalling games: some agents see a symbol and say words; the agents who read these words name it."""

    common_reward = True
    reset_options = ("symbol",)

    def __init__(self, agents: tuple[str, ...], illegal: IllegalMoveHandling, symbols: int) -> None:
        self.symbols, self.words = SYMBOLS[:symbols], WORDS[:symbols]
        super().__init__(agents, illegal, (*self.words, *self.symbols))

    def start_new_game(self, rng: random.Random, options: Mapping[str, Any]) -> NextAgent:
        self.symbol = options["symbol"] if "symbol" in options else rng.choice(self.symbols)
        if self.symbol not in self.symbols:
            choices = ", ".join(self.symbols)
            raise ValueError(f"{self.name}: option symbol: no symbol {self.symbol!r}; choices: {choices}")
        self.word_of: dict[str, str] = {}
        """Agent -> its move in this episode: a word, or the symbol that it named."""
        return self.seats[0]

    def start_state_key(self) -> str:
        return self.symbol


class HintConfig(TextGameConfig):
    """Hint and guess: the reward of both agents is 1 for the right symbol, else 0. An illegal move costs both 1."""

    kind: str = "hint"
    symbols: int = Field(default=2, ge=2, le=len(SYMBOLS))
    """Number of symbols, all equally likely, and also the number of words."""

    def build(self) -> HintGame:
        return HintGame(self)

    def all_start_states(self) -> tuple[GameStart, ...]:
        return equiprobable_starts("symbol", SYMBOLS[: self.symbols])


class HintGame(SymbolSignallingGame):
    """The speaker sees a symbol and says one word; the guesser reads the word and names a symbol."""

    name = "hint"
    rules = (
        "Two players work together. The speaker sees a symbol and says one of a few words, which mean nothing by "
        "themselves. The guesser hears the word only and names a symbol. Both win if it is the right one."
    )

    def __init__(self, config: HintConfig) -> None:
        super().__init__(AGENTS, config.illegal, config.symbols)

    def legal_actions(self, agent: str) -> tuple[str, ...]:
        return self.symbols if agent == GUESSER else self.words

    def heard_agents(self, agent: str) -> tuple[str, ...]:
        return AGENTS if agent == GUESSER else (SPEAKER,)

    def describe_observation(self, agent: str) -> str:
        menu = format_move_menu(self.legal_actions(agent))
        if agent == SPEAKER:
            return f"symbol {self.symbol} . say {menu}"
        return f"word {self.word_of.get(SPEAKER, 'none')} . guess {menu}"

    def information_state(self, agent: str) -> str:
        return self.symbol if agent == SPEAKER else self.word_of.get(SPEAKER, "")

    def apply_action(self, action: str) -> NextAgent | FinalRewards:
        if self.agent_selection == SPEAKER:
            self.word_of[SPEAKER] = action
            return GUESSER
        # The reward ignores the hint itself, so speaker and guesser must agree on the meaning of each word.
        return dict.fromkeys(AGENTS, float(action == self.symbol))
