"""Sampling of states that the agent to move cannot distinguish from the real state, as roots of searches."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from marl.protocols import Game, GameConfig
from marl.rollout.episode import Episode
from marl.rollout.game_end import step_done_agents_and_check_game_is_over

_TRIES, _MAX_TRIES = 1000, 8000
"""Maximum numbers of random deals per requested state, and in all, for games that do not export their deals."""


def sample_determinizations(
    config: GameConfig, episode: Episode, max_states: int, rng: random.Random, agent: str | None = None
) -> list[tuple[float, Game]]:
    """Return (weight, game) for up to `max_states` states consistent with the information of `agent`.

    `agent` is asked for a move now (default: the agent to move; another one if several move at once).
    Weights sum to 1. They follow the probabilities of the deal alone, and ignore how likely the other agents' moves are
    in each state: one reason why planning from such states is unsound. The other reason: plans use information hidden
    from every agent (Long et al. 2010, "Understanding the success of perfect information Monte Carlo sampling").

    Raises:
        ValueError: if the game exports no deals, and no random deal led to such a state.
    """
    if config.has_perfect_information():
        return [(1.0, episode.game.copy(rng.getrandbits(63)))]
    weights: list[float] = []
    games: list[Game] = []
    starts, agent = config.all_start_states(), agent or episode.game.agent_selection
    for start in starts or ():
        game = _replay_if_indistinguishable(config, episode, agent, 0, start.options)
        if game is not None:
            weights.append(start.probability)
            games.append(game)
    while starts is None and len(games) < max_states:
        game = episode.game.copy(rng.getrandbits(63))
        if not game.redeal(agent, rng):
            break
        weights.append(1.0)
        games.append(game)
    tries = 0
    if not games:
        # A game that cannot draw what is hidden anew is dealt at random, and the episode's reset options count as
        # public information.
        tries = min(_TRIES * max_states, _MAX_TRIES)
        for _ in range(tries):
            options, seed = episode.trajectory.deal.options, rng.getrandbits(63)
            game = _replay_if_indistinguishable(config, episode, agent, seed, options)
            if game is not None:
                weights.append(1.0)
                games.append(game)
            if len(games) == max_states:
                break
    if not games:
        raise ValueError(
            f"search: none of {tries} random deals of game {config.kind!r} leads to what "
            f"{agent} knows now; a game that hides so much must export its deals (`all_start_states`) or have a method "
            "`redeal`"
        )
    if len(games) > max_states:
        # States are drawn with replacement. A state drawn twice is searched twice, with other random numbers.
        games = rng.choices(games, weights, k=max_states)
        weights = [1.0] * max_states
    total = sum(weights)
    return [(weight / total, game.copy(rng.getrandbits(63))) for weight, game in zip(weights, games, strict=True)]


def _replay_if_indistinguishable(
    config: GameConfig, episode: Episode, agent: str, seed: int, options: Mapping[str, Any] | None
) -> Game | None:
    """Replay the episode's moves in another deal; return the game, or None if `agent` sees a difference."""
    game, real_game = config.build(), episode.game
    game.reset(seed=seed, options=options)
    for turn in episode.trajectory.turns:
        if game.agent_selection != turn.agent:
            return None
        legal = game.infos[turn.agent]["legal"]
        if turn.action is not None and legal is not None and turn.action not in legal:
            return None
        game.step(turn.action or "")
        if step_done_agents_and_check_game_is_over(game):
            return None
    if game.agent_selection != real_game.agent_selection:
        return None
    if game.infos[agent]["state"] != real_game.infos[agent]["state"]:
        return None
    return game
