"""Enumerated games whose agents play as a test says."""

from __future__ import annotations

from collections.abc import Mapping

from marl.commands.credit_check.enumeration import EnumeratedGame, Playthrough
from marl.evaluation.game_tree import InformationState, build_game_tree
from marl.protocols import GameConfig
from marl.roles.answering import PlayerRole
from marl.rollout.casting import RoleRequestBuilder

CASTING = RoleRequestBuilder({"player": PlayerRole(policy="actor")}, 0)


def enumerate_game(game: GameConfig, chances: Mapping[str, Mapping[str, float]] | None = None) -> EnumeratedGame:
    """Return the game played by `chances`: information state -> move -> probability; elsewhere uniformly."""
    seats = dict.fromkeys(game.build().possible_agents, "player")
    strategy: dict[InformationState, Mapping[str, float]] = {}
    for situation, request in build_game_tree(game, CASTING, seats).requests.items():
        moves = request.options or {}
        strategy[situation] = (chances or {}).get(situation.state) or dict.fromkeys(moves, 1 / len(moves))
    return EnumeratedGame(game, CASTING, seats, strategy)


def find_play(game: EnumeratedGame, *moves: str, start: str | None = None) -> Playthrough:
    """Return the play in which these moves are made."""
    [play] = [
        play
        for play in game.plays
        if tuple(decision.cell.move for decision in play.decisions) == moves
        and start in (None, play.initial_history.start)
    ]
    return play
