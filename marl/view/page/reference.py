"""Move probabilities of the players that a game exports (its equilibrium, a perfect player), state by state."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from math import exp
from statistics import fmean
from typing import Any

from marl.engines.scripted import ScriptedConfig
from marl.graph import Trajectory
from marl.protocols import Drawing, GameConfig
from marl.types import Turn

Probabilities = Mapping[str, Mapping[str, float]]
"""Name of a player -> legal move -> probability."""


def reference(game: GameConfig | None, state: str, moves: Collection[str] | None) -> Probabilities:
    """Return how the players that the game exports would move in an information state; {} where none is known."""
    if game is None or not moves:
        return {}
    known = {}
    for name, player in game.opponents().items():
        if isinstance(player, ScriptedConfig):
            try:
                known[name] = dict(player.probabilities(state, tuple(moves)))
            except (LookupError, ValueError):
                continue  # a state that the player does not know, as in a file that somebody has edited
    return known


def drawing(game: GameConfig | None, state: str) -> Drawing | None:
    """Return the game's picture of an information state; None where there is none."""
    if game is None or not state:
        return None
    try:
        return game.drawing(state)
    except (LookupError, ValueError):  # as above
        return None


def probability(turn: Turn) -> float | None:
    """Return the probability of the tokens that were sampled, under the sampling distribution; None if unknown."""
    return exp(sum(turn.completion.logprobs)) if turn.completion.logprobs else None


def states_table(games: Mapping[str, GameConfig], trajectories: Iterable[Trajectory]) -> list[dict[str, Any]]:
    """Return for each information state of a step how often each move was made there, beside the game's own players.

    Only states with a list of legal moves count, and turns whose tokens were sampled.
    """
    turns_in: dict[tuple[str, str, str], list[Turn]] = defaultdict(list)
    for trajectory in trajectories:
        for turn in trajectory.turns:
            if turn.request.options and turn.completion.token_ids:
                turns_in[trajectory.deal.game, turn.role, turn.request.state].append(turn)
    return [_row(games.get(key[0]), key, turns) for key, turns in sorted(turns_in.items())]


def _row(game: GameConfig | None, key: tuple[str, str, str], turns: list[Turn]) -> dict[str, Any]:
    moves = list(turns[0].request.options or ())
    made = {move: sum(turn.action == move for turn in turns) / len(turns) for move in moves}
    stated = {
        move: [p for turn in turns if turn.action == move and (p := probability(turn)) is not None] for move in moves
    }
    return {
        **dict(zip(("game", "role", "state"), key, strict=True)),
        "turns": len(turns),
        "moves": moves,
        "made": made,
        "unreadable": sum(turn.action is None for turn in turns) / len(turns),
        "sampled": {move: fmean(values) for move, values in stated.items() if values},
        "reference": reference(game, key[2], moves),
        "drawing": drawing(game, key[2]),
    }
