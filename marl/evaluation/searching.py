"""Exact figures of policies that search: the search is asked in every situation of a game, in place of the policy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean

from marl.evaluation.evaluate import open_positions, seating
from marl.evaluation.game_tree import GameTree, History, grow, nash_conv, values
from marl.rollout.base import BaseSimulator
from marl.rollout.episode import Episode
from marl.scenario.schema import Scenario
from marl.search.planner import SearchResult
from marl.search.play import SearchPlayer, learnt_policy
from marl.search.settings import SearchSettings
from marl.types import Deal, Metrics


def exact_figures(scenario: Scenario, simulator: BaseSimulator, search: SearchSettings) -> Metrics:
    """Return NashConv and values of the searching policy, and its probability of an optimal move, where they are known.

    They are those of one run of the search in each situation: other random numbers give other ones.
    """
    game, metrics = scenario.game, Metrics()
    player = SearchPlayer(simulator, search, seating(scenario))
    if game.starts() is not None:
        tree = grow(game, simulator.casting, scenario.seats)
        episodes = [_episode(scenario, simulator, history) for history in tree.histories.values()]
        metrics |= _convergence(tree, [_policy(result, search) for result in player.decide(episodes)])
    questions = list(open_positions(game, simulator.casting, scenario.seats))
    if questions:
        policies = [_policy(result, search) for result in player.decide([episode for episode, _ in questions])]
        chances = [
            math.fsum(policy[move] for move in best) for policy, (_, best) in zip(policies, questions, strict=True)
        ]
        metrics["eval/optimal"] = fmean(chances)
    return metrics


def _episode(scenario: Scenario, simulator: BaseSimulator, history: History) -> Episode:
    """Return an episode in which a history was played."""
    start, actions = history
    deal = Deal("situation", "situation", 0, scenario.seats, "eval", options=start.options)
    episode = Episode(scenario.game.build(), deal, simulator.casting)
    for action in actions:
        episode.force(action)
    return episode


def _policy(result: SearchResult, settings: SearchSettings) -> dict[str, float]:
    """Return the probability with which each move is played after a search."""
    if settings.temperature == 0:
        return {move: float(move == result.chosen) for move in result.moves}
    return dict(zip(result.moves, learnt_policy(result, settings), strict=True))


def _convergence(tree: GameTree, policies: list[dict[str, float]]) -> Metrics:
    strategy: Mapping = dict(zip(tree.histories, policies, strict=True))
    returns = {f"eval/value/{agent}": value for agent, value in values(tree, strategy).items()}
    return {"eval/nashconv": nash_conv(tree, strategy), **returns}
