"""Hint and guess, a Lewis signalling game: a speaker sees a symbol and says a word; a guesser hears only the word."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from games.base import TextGame, TextGameConfig
from marl.protocols import GameStart

SPEAKER, GUESSER = AGENTS = ("speaker", "guesser")
SYMBOLS = ("red", "green", "blue", "black", "white", "brown")
WORDS = ("one", "two", "three", "four", "five", "six")


class HintConfig(TextGameConfig):
    """Hint and guess: both are paid 1 for the right symbol, else 0. An illegal move ends it and costs both 1."""

    kind: str = "hint"
    symbols: int = Field(default=2, ge=2, le=len(SYMBOLS))
    """Number of symbols, all equally likely, and of words."""

    def build(self) -> Hint:
        return Hint(self)

    def starts(self) -> tuple[GameStart, ...]:
        return tuple(GameStart(1 / self.symbols, {"symbol": symbol}) for symbol in SYMBOLS[: self.symbols])


class Hint(TextGame):
    """The speaker says one word about the symbol it sees; the guesser reads that turn and names a symbol."""

    name = "hint"
    common = True
    choices = ("symbol",)
    rules = (
        "Two players work together. The speaker sees a symbol and says one of a few words, which mean nothing by "
        "themselves. The guesser hears the word only and names a symbol. Both win if it is the right one."
    )

    def __init__(self, config: HintConfig) -> None:
        self.symbols, self.words = SYMBOLS[: config.symbols], WORDS[: config.symbols]
        super().__init__(AGENTS, config.illegal, (*self.words, *self.symbols))

    def deal(self, rng: random.Random, options: Mapping[str, Any]) -> str:
        self.symbol = options["symbol"] if "symbol" in options else rng.choice(self.symbols)
        if self.symbol not in self.symbols:
            raise ValueError(f"hint: option symbol: no symbol {self.symbol!r}; choices: {', '.join(self.symbols)}")
        self.word = ""
        return SPEAKER

    def start_key(self) -> str:
        return self.symbol

    def legal(self, agent: str) -> tuple[str, ...]:
        return self.symbols if agent == GUESSER else self.words

    def hears(self, agent: str) -> tuple[str, ...]:
        return AGENTS if agent == GUESSER else (SPEAKER,)

    def describe(self, agent: str) -> str:
        if agent == SPEAKER:
            return f"symbol {self.symbol} . say {_menu(self.words)}"
        return f"word {self.word or 'none'} . guess {_menu(self.symbols)}"

    def state_of(self, agent: str) -> str:
        return self.symbol if agent == SPEAKER else self.word

    def move(self, action: str) -> str | Mapping[str, float]:
        if not self.word:
            self.word = action
            return GUESSER
        return dict.fromkeys(AGENTS, float(action == self.symbol))


def _menu(words: tuple[str, ...]) -> str:
    return " ".join(f"[{word}]" for word in words)
