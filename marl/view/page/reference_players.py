"""Move probabilities of a game's reference players, such as an equilibrium or a perfect player."""

from __future__ import annotations

from collections import Counter, defaultdict
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


def reference_move_probabilities(game: GameConfig | None, state: str, moves: Collection[str] | None) -> Probabilities:
    """Return the reference players' move probabilities in an information state, or {} if none is available."""
    if game is None or not moves:
        return {}
    probabilities = {}
    for name, player in game.reference_players().items():
        if isinstance(player, ScriptedConfig):
            try:
                probabilities[name] = dict(player.move_probabilities(state, tuple(moves)))
            except (LookupError, ValueError):
                continue  # a state in an edited file may be unknown to the player
    return probabilities


def render_information_state_if_possible(game: GameConfig | None, state: str) -> StateRendering | None:
    """Return the game's drawing of an information state, or None."""
    if game is None or not state:
        return None
    try:
        return game.render_state(state)
    except (LookupError, ValueError):  # a state in an edited file may be unknown to the game
        return None


def sampled_answer_probability(turn: Turn) -> float | None:
    """Return the probability of the sampled tokens under the sampling distribution, or None if unknown."""
    return exp(sum(turn.completion.logprobs)) if turn.completion.logprobs else None


def information_state_rows(games: Mapping[str, GameConfig], trajectories: Iterable[Trajectory]) -> list[dict[str, Any]]:
    """Return the move frequencies in each information state of a step, with the reference players' probabilities.

    Only states with a list of legal moves count, and turns with sampled tokens.
    """
    turns_by_state: dict[tuple[str, str, str], list[Turn]] = defaultdict(list)
    for trajectory in trajectories:
        for turn in trajectory.turns:
            if turn.request.options and turn.completion.token_ids:
                turns_by_state[trajectory.deal.game, turn.role, turn.request.state].append(turn)
    table: list[dict[str, Any]] = []
    for (game_name, role, state), turns in sorted(turns_by_state.items()):
        game, moves = games.get(game_name), list(turns[0].request.options or ())
        counts = Counter(turn.action for turn in turns)
        sampled: dict[str, float] = {}
        for move in moves:
            probabilities: list[float] = []
            for turn in turns:
                if turn.action == move and (probability := sampled_answer_probability(turn)) is not None:
                    probabilities.append(probability)
            if probabilities:
                sampled[move] = fmean(probabilities)
        table.append(
            {
                **{"game": game_name, "role": role, "state": state},
                "turns": len(turns),
                "moves": moves,
                "made": {move: counts[move] / len(turns) for move in moves},
                "unreadable": counts[None] / len(turns),
                "sampled": sampled,
                "reference": reference_move_probabilities(game, state, moves),
                "drawing": render_information_state_if_possible(game, state),
            }
        )
    return table
