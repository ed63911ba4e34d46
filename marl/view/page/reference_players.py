"""Move probabilities of a game's reference players, such as an equilibrium or a perfect player."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from math import exp
from statistics import fmean
from typing import Any

from marl.core.graph import Trajectory
from marl.core.types import Turn
from marl.engines.scripted import ScriptedConfig
from marl.protocols import GameConfig, StateRendering

Probabilities = Mapping[str, Mapping[str, float]]
"""Name of a player -> legal move -> probability."""


def reference_probabilities(game: GameConfig | None, state: str, moves: Collection[str] | None) -> Probabilities:
    """Return the reference players' move probabilities in an information state, or {} if none is available."""
    if game is None or not moves:
        return {}
    probabilities = {}
    for name, player in game.opponents().items():
        if isinstance(player, ScriptedConfig):
            try:
                probabilities[name] = dict(player.probabilities(state, tuple(moves)))
            except (LookupError, ValueError):
                continue  # unknown to the player, for example in an edited file
    return probabilities


def state_drawing(game: GameConfig | None, state: str) -> StateRendering | None:
    """Return the game's drawing of an information state, or None."""
    if game is None or not state:
        return None
    try:
        return game.render_state(state)
    except (LookupError, ValueError):  # not a state of the game, for example in an edited file
        return None


def sampled_probability(turn: Turn) -> float | None:
    """Return the probability of the sampled tokens under the sampling distribution, or None if unknown."""
    return exp(sum(turn.completion.logprobs)) if turn.completion.logprobs else None


def states_table(games: Mapping[str, GameConfig], trajectories: Iterable[Trajectory]) -> list[dict[str, Any]]:
    """Return the move frequencies in each information state of a step, with the reference players' probabilities.

    Only states with a list of legal moves count, and turns with sampled tokens.
    """
    turns_in: dict[tuple[str, str, str], list[Turn]] = defaultdict(list)
    for trajectory in trajectories:
        for turn in trajectory.turns:
            if turn.request.options and turn.completion.token_ids:
                turns_in[trajectory.deal.game, turn.role, turn.request.state].append(turn)
    return [_row(games.get(key[0]), key, turns) for key, turns in sorted(turns_in.items())]


def _row(game: GameConfig | None, key: tuple[str, str, str], turns: list[Turn]) -> dict[str, Any]:
    moves = list(turns[0].request.options or ())
    frequencies = {move: sum(turn.action == move for turn in turns) / len(turns) for move in moves}
    sampled: dict[str, list[float]] = {move: [] for move in moves}
    for turn in turns:
        probability = sampled_probability(turn)
        # An unreadable turn has the action None, which is no key of `sampled`.
        if turn.action in sampled and probability is not None:
            sampled[turn.action].append(probability)
    return {
        **dict(zip(("game", "role", "state"), key, strict=True)),
        "turns": len(turns),
        "moves": moves,
        "made": frequencies,
        "unreadable": sum(turn.action is None for turn in turns) / len(turns),
        "sampled": {move: fmean(values) for move, values in sampled.items() if values},
        "reference": reference_probabilities(game, key[2], moves),
        "drawing": state_drawing(game, key[2]),
    }
