"""Enumerated games whose agents play as a test says."""

from __future__ import annotations

from collections.abc import Mapping

from credit.validation.world import Play, World
from marl.evaluation.game_tree import Situation, grow
from marl.protocols import GameConfig
from marl.rollout.casting import Cast
from roles.player import Player

CAST = Cast({"player": Player(policy="actor")}, 0)


def world(game: GameConfig, chances: Mapping[str, Mapping[str, float]] | None = None) -> World:
    """Information state -> move -> probability; where nothing is said, all legal moves are as likely."""
    seats = dict.fromkeys(game.build().possible_agents, "player")
    strategy: dict[Situation, Mapping[str, float]] = {}
    for situation, request in grow(game, CAST, seats).requests.items():
        moves = request.options or {}
        strategy[situation] = (chances or {}).get(situation.state) or dict.fromkeys(moves, 1 / len(moves))
    return World(game, CAST, seats, strategy)


def played(world: World, *moves: str, start: str | None = None) -> Play:
    """The play in which these moves are made."""
    found = [
        play
        for play in world.plays
        if tuple(choice.cell.move for choice in play.choices) == moves
        and start in (None, play.choices[0].cell.history.start)
    ]
    [play] = found
    return play
