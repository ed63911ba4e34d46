"""Worst loss of a game in random play, by which the cost of an illegal move is chosen if a game names none."""

from __future__ import annotations

import random

from marl.protocols import Game

_EPISODES, _MAX_TURNS = 64, 1000
"""Number of random episodes, and maximum number of turns of each."""


def worst_loss_in_random_play(game: Game) -> float:
    """Return the largest loss of an agent in episodes of random legal moves, or 0 if no agent lost."""
    rng, worst_return = random.Random(0), 0.0
    for seed in range(_EPISODES):
        game.reset(seed)
        returns = dict(game.rewards)
        for _ in range(_MAX_TURNS):
            agent = game.agent_selection
            if game.terminations[agent] or game.truncations[agent]:
                break
            info = game.infos[agent]
            moves = info["legal"] or info.get("examples")
            if not moves:
                break
            game.step(rng.choice(moves))
            for name, reward in game.rewards.items():
                returns[name] += reward
        worst_return = min(worst_return, *returns.values())
    return -worst_return
