"""OpenSpiel's MCTS as a player of connect four: uniform prior, random plays to the end, UCT, proven wins are kept."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyspiel
from open_spiel.python.algorithms.mcts import MCTSBot, RandomRolloutEvaluator

from marl.engines.scripted import ScriptedConfig
from marl.games.connect_four_board import COLUMNS


class Mcts(ScriptedConfig):
    """Player by OpenSpiel's `MCTSBot` on its own connect four; its random numbers follow from seed and position."""

    kind: str = "open_spiel_mcts"
    simulations: int = 1000
    seed: int = 0

    def move_probabilities(self, state: str, moves: tuple[str, ...]) -> Mapping[str, float]:
        columns = state.split("/")
        game = pyspiel.load_game(f"connect_four(rows={len(columns[0])},columns={len(columns)})")
        generator = np.random.RandomState(zlib.crc32(f"{self.seed} {state}".encode()))
        evaluator = RandomRolloutEvaluator(1, generator)
        bot = MCTSBot(game, 2.0, self.simulations, evaluator, random_state=generator, solve=True)
        chosen = COLUMNS[bot.step(reached(game, columns))]
        return {move: float(move == chosen) for move in moves}


def reached(game: Any, columns: list[str]) -> Any:
    """Return OpenSpiel's state for columns from the bottom up: after any order of drops that leads there.

    Raises:
        ValueError: if no order does.
    """
    for order in _orders([column.rstrip(".") for column in columns]):
        state = game.new_initial_state()
        for column in order:
            state.apply_action(column)
        return state
    raise ValueError(f"{columns}: no order of drops leads to this position")


def _orders(left: list[str], mover: str = "x") -> Iterator[list[int]]:
    """Yield orders in which x and o, in turns, fill columns as wanted."""
    if not any(left):
        yield []
    for number, column in enumerate(left):
        if column.startswith(mover):
            rest = [*left[:number], column[1:], *left[number + 1 :]]
            for order in _orders(rest, "o" if mover == "x" else "x"):
                yield [number, *order]
