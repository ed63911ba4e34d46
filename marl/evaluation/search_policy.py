"""Exact figures of policies with search, from one run of the search in every information state of a game."""

from __future__ import annotations

import math
from statistics import fmean

from marl.core.types import Deal, Metrics
from marl.evaluation.evaluate import open_positions, seating
from marl.evaluation.game_tree import History, Strategy, build_game_tree, nash_conv, values
from marl.rollout.base import BaseSimulator
from marl.rollout.episode import Episode
from marl.scenario.schema import Scenario
from marl.search.mcts import SearchResult
from marl.search.play import SearchPlayer, target_policy
from marl.search.settings import SearchSettings


def exact_figures(scenario: Scenario, simulator: BaseSimulator, search: SearchSettings) -> Metrics:
    """Return NashConv, values and the probability of an optimal move, as far as the game exports what they need.

    The search runs once per information state, so other random numbers give other figures.
    """
    game, metrics = scenario.game, Metrics()
    player = SearchPlayer(simulator, search, seating(scenario))
    if game.starts() is not None:
        tree = build_game_tree(game, simulator.casting, scenario.seats)
        episodes = [_replay(scenario, simulator, history) for history in tree.histories.values()]
        policies = [_policy(result, search) for result in player.decide(episodes)]
        strategy: Strategy = dict(zip(tree.histories, policies, strict=True))
        returns = {f"eval/value/{agent}": value for agent, value in values(tree, strategy).items()}
        metrics |= {"eval/nashconv": nash_conv(tree, strategy), **returns}
    positions = list(open_positions(game, simulator.casting, scenario.seats))
    if positions:
        probabilities: list[float] = []
        results = player.decide([episode for episode, _ in positions])
        for result, (_, optimal_moves) in zip(results, positions, strict=True):
            policy = _policy(result, search)
            probabilities.append(math.fsum(policy[move] for move in optimal_moves))
        metrics["eval/optimal"] = fmean(probabilities)
    return metrics


def _replay(scenario: Scenario, simulator: BaseSimulator, history: History) -> Episode:
    """Return an episode after the actions of `history`."""
    start, actions = history
    deal = Deal("situation", "situation", 0, scenario.seats, "eval", options=start.options)
    episode = Episode(scenario.game.build(), deal, simulator.casting)
    for action in actions:
        episode.force_action(action)
    return episode


def _policy(result: SearchResult, settings: SearchSettings) -> dict[str, float]:
    """Return move -> probability of playing it after a search."""
    if settings.temperature == 0:
        return {move: float(move == result.chosen) for move in result.moves}
    return dict(zip(result.moves, target_policy(result, settings), strict=True))
