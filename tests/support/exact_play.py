"""Whole trees of small games, and uniform play on them."""

from marl.evaluation.game_tree import GameTree, Strategy, grow
from marl.protocols import GameConfig
from marl.rollout.casting import RoleCasting
from roles.answering import PlayerRole


def walked(game: GameConfig) -> GameTree:
    """Return the tree of a game at which one role sits in every seat."""
    casting = RoleCasting({"player": PlayerRole(policy="actor")}, 0)
    return grow(game, casting, dict.fromkeys(game.build().possible_agents, "player"))


def uniform(tree: GameTree) -> Strategy:
    """Return the strategy that plays every legal move with the same probability."""
    return {
        situation: dict.fromkeys(request.options or {}, 1 / len(request.options or {}))
        for situation, request in tree.requests.items()
    }
