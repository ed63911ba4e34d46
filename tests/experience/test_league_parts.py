"""Parts of a league: who is a member, who is met, and what is known of results. Numbers are from the papers."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from marl.experience.league.matchmaking import (
    entropy,
    latest_opponent_probabilities,
    pfsp_even_probabilities,
    pfsp_probabilities,
    psro_probabilities,
    systematic_sample,
    uniform_opponent_probabilities,
)
from marl.experience.league.pool import PolicyPool, PoolMember
from marl.experience.league.results import MeanPayoffTable, RecentGameResults
from marl.runs.snapshots import PolicySnapshots
from marl.scenario.load import ScenarioError, validate
from tests.support.league_scenarios import LEAGUE, league, with_exploiter


def test_prioritised_fictitious_self_play_prefers_those_that_it_loses_to() -> None:
    # f_hard(x) = (1 - x)^p and f_var(x) = x (1 - x) of AlphaStar's supplement, worked out by hand.
    assert pfsp_probabilities([0.0, 0.5, 1.0], 2.0) == pytest.approx([4 / 5, 1 / 5, 0])
    assert pfsp_probabilities([0.25, 0.75], 1.0) == pytest.approx([3 / 4, 1 / 4])
    assert pfsp_even_probabilities([0.0, 0.5, 0.75]) == pytest.approx([0, 4 / 7, 3 / 7])
    assert (
        pfsp_probabilities([1.0, 1.0], 2.0)
        == pfsp_even_probabilities([0.0, 1.0])
        == uniform_opponent_probabilities(2)
        == [0.5, 0.5]
    )
    assert latest_opponent_probabilities(3) == [0, 0, 1]


def test_the_meta_strategy_of_a_pool_that_goes_in_circles_is_its_equilibrium() -> None:
    assert psro_probabilities([[0, -25, 50], [25, 0, -5], [-50, 5, 0]]) == pytest.approx([1 / 16, 10 / 16, 5 / 16])
    assert psro_probabilities([[0, -1], [1, 0]]) == pytest.approx([0, 1])
    assert entropy(uniform_opponent_probabilities(8)) == pytest.approx(2.0794415)
    assert str(entropy(latest_opponent_probabilities(2))) == "0.0"


def test_what_is_shared_out_is_never_one_more_or_less_than_its_share() -> None:
    weights = [0.5, 0.0, 0.3, 0.2]
    totals = Counter[str]()
    for step in range(100):
        drawn = systematic_sample("abcd", weights, 16, step / 100)
        assert drawn == sorted(drawn)
        for choice, weight in zip("abcd", weights, strict=True):
            assert abs(drawn.count(choice) - 16 * weight) < 1
        totals.update(drawn)
    assert totals == {"a": 800, "c": 480, "d": 320}


def test_a_full_pool_stays_spread_over_the_run() -> None:
    pool = PolicyPool(keep=5)
    for version in range(0, 1000, 10):
        pool.add_member("actor", version)
    members = [member.version for member in pool.members()]
    assert len(members) == 5
    assert (members[0], members[-1]) == (0, 990)
    gaps = [later - earlier for earlier, later in pairwise(members)]
    assert max(gaps) <= 4 * min(gaps[:-1]), members
    assert pool.member_versions_after_step("actor", 990) == tuple(members)
    again = PolicyPool(keep=5)
    again.restore_versions(pool.saved_versions)
    assert again.members() == pool.members()
    assert again.member_versions_after_step("actor", 40) == (0, 10, 20, 30, 40)


def test_members_are_named_as_deals_name_policies() -> None:
    pool = PolicyPool(keep=2)
    pool.add_member("main", 0)
    pool.add_member("exploiter", 20)
    assert [member.name for member in pool.members()] == ["main@000000", "exploiter@000020"]
    assert pool.members(["main"]) == [PoolMember("main", 0)]


def test_win_rates_forget_what_is_long_ago() -> None:
    results = RecentGameResults(decay=0.5)
    assert [record.win_rate for record in results.results_against("actor", ["a@000001"])] == [0.5]
    for margin in (1.0, 0.0, -3.0):  # a win, a draw, a loss: (1/4 + 1/2 x 1/2) / (1/4 + 1/2 + 1)
        results.add_game_result("actor", "a@000001", margin)
    assert results.results_against("actor", ["a@000001"])[0].win_rate == pytest.approx(0.5 / 1.75)
    results.delete_results_except(["b"])
    assert results.results_against("actor", ["a@000001"])[0].games == 0


def test_payoffs_of_the_pool_are_antisymmetric_means_and_the_newest_pairs_come_first() -> None:
    payoffs, names = MeanPayoffTable(), ["a", "b", "c"]
    assert list(payoffs.pairs_without_games(names)) == [("b", "c"), ("a", "c"), ("a", "b")]
    payoffs.add_game_result("a", "b", 1.0)
    payoffs.add_game_result("a", "b", -4.0)
    assert list(payoffs.pairs_without_games(names)) == [("b", "c"), ("a", "c")]
    assert payoffs.payoff_matrix(names) == [[0, -1.5, 0], [1.5, 0, 0], [0, 0, 0]]
    payoffs.delete_results_except(["b", "c"])
    assert payoffs.payoff_matrix(names) == [[0] * 3] * 3


def test_files_of_later_steps_and_half_written_ones_are_cut(tmp_path: Path) -> None:
    def save(folder: Path) -> None:
        (folder / "model").write_text("weights")

    snapshots = PolicySnapshots(tmp_path)
    for version in (0, 5, 10):
        snapshots.write_version("actor", version, save)
    (tmp_path / "league" / "actor" / ".000015.part").mkdir()
    snapshots.remove_versions_after_step(5)
    assert snapshots.saved_versions("actor") == [0, 5]
    snapshots.remove_versions_except("actor", {5})
    assert [path.name for path in (tmp_path / "league" / "actor").iterdir()] == ["000005"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"opponent": "nobody"}, "experience.opponent: no seat has the role 'nobody'"),
        ({"players": {"plaier": {}}}, "players.plaier: no role of this name learns; did you mean 'player'"),
        ({"players": {"player": {"opponents": {"minimax": 1}}}}, "opponents.minimax: no such opponent; .*nash"),
        ({"players": {"player": {"opponents": {"self": 0}}}}, "no opponent has a weight above 0"),
        ({"players": {"player": {"pool": ["actr"]}}}, "pool: 'actr' is no policy of a player; did you mean 'actor'"),
        ({"players": {"player": {"by": "psro"}}}, "set experience.resident: 2"),
        ({"players": {"player": {"reset": {}}}}, "every and win_rate are both null"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ScenarioError, match=says):
        validate(league(**change))


def test_opponents_that_would_be_trained_and_players_that_share_a_policy_are_refused() -> None:
    trained = league()
    trained["roles"]["opponent"] |= {"trainable": True}
    with pytest.raises(ScenarioError, match=r"roles\.opponent is trained .* set trainable: false"):
        validate(trained)
    shared = with_exploiter()
    shared["roles"]["exploiter"] = shared["roles"]["player"]
    with pytest.raises(ScenarioError, match="speaks with policy 'actor', as another player does"):
        validate(shared)


def test_a_league_of_one_player_needs_no_settings() -> None:
    scenario = league()
    scenario["experience"] = LEAGUE
    assert list(validate(scenario).experience.players) == ["player"]  # type: ignore[attr-defined]


def test_payoffs_are_refined_where_the_support_lies_and_games_are_few() -> None:
    payoffs = MeanPayoffTable()
    for row, column, games in (("a", "b", 8), ("a", "c", 2), ("b", "c", 4), ("a", "d", 1)):
        for _ in range(games):
            payoffs.add_game_result(row, column, 1.0)
    # Worth: a-b .5 * .25 / 8, a-c .5 * .25 / 2, b-c .25 * .25 / 4; d is never met.
    assert payoffs.pairs_by_worth({"a": 0.5, "b": 0.25, "c": 0.25, "d": 0.0}) == [("a", "c"), ("a", "b"), ("b", "c")]
    assert (payoffs.games_of("a", "b"), payoffs.games_of("c", "d")) == (8, 0)
