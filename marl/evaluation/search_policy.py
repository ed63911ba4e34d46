"""Exact figures of policies with search, from one run of the search in every information state of a game."""

from __future__ import annotations

import math
from statistics import fmean

from marl.core.statistics import normal_interval
from marl.core.types import Deal, Metrics
from marl.evaluation.evaluate import positions_with_suboptimal_moves, searching_roles_and_seats
from marl.evaluation.game_tree import GameTree, InformationState, build_game_tree, expected_returns, nash_conv
from marl.evaluation.held_out import metric_with_interval
from marl.rollout.base import BaseSimulator
from marl.rollout.episode import Episode
from marl.scenario.schema import Scenario
from marl.search.evaluation import SearchEvaluation
from marl.search.mcts import SearchResult
from marl.search.play import SearchPlayer, search_policy_target
from marl.search.settings import SearchSettings


def exact_search_metrics(scenario: Scenario, simulator: BaseSimulator, search: SearchEvaluation) -> Metrics:
    """Return NashConv, values and the probability of an optimal move of the scenario's policies with `search`.

    NashConv and values need a game that exports its starts, and the probability needs exported optimal moves. The
    search runs once per information state, so other random numbers give other figures. A figure that exceeds the budget
    of `search` is left out, or measured in fewer positions, with a 95 % interval.
    """
    if search.decisions_within_budget(1) == 0:
        return {}
    player = SearchPlayer(simulator, search.settings, searching_roles_and_seats(scenario))
    metrics, searched_states = Metrics(), 0
    if scenario.game.all_start_states() is not None:
        tree = build_game_tree(scenario.game, simulator.casting, scenario.seats)
        if search.decisions_within_budget(len(tree.histories)) == len(tree.histories):
            metrics, searched_states = _game_tree_metrics(tree, scenario, player, search), len(tree.histories)
    positions = list(positions_with_suboptimal_moves(scenario.game, simulator.casting, scenario.seats))
    count = search.decisions_within_budget(searched_states + len(positions)) - searched_states
    # Positions are ordered by their moves, so evenly spaced ones come from the whole game.
    chosen = [positions[index * len(positions) // count] for index in range(count)]
    probabilities: list[float] = []
    for chunk in search.chunks(chosen, "optimal moves"):
        results = player.search_next_moves([episode for episode, _ in chunk])
        for result, (_, optimal_moves) in zip(results, chunk, strict=True):
            policy = _move_probabilities(result, search.settings)
            probabilities.append(math.fsum(map(policy.__getitem__, optimal_moves)))
    if probabilities:
        sampled = len(probabilities) < len(positions)
        low, mean, high = normal_interval(probabilities) if sampled else (-math.inf, fmean(probabilities), math.inf)
        metrics |= metric_with_interval("eval/optimal", (low, mean, high))
    return metrics


def _game_tree_metrics(tree: GameTree, scenario: Scenario, player: SearchPlayer, search: SearchEvaluation) -> Metrics:
    """Return NashConv and values of the policies with `search`, which runs in every information state of `tree`."""
    strategy: dict[InformationState, dict[str, float]] = {}
    for chunk in search.chunks(list(tree.histories.items()), "information states"):
        episodes: list[Episode] = []
        for situation, (start, actions) in chunk:
            deal = Deal("situation", "situation", 0, scenario.seats, "eval", options=start.options)
            episode = Episode(scenario.game.build(), deal, player.casting)
            for action in actions:
                # An agent that moves at once with others decides before it could know their moves.
                info = episode.game.infos.get(situation.agent, {})
                if info.get("state") == situation.state and not situation.attempt:
                    break
                episode.force_action(action)
            episodes.append(episode)
        results = player.search_next_moves(episodes, [situation.agent for situation, _ in chunk])
        for (situation, _), result in zip(chunk, results, strict=True):
            strategy[situation] = _move_probabilities(result, search.settings)
    metrics: Metrics = {"eval/nashconv": nash_conv(tree, strategy)}
    for agent, value in expected_returns(tree, strategy).items():
        metrics[f"eval/value/{agent}"] = value
    return metrics


def _move_probabilities(result: SearchResult, settings: SearchSettings) -> dict[str, float]:
    """Return move -> probability of playing the move after a search with `result`."""
    if settings.temperature == 0 and not result.is_mixed:
        return dict.fromkeys(result.moves, 0.0) | {result.chosen_move: 1.0}
    return dict(zip(result.moves, search_policy_target(result, settings), strict=True))
