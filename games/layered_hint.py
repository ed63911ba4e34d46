"""Layered hint: words about a symbol pass through layers of agents: one may be read by several, and read several."""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import accumulate
from typing import Annotated, Any

from pydantic import Field

from games.base import TextGame, TextGameConfig
from games.hint import SYMBOLS, WORDS
from marl.protocols import GameStart


class LayeredHintConfig(TextGameConfig):
    """Words pass through layers of agents; all are paid the share of the last layer that names the symbol.

    An illegal move ends it and costs all 1.
    """

    kind: str = "layered_hint"
    layers: tuple[Annotated[int, Field(ge=1, le=26)], ...] = Field(default=(1, 2, 1), min_length=2)
    """Number of agents in each layer. The first layer sees the symbol; each later one hears the one before it. (1, 2,
    1): one agent that two read, and one that reads both; (1, 1): `hint`."""
    symbols: int = Field(default=2, ge=2, le=len(SYMBOLS))
    """Number of symbols, all equally likely, and of words."""

    def build(self) -> LayeredHint:
        return LayeredHint(self)

    def starts(self) -> tuple[GameStart, ...]:
        return tuple(GameStart(1 / self.symbols, {"symbol": symbol}) for symbol in SYMBOLS[: self.symbols])


class LayeredHint(TextGame):
    """Agents of a layer speak at the same time; agents are numbered layer by layer."""

    name = "layered_hint"
    common = True
    choices = ("symbol",)
    rules = (
        "A team works together, one layer of players after the other. The first layer sees a symbol and says one of a "
        "few words, which mean nothing by themselves. Each later layer hears only the words of the layer before it; "
        "the last one names a symbol. All win what share of the last layer names the right one."
    )

    def __init__(self, config: LayeredHintConfig) -> None:
        self.symbols, self.words = SYMBOLS[: config.symbols], WORDS[: config.symbols]
        ends = list(accumulate(config.layers))
        agents = tuple(f"agent_{place}" for place in range(ends[-1]))
        super().__init__(agents, config.illegal, (*self.words, *self.symbols))
        self.layers = [agents[end - size : end] for size, end in zip(config.layers, ends, strict=True)]
        self.layer_of = {agent: place for place, layer in enumerate(self.layers) for agent in layer}

    def deal(self, rng: random.Random, options: Mapping[str, Any]) -> str:
        self.symbol = options["symbol"] if "symbol" in options else rng.choice(self.symbols)
        if self.symbol not in self.symbols:
            raise ValueError(
                f"layered_hint: option symbol: no symbol {self.symbol!r}; choices: {', '.join(self.symbols)}"
            )
        self.words_of: dict[str, str] = {}
        return self.seats[0]

    def start_key(self) -> str:
        return self.symbol

    def legal(self, agent: str) -> tuple[str, ...]:
        return self.symbols if agent in self.layers[-1] else self.words

    def hears(self, agent: str) -> tuple[str, ...]:
        return (agent, *self._heard(agent))

    def together(self, agent: str) -> tuple[str, ...]:
        layer = self.layers[self.layer_of[agent]]
        return layer[layer.index(agent) :]

    def describe(self, agent: str) -> str:
        known = f"words {self._words(agent)}" if self.layer_of[agent] else f"symbol {self.symbol}"
        menu = self.symbols if agent in self.layers[-1] else self.words
        return f"{agent} . {known} . say {' '.join(f'[{move}]' for move in menu)}"

    def state_of(self, agent: str) -> str:
        return f"{agent} {self._words(agent) if self.layer_of[agent] else self.symbol}"

    def move(self, action: str) -> str | Mapping[str, float]:
        self.words_of[self.agent_selection] = action
        if len(self.words_of) < len(self.seats):
            return self.seats[len(self.words_of)]
        right = [self.words_of[agent] == self.symbol for agent in self.layers[-1]]
        return dict.fromkeys(self.seats, sum(right) / len(right))

    def _heard(self, agent: str) -> tuple[str, ...]:
        """Return the agents of the layer before."""
        layer = self.layer_of[agent]
        return self.layers[layer - 1] if layer else ()

    def _words(self, agent: str) -> str:
        return " ".join(self.words_of.get(speaker, "none") for speaker in self._heard(agent))
