"""Tournaments of scripted players, whose scores are known; and how many players are in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial

import pytest

from marl.core.zero_sum import nash_equilibrium
from marl.engines.scripted import Always, Random, ScriptedConfig
from marl.evaluation.cross_play import MAX_LOADED_PLAYERS, Engines, Tournament, TournamentPlayer, pairs_in_loading_order
from marl.evaluation.cross_table import CrossPlayTable, PairScore
from marl.evaluation.game_tree import InformationState, build_game_tree, expected_returns
from marl.games.kuhn_poker import KuhnEquilibrium, KuhnPokerConfig
from marl.roles.answering import PlayerRole
from marl.rollout.casting import RoleRequestBuilder
from marl.rollout.simulator import RolloutSimulator
from marl.scenario.load import validate
from marl.scenario.schema import Scenario
from tests.support.small_games import PAIR

PLAYERS: dict[str, ScriptedConfig] = {"nash": KuhnEquilibrium(), "random": Random(), "calls": Always(move="call")}


def scenario(game: Mapping[str, object], seats: tuple[str, ...]) -> Scenario:
    return validate(
        {
            "game": game,
            "seats": dict.fromkeys(seats, "player"),
            "roles": {"player": {"kind": "player", "policy": "actor"}},
            "policies": {"actor": {"engine": {"kind": "random"}}},
            "schedule": {"steps": 1, "groups": 1, "group_size": 1},
        },
        "test",
        to_train=False,
    )


def entrant(name: str, script: ScriptedConfig, seats: tuple[str, ...] = PAIR) -> TournamentPlayer:
    def engines() -> Engines:
        return {name: script.build(None)}

    return TournamentPlayer(name, dict.fromkeys(seats, PlayerRole(policy=name)), engines, name)


def tournament(played: Scenario, scripts: Mapping[str, ScriptedConfig], starts: int) -> Tournament:
    entrants = [entrant(name, script, tuple(played.seats)) for name, script in scripts.items()]
    simulator = partial(RolloutSimulator, played.game, RoleRequestBuilder({}, 0))
    return Tournament(played, entrants, starts, 0, simulator)


def table(met: Tournament, **facts: bool) -> CrossPlayTable:
    return CrossPlayTable([entrant.name for entrant in met.entrants], dict(met.play_pairs(met.pairs)), **facts)


@pytest.fixture(scope="module")
def kuhn() -> CrossPlayTable:
    met = tournament(scenario({"kind": "kuhn_poker"}, PAIR), PLAYERS, 300)
    return table(met, zero_sum=True, two_seats=True)


def exact(row: ScriptedConfig, column: ScriptedConfig) -> float:
    """Mean over both seats of what `row` is paid, by walking the game."""
    tree = build_game_tree(
        KuhnPokerConfig(), RoleRequestBuilder({"player": PlayerRole(policy="actor")}, 0), dict.fromkeys(PAIR, "player")
    )

    def paid(seat: str) -> float:
        def moves(situation: InformationState) -> Mapping[str, float]:
            script = row if situation.agent == seat else column
            return script.move_probabilities(situation.state, tuple(tree.requests[situation].options or ()))

        return expected_returns(tree, {situation: moves(situation) for situation in tree.requests})[seat]

    return sum(map(paid, PAIR)) / 2


def test_scores_of_scripted_players_are_the_exact_ones_within_their_intervals(kuhn: CrossPlayTable) -> None:
    for row, script in enumerate(PLAYERS.values()):
        for column, other in enumerate(PLAYERS.values()):
            cell = kuhn.score_matrix[row][column]
            if row == column:
                assert cell is None  # known to be 0
            else:
                assert cell is not None
                assert cell.mean_low <= exact(script, other) <= cell.mean_high
                assert cell.win + cell.draw + cell.loss == pytest.approx(1)


def test_what_one_player_wins_the_other_one_loses(kuhn: CrossPlayTable) -> None:
    cell, reverse = kuhn.score_matrix[0][1], kuhn.score_matrix[1][0]
    assert cell is not None
    assert reverse is not None
    assert (cell.mean, cell.win, cell.win_high) == (-reverse.mean, reverse.loss, reverse.loss_high)


def test_the_equilibrium_of_the_table_plays_the_equilibrium_of_the_game(kuhn: CrossPlayTable) -> None:
    assert kuhn.nash_mixture is not None
    assert (
        kuhn.nash_mixture.tolist()
        == nash_equilibrium([[c.mean if c else 0.0 for c in row] for row in kuhn.score_matrix]).row.tolist()
    )
    assert kuhn.nash_mixture[0] > 0.9
    assert len(kuhn.ratings) == 3


def test_a_tournament_is_the_same_every_time_and_pairs_do_not_depend_on_who_else_plays() -> None:
    played = scenario({"kind": "kuhn_poker"}, PAIR)
    whole = dict(tournament(played, PLAYERS, 5).play_pairs([(0, 1), (0, 2)]))
    alone = dict(tournament(played, {name: PLAYERS[name] for name in ("nash", "random")}, 5).play_pairs([(0, 1)]))
    assert whole[0, 1] == alone[0, 1]
    assert len(whole[0, 1]) == 5
    assert {len(episodes) for episodes in whole[0, 1]} == {2}


def test_in_a_team_game_players_meet_themselves_and_with_three_seats_each_is_alone_among_the_others() -> None:
    moves = {"a": Always(move="a"), "b": Always(move="b")}
    pair = tournament(scenario({"kind": "matrix", "table": "matching"}, ("agent_0", "agent_1")), moves, 2)
    assert [
        [cell.mean for cell in row if cell] for row in table(pair, zero_sum=False, two_seats=True).score_matrix
    ] == [
        [1, 0],
        [0, 1],
    ]
    # AND of three: 1 if all play b.
    trio = tournament(scenario({"kind": "matrix", "table": "and"}, ("agent_0", "agent_1", "agent_2")), moves, 2)
    found = table(trio, zero_sum=False, two_seats=False)
    assert len(trio.pairs) == 4
    assert [[cell.mean for cell in row if cell] for row in found.score_matrix] == [[0, 0], [0, 1]]
    assert found.no_ratings_reason is not None
    assert "more than two seats" in found.no_ratings_reason
    assert (found.ratings, found.nash_mixture) == ([], None)


def test_few_players_are_loaded_and_at_most_three_are_in_memory() -> None:
    played, loads, alive = scenario({"kind": "kuhn_poker"}, PAIR), Counter[int](), Counter[int]()
    most = 0

    class Weights(dict[str, object]):
        def __init__(self, number: int) -> None:
            super().__init__(Random=Random().build(None))
            self.number = number
            loads[number] += 1
            alive[number] += 1

        def __del__(self) -> None:
            alive[self.number] -= 1

    roles = dict.fromkeys(PAIR, PlayerRole(policy="Random"))
    entrants = [TournamentPlayer(str(n), roles, partial(Weights, n), str(n)) for n in range(8)]  # type: ignore[arg-type]
    met = Tournament(played, entrants, 1, 0, partial(RolloutSimulator, played.game, RoleRequestBuilder({}, 0)))
    for _ in met.play_pairs(met.pairs):
        most = max(most, alive.total())
    assert most == MAX_LOADED_PLAYERS
    assert loads.total() <= 8 + 8 * 8 // 4
    assert sorted(pairs_in_loading_order(met.pairs)) == met.pairs


def test_intervals_are_over_starts_as_episodes_from_one_may_go_alike() -> None:
    alike = PairScore.from_episodes([[(1.0, -1.0), (1.0, -1.0)], [(-1.0, 1.0), (-1.0, 1.0)]])
    # Two starts: standard deviation sqrt(2), standard error 1.
    assert (alike.mean, alike.mean_high) == (0.0, pytest.approx(1.959964, abs=1e-6))
    # Wilson 1927 for 1 of 2.
    assert (alike.win_low, alike.win_high) == (pytest.approx(0.0945, abs=1e-4), pytest.approx(0.9055, abs=1e-4))
    assert PairScore.from_episodes([[(1.0, -1.0)], []]).mean == 1.0
