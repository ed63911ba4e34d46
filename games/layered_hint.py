"""Layered hint: words about a symbol pass through layers of agents, and an agent may read several agents."""

from __future__ import annotations

from itertools import accumulate
from typing import Annotated

from pydantic import Field

from marl.games.base import FinalRewards, NextAgent, TextGameConfig, equiprobable_starts, format_move_menu
from marl.games.hint import SYMBOLS, SymbolSignallingGame
from marl.protocols import GameStart


class LayeredHintConfig(TextGameConfig):
    """Signalling through layers of agents. Every agent is paid the fraction of the last layer that names the symbol.

    An illegal move ends the game and costs every agent 1.
    """

    kind: str = "layered_hint"
    layers: tuple[Annotated[int, Field(ge=1, le=26)], ...] = Field(default=(1, 2, 1), min_length=2)
    """Number of agents in each layer. The first layer sees the symbol; each later layer reads the layer before. With
    (1, 2, 1), two agents read the first agent, and the last agent reads both; (1, 1) is the game `hint`."""
    symbols: int = Field(default=2, ge=2, le=len(SYMBOLS))
    """Number of symbols, all equally likely, and also the number of words."""

    def build(self) -> LayeredHintGame:
        return LayeredHintGame(self)

    def all_start_states(self) -> tuple[GameStart, ...]:
        return equiprobable_starts("symbol", SYMBOLS[: self.symbols])


class LayeredHintGame(SymbolSignallingGame):
    """Signalling game in layers: agents of a layer move at the same time, and are numbered layer by layer."""

    name = "layered_hint"
    rules = (
        "A team works together, one layer of players after the other. The first layer sees a symbol and says one of a "
        "few words, which mean nothing by themselves. Each later layer hears only the words of the layer before it; "
        "the last one names a symbol. All win what share of the last layer names the right one."
    )

    def __init__(self, config: LayeredHintConfig) -> None:
        ends = list(accumulate(config.layers))
        agents = tuple(f"agent_{index}" for index in range(ends[-1]))
        super().__init__(agents, config.illegal, config.symbols)
        self.layers = [agents[end - size : end] for size, end in zip(config.layers, ends, strict=True)]
        self.layer_of: dict[str, int] = {}
        for index, layer in enumerate(self.layers):
            self.layer_of |= dict.fromkeys(layer, index)

    def legal_actions(self, agent: str) -> tuple[str, ...]:
        return self.symbols if agent in self.layers[-1] else self.words

    def heard_agents(self, agent: str) -> tuple[str, ...]:
        layer = self.layer_of[agent]
        return (agent, *self.layers[layer - 1]) if layer else (agent,)

    def agents_asked_together(self, agent: str) -> tuple[str, ...]:
        layer = self.layers[self.layer_of[agent]]
        return layer[layer.index(agent) :]

    def describe_observation(self, agent: str) -> str:
        _, observed = self.information_state(agent).split(" ", 1)
        menu = format_move_menu(self.legal_actions(agent))
        return f"{agent} . {'words' if self.layer_of[agent] else 'symbol'} {observed} . say {menu}"

    def information_state(self, agent: str) -> str:
        """Return the name of `agent`, then the symbol or the words that the layer before has said."""
        _, *speakers = self.heard_agents(agent)
        words = [self.word_of.get(speaker, "none") for speaker in speakers]
        return " ".join([agent, *(words or [self.symbol])])

    def apply_action(self, action: str) -> NextAgent | FinalRewards:
        self.word_of[self.agent_selection] = action
        # Seats are in the order of layers, so every agent moves after all agents that it reads.
        if len(self.word_of) < len(self.seats):
            return self.seats[len(self.word_of)]
        last_layer = self.layers[-1]
        correct = sum(self.word_of[agent] == self.symbol for agent in last_layer)
        return dict.fromkeys(self.seats, correct / len(last_layer))
