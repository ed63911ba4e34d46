"""Enumerated games whose agents play as a test says."""

from __future__ import annotations

from collections.abc import Mapping

from credit.validation.enumeration import EnumeratedGame, Play
from marl.evaluation.game_tree import Situation, grow
from marl.protocols import GameConfig
from marl.rollout.casting import RoleCasting
from roles.answering import PlayerRole

CASTING = RoleCasting({"player": PlayerRole(policy="actor")}, 0)


def enumerate_game(game: GameConfig, chances: Mapping[str, Mapping[str, float]] | None = None) -> EnumeratedGame:
    """Return the game played by `chances`: information state -> move -> probability; elsewhere uniformly."""
    seats = dict.fromkeys(game.build().possible_agents, "player")
    strategy: dict[Situation, Mapping[str, float]] = {}
    for situation, request in grow(game, CASTING, seats).requests.items():
        moves = request.options or {}
        strategy[situation] = (chances or {}).get(situation.state) or dict.fromkeys(moves, 1 / len(moves))
    return EnumeratedGame(game, CASTING, seats, strategy)


def find_play(game: EnumeratedGame, *moves: str, start: str | None = None) -> Play:
    """Return the play in which these moves are made."""
    [play] = [
        play
        for play in game.plays
        if tuple(decision.cell.move for decision in play.decisions) == moves and start in (None, play.first.start)
    ]
    return play
