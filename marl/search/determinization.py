"""Samples states that the agent to move cannot distinguish from the real state, as roots of searches."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from marl.protocols import Game, GameConfig
from marl.rollout.episode import Episode, step_done_agents

_TRIES = 1000
"""Maximum number of random deals per requested state, for games that do not export their deals."""


def determinizations(config: GameConfig, episode: Episode, count: int, rng: random.Random) -> list[tuple[float, Game]]:
    """Return (weight, game) for up to `count` states consistent with the information of the agent to move.

    Weights sum to 1. They follow the probabilities of the deal alone, and ignore how likely the other agents' moves are
    in each state: one reason why planning from such states is unsound. The other reason: plans use information hidden
    from every agent (Long et al. 2010, "Understanding the success of perfect information Monte Carlo sampling").

    Raises:
        ValueError: if the game exports no deals, and no random deal led to such a state.
    """
    if config.perfect_information():
        return [(1.0, episode.game.copy(rng.getrandbits(63)))]
    states = _exported(config, episode) or _redealt(config, episode, count, rng)
    if len(states) > count:
        # With replacement: a state drawn twice is searched twice, with different random numbers.
        indices = rng.choices(range(len(states)), [weight for weight, _ in states], k=count)
        states = [(1.0, states[index][1]) for index in indices]
    total = sum(weight for weight, _ in states)
    return [(weight / total, game.copy(rng.getrandbits(63))) for weight, game in states]


def _exported(config: GameConfig, episode: Episode) -> list[tuple[float, Game]]:
    """Return the consistent states among the deals exported by the game, with their probabilities."""
    states: list[tuple[float, Game]] = []
    for start in config.starts() or ():
        game = _replay(config, episode, 0, start.options)
        if game is not None:
            states.append((start.probability, game))
    return states


def _redealt(config: GameConfig, episode: Episode, count: int, rng: random.Random) -> list[tuple[float, Game]]:
    """Return consistent states of random deals. The episode's `reset` options count as public information."""
    options, states = episode.trajectory.deal.options, list[tuple[float, Game]]()
    for _ in range(_TRIES * count):
        game = _replay(config, episode, rng.getrandbits(63), options)
        if game is not None:
            states.append((1.0, game))
        if len(states) == count:
            return states
    if states:
        return states
    raise ValueError(
        f"search: none of {_TRIES * count} random deals of game {config.kind!r} leads to what "
        f"{episode.game.agent_selection} knows now; a game that hides so much must export its deals (`starts`)"
    )


def _replay(config: GameConfig, episode: Episode, seed: int, options: Mapping[str, Any] | None) -> Game | None:
    """Return a game after the episode's moves from another deal, or None if the agent to move could tell them apart."""
    game, real = config.build(), episode.game
    game.reset(seed=seed, options=options)
    for turn in episode.trajectory.turns:
        if game.agent_selection != turn.agent:
            return None
        legal = game.infos[turn.agent]["legal"]
        if turn.action is not None and legal is not None and turn.action not in legal:
            return None
        game.step(turn.action or "")
        if step_done_agents(game):
            return None
    agent = real.agent_selection
    same_information = game.agent_selection == agent and game.infos[agent]["state"] == real.infos[agent]["state"]
    return game if same_information else None
