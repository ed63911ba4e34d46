"""Whole trees of small games, and uniform play on them."""

from marl.evaluation.game_tree import GameTree, Strategy, build_game_tree
from marl.protocols import GameConfig
from marl.roles.answering import PlayerRole
from marl.rollout.casting import RoleRequestBuilder


def uniform_game_tree(game: GameConfig) -> GameTree:
    """Return the tree of a game at which one role sits in every seat."""
    casting = RoleRequestBuilder({"player": PlayerRole(policy="actor")}, 0)
    return build_game_tree(game, casting, dict.fromkeys(game.build().possible_agents, "player"))


def uniform_strategy(tree: GameTree) -> Strategy:
    """Return the strategy that plays every legal move with the same probability."""
    return {
        situation: dict.fromkeys(request.options or {}, 1 / len(request.options or {}))
        for situation, request in tree.requests.items()
    }
