"""Mixtures of strategies: worth what their parts are worth, and the same as OpenSpiel's."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyspiel
import pytest
from open_spiel.python import policy as spiel_policy
from open_spiel.python.algorithms import fictitious_play
from open_spiel.python.algorithms.get_all_states import get_all_states
from open_spiel.python.algorithms.policy_aggregator import PolicyAggregator

from marl.engines.scripted import Random
from marl.evaluation.game_tree import GameTree, Strategy, build_game_tree, expected_returns, nash_conv
from marl.evaluation.mixtures import RunningStrategyMixture, mix_strategies
from marl.experience.league.matchmaking import uniform_opponent_probabilities
from marl.games.kuhn_poker import KuhnPokerConfig
from tests.support.small_games import make_simulator


def kuhn(**illegal: Any) -> GameTree:
    game = KuhnPokerConfig.model_validate({"illegal": illegal})
    return build_game_tree(
        game, make_simulator(game, Random().build(None)).casting, dict.fromkeys(("player_0", "player_1"), "player")
    )


def drawn(tree: GameTree, rng: random.Random, legal: float = 1.0) -> Strategy:
    """Any strategy, in a third of the situations a pure one, with this probability of a legal move."""
    rows = {}
    for situation, request in tree.requests.items():
        first = rng.choice([0.0, 1.0, rng.random(), rng.random(), rng.random(), rng.random()])
        rows[situation] = dict(zip(request.options or (), (legal * first, legal * (1 - first)), strict=True))
    return rows


def facing(own: Strategy, opponent: Strategy, agent: str) -> Strategy:
    return {situation: (own if situation.agent == agent else opponent)[situation] for situation in own}


@pytest.mark.parametrize(
    ("illegal", "legal"),
    [({}, 1.0), ({}, 0.8), ({"then": "penalty"}, 0.8), ({"then": "random"}, 0.7), ({"retry": 2, "penalty": 1.5}, 0.6)],
    ids=str,
)
def test_a_mixture_is_worth_the_weighted_mean_of_its_parts_against_any_opponent(
    illegal: Mapping[str, Any], legal: float
) -> None:
    tree, rng, weights = kuhn(**illegal), random.Random(3), (0.5, 2.0, 0.0, 1.5)
    parts = [drawn(tree, rng, legal) for _ in weights]
    mixed = mix_strategies(tree, parts, weights)
    for opponent in (drawn(tree, rng, legal) for _ in range(5)):
        for agent in tree.agents:
            each = [expected_returns(tree, facing(part, opponent, agent))[agent] for part in parts]
            expected = np.dot(weights, each) / sum(weights)
            assert expected_returns(tree, facing(mixed, opponent, agent))[agent] == pytest.approx(expected, abs=1e-12)


def spiel_key(state: str) -> str:
    """`K check bet` -> OpenSpiel's `2pb`."""
    card, *betting = state.split(" ")
    return str("JQK".index(card)) + "".join(move[0].replace("c", "p") for move in betting)


def spiel_rows(strategies: Sequence[Strategy]) -> list[spiel_policy.TabularPolicy]:
    tables = []
    for strategy in strategies:
        player = spiel_policy.TabularPolicy(pyspiel.load_game("kuhn_poker"))
        for situation, moves in strategy.items():
            player.action_probability_array[player.state_lookup[spiel_key(situation.state)]] = list(moves.values())
        tables.append(player)
    return tables


@pytest.mark.parametrize("seed", range(5))
def test_a_mixture_is_openspiels(seed: int) -> None:
    tree, rng, weights = kuhn(), random.Random(seed), [0.2, 0.5, 0.3]
    parts = [{s: {m: 0.9 * p + 0.05 for m, p in row.items()} for s, row in drawn(tree, rng).items()} for _ in weights]
    rows = spiel_rows(parts)
    theirs = PolicyAggregator(pyspiel.load_game("kuhn_poker")).aggregate([0, 1], [rows, rows], [weights, weights])
    for situation, moves in mix_strategies(tree, parts, weights).items():
        expected = theirs.policy[tree.agents.index(situation.agent)][spiel_key(situation.state)]
        assert list(moves.values()) == pytest.approx([expected[0], expected[1]], abs=1e-12)


def test_all_earlier_best_responses_alike_are_the_average_of_openspiels_fictitious_play() -> None:
    solver = fictitious_play.XFPSolver(pyspiel.load_game("kuhn_poker"), save_oracles=True)
    for _ in range(20):
        solver.iteration()
    states = {s.information_state_string(): s for s in get_all_states(solver._game).values() if not s.is_terminal()}
    tree, members = kuhn(), list[Strategy]()
    assert solver._oracles is not None
    for nth in range(21):  # the first is uniform play
        rows = {s: solver._oracles[tree.agents.index(s.agent)][nth](states[spiel_key(s.state)]) for s in tree.requests}
        moves = {s: request.options or () for s, request in tree.requests.items()}
        members.append({s: dict(zip(moves[s], (p for _, p in sorted(row)), strict=True)) for s, row in rows.items()})
    average = mix_strategies(tree, members, uniform_opponent_probabilities(len(members)))
    for situation, row in average.items():
        expected = solver.average_policy_tables()[tree.agents.index(situation.agent)][spiel_key(situation.state)]
        assert list(row.values()) == pytest.approx([expected[0], expected[1]], abs=1e-9)
    assert nash_conv(tree, average) < nash_conv(tree, members[0]) / 4


def test_where_no_part_leads_its_moves_are_averaged_by_weight() -> None:
    tree = kuhn()
    bold = {s: {m: float(m in ("bet", "call")) for m in r.options or ()} for s, r in tree.requests.items()}
    bluff = {s: bold[s] if s.state[1:] != " check bet" else {"fold": 1.0, "call": 0.0} for s in bold}
    mixed = mix_strategies(tree, [bold, bluff], [3, 1])
    assert {s.state: row for s, row in mixed.items()}["K check bet"] == {"fold": 0.25, "call": 0.75}


def test_a_mixture_of_nothing_and_negative_weights_are_refused() -> None:
    tree = kuhn()
    with pytest.raises(ValueError, match="needs a strategy whose weight is above 0"):
        mix_strategies(tree, [drawn(tree, random.Random(0))], [0.0])
    with pytest.raises(ValueError, match=r"weight -1\.0: a strategy's weight in a mixture is a number of at least 0"):
        RunningStrategyMixture(tree).add_strategy(drawn(tree, random.Random(0)), -1.0)
