"""Exact figures of policies with search, from one run of the search in every information state of a game."""

from __future__ import annotations

import math
from statistics import fmean

from marl.core.types import Deal, Metrics
from marl.evaluation.evaluate import positions_with_suboptimal_moves, searching_roles_and_seats
from marl.evaluation.game_tree import InformationState, build_game_tree, expected_returns, nash_conv
from marl.rollout.base import BaseSimulator
from marl.rollout.episode import Episode
from marl.scenario.schema import Scenario
from marl.search.mcts import SearchResult
from marl.search.play import SearchPlayer, search_policy_target
from marl.search.settings import SearchSettings


def exact_search_metrics(scenario: Scenario, simulator: BaseSimulator, search: SearchSettings) -> Metrics:
    """Return NashConv, values and the probability of an optimal move of the scenario's policies with `search`.

    NashConv and values need a game that exports its starts, and the probability needs exported optimal moves. The
    search runs once per information state, so other random numbers give other figures.
    """
    game, metrics = scenario.game, Metrics()
    player = SearchPlayer(simulator, search, searching_roles_and_seats(scenario))
    if game.all_start_states() is not None:
        tree = build_game_tree(game, simulator.casting, scenario.seats)
        episodes: list[Episode] = []
        for situation, (start, actions) in tree.histories.items():
            deal = Deal("situation", "situation", 0, scenario.seats, "eval", options=start.options)
            episode = Episode(game.build(), deal, simulator.casting)
            for action in actions:
                # An agent that moves at once with others decides before it could know their moves.
                if (
                    episode.game.infos.get(situation.agent, {}).get("state") == situation.state
                    and not situation.attempt
                ):
                    break
                episode.force_action(action)
            episodes.append(episode)
        agents = [situation.agent for situation in tree.histories]
        strategy: dict[InformationState, dict[str, float]] = {}
        for situation, result in zip(tree.histories, player.search_next_moves(episodes, agents), strict=True):
            strategy[situation] = _move_probabilities(result, search)
        metrics["eval/nashconv"] = nash_conv(tree, strategy)
        for agent, value in expected_returns(tree, strategy).items():
            metrics[f"eval/value/{agent}"] = value
    positions = list(positions_with_suboptimal_moves(game, simulator.casting, scenario.seats))
    if positions:
        probabilities: list[float] = []
        results = player.search_next_moves([episode for episode, _ in positions])
        for result, (_, optimal_moves) in zip(results, positions, strict=True):
            policy = _move_probabilities(result, search)
            probabilities.append(math.fsum(map(policy.__getitem__, optimal_moves)))
        metrics["eval/optimal"] = fmean(probabilities)
    return metrics


def _move_probabilities(result: SearchResult, settings: SearchSettings) -> dict[str, float]:
    """Return move -> probability of playing the move after a search with `result`."""
    if settings.temperature == 0 and not result.is_mixed:
        return dict.fromkeys(result.moves, 0.0) | {result.chosen_move: 1.0}
    return dict(zip(result.moves, search_policy_target(result, settings), strict=True))
