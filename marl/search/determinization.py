"""States that the agent to move cannot tell from the real one: a search of a game that hides something begins there."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from marl.protocols import Game, GameConfig
from marl.rollout.episode import Episode, step_done_agents

_TRIES = 1000
"""Deals that are tried for each state that is wanted, where a game does not export its deals."""


def determinizations(config: GameConfig, episode: Episode, many: int, rng: random.Random) -> list[tuple[float, Game]]:
    """Return (weight, game) for up to `many` states in which the agent to move knows what it knows now.

    Weights add up to 1. They follow the chances of the deal alone, not how likely others would have moved as they did
    there: that is one reason why planning from such states is unsound; that plans use what nobody knows is the other
    one (Long et al. 2010, "Understanding the success of perfect information Monte Carlo sampling").

    Raises:
        ValueError: if none was found: the game exports no deals, and random ones do not lead here.
    """
    if config.perfect_information():
        return [(1.0, episode.game.copy(rng.getrandbits(63)))]
    drawn = _exported(config, episode) or _redealt(config, episode, many, rng)
    if len(drawn) > many:
        drawn = [(1.0, game) for game in _draw(drawn, many, rng)]
    total = sum(weight for weight, _ in drawn)
    return [(weight / total, game.copy(rng.getrandbits(63))) for weight, game in drawn]


def _exported(config: GameConfig, episode: Episode) -> list[tuple[float, Game]]:
    """Return the states that the deals of a game lead to, with their chances; none if it exports no deals."""
    starts = config.starts() or ()
    reached = ((start.probability, _replayed(config, episode, 0, start.options)) for start in starts)
    return [(chance, game) for chance, game in reached if game is not None]


def _redealt(config: GameConfig, episode: Episode, many: int, rng: random.Random) -> list[tuple[float, Game]]:
    """Return states that random deals lead to. The episode's `reset` options count as known to everybody."""
    options, drawn = episode.trajectory.deal.options, list[tuple[float, Game]]()
    for _ in range(_TRIES * many):
        game = _replayed(config, episode, rng.getrandbits(63), options)
        drawn += [(1.0, game)] if game is not None else []
        if len(drawn) == many:
            return drawn
    if drawn:
        return drawn
    raise ValueError(
        f"search: none of {_TRIES * many} random deals of game {config.kind!r} leads to what "
        f"{episode.game.agent_selection} knows now; a game that hides so much must export its deals (`starts`)"
    )


def _replayed(config: GameConfig, episode: Episode, seed: int, options: Mapping[str, Any] | None) -> Game | None:
    """Return a game after the episode's moves from another deal; None if the agent to move could tell it from ours."""
    game, real = config.build(), episode.game
    game.reset(seed=seed, options=options)
    for turn in episode.trajectory.turns:
        if game.agent_selection != turn.agent or not _legal(game, turn.action):
            return None
        game.step(turn.action or "")
        if step_done_agents(game):
            return None
    agent = real.agent_selection
    alike = game.agent_selection == agent and game.infos[agent]["state"] == real.infos[agent]["state"]
    return game if alike else None


def _legal(game: Game, action: str | None) -> bool:
    legal = game.infos[game.agent_selection]["legal"]
    return action is None or legal is None or action in legal


def _draw(weighted: Sequence[tuple[float, Game]], many: int, rng: random.Random) -> Iterator[Game]:
    """Yield games drawn by weight; one may be drawn twice, as each is to be searched with random numbers of its own."""
    yield from (weighted[i][1] for i in rng.choices(range(len(weighted)), [weight for weight, _ in weighted], k=many))
