"""Shapley values, against published ones and by playing real coalitions."""

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from statistics import fmean
from typing import Any

import pytest
from pydantic import ValidationError

from marl.core.types import CompletionFailure, Credit, Request
from marl.credit.assign.counterfactual import Shapley
from marl.credit.assign.shapley import (
    Coalition,
    all_coalitions,
    arc_coalitions,
    random_circular_orders,
    sampled_shapley_values,
    shapley_values,
)
from marl.games.hint import HintConfig
from marl.games.matrix_games import CoalitionConfig, MatrixConfig, TwoStepConfig
from marl.roles.answering import PlayerRole
from tests.support.counterfactual_rollouts import (
    assign_credit,
    episodes,
    first_advantages,
    fixed_moves_engine,
    play_joint_move,
    scripted_simulator,
)
from tests.support.small_games import CircleConfig, FunctionEngine, make_deal, make_simulator, random_move

COMMON: dict[str, Any] = {"common": "mean", "default": "out"}
"""The coalition game pays all alike; who is muted stays out."""

TABLES: dict[str, tuple[dict[str, Any], Sequence[float]]] = {
    "majority of 3": ({"preset": "majority"}, (1 / 3, 1 / 3, 1 / 3)),
    "glove L, R, R": ({"preset": "glove"}, (2 / 3, 1 / 6, 1 / 6)),
    "quota 6, weights 4 3 2 1": ({"preset": "voting"}, (5 / 12, 1 / 4, 1 / 4, 1 / 12)),
    "quota 51, weights 50 49 1": ({"preset": "veto"}, (2 / 3, 1 / 6, 1 / 6)),
    "quota 51, weights 40 22 30 9": ({"preset": "dummy"}, (1 / 3, 1 / 3, 1 / 3, 0)),
    "airport, costs 1 2 3": ({"preset": "airport"}, (1 / 3, 5 / 6, 11 / 6)),
    "additive: own value": ({"preset": "additive"}, (1, 2, 3)),
    "and of 3": ({"weights": [1, 1, 1], "quota": 3}, (1 / 3, 1 / 3, 1 / 3)),
    "or of 3": ({"weights": [1, 1, 1], "quota": 1}, (1 / 3, 1 / 3, 1 / 3)),
}


@pytest.mark.parametrize("name", TABLES)
def test_published_values_come_out_of_real_play_without_a_token(name: str) -> None:
    settings, known = TABLES[name]
    game = CoalitionConfig(**settings)
    simulator, trajectory = play_joint_move(game, ["in"] * len(known))
    spent = dict(simulator.tokens)
    credit, metrics = assign_credit(Shapley(**COMMON), simulator, trajectory)
    assert [credit[turn.id].value for turn in trajectory.turns] == pytest.approx(known, abs=1e-12)
    assert dict(simulator.tokens) == spent
    assert metrics == {"credit/plays": 2 ** len(known) - 1, "credit/standard_error": 0.0, "credit/nobody": 0.0}


@pytest.mark.parametrize("name", ["and", "or"])
def test_three_whose_bits_are_joined_share_alike(name: str) -> None:
    simulator, trajectory = play_joint_move(MatrixConfig(table=name), "bbb")
    credit, _ = assign_credit(Shapley(common="mean", default="a"), simulator, trajectory)
    assert [credit[turn.id].value for turn in trajectory.turns] == pytest.approx([1 / 3] * 3, abs=1e-12)


def test_who_does_what_the_absent_do_is_worth_nothing() -> None:
    game = CoalitionConfig(preset="glove")
    simulator, trajectory = play_joint_move(game, ["in", "out", "in"])
    credit, _ = assign_credit(Shapley(**COMMON), simulator, trajectory)
    assert [credit[turn.id].value for turn in trajectory.turns] == pytest.approx([1 / 2, 0, 1 / 2], abs=1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_values_sum_to_what_all_are_worth_minus_what_nobody_is(seed: int) -> None:
    rng = random.Random(seed)
    agents = rng.randint(2, 6)
    values = tuple(rng.uniform(-5, 5) for _ in range(2**agents))
    game = CoalitionConfig(values=values)
    simulator, trajectory = play_joint_move(game, ["in"] * agents)
    credit, metrics = assign_credit(Shapley(**COMMON), simulator, trajectory)
    paid = trajectory.returns["agent_0"]
    assert metrics["credit/nobody"] == pytest.approx(values[0], abs=1e-12)
    assert sum(first_advantages(credit, trajectory).values()) == pytest.approx(
        paid - metrics["credit/nobody"], abs=1e-9
    )


def test_it_is_the_mean_marginal_contribution_over_all_orders() -> None:
    players, rng = "abcde", random.Random(4)
    worths = {coalition: rng.uniform(-1, 1) for coalition in all_coalitions(players)}
    orders = list(permutations(players))
    added = dict.fromkeys(players, 0.0)
    for order in orders:
        for place, player in enumerate(order):
            before = frozenset(order[:place])
            added[player] += (worths[before | {player}] - worths[before]) / len(orders)
    assert shapley_values(players, worths) == pytest.approx(added, abs=1e-12)


# --- more agents than can be enumerated -------------------------------------------------------------------------------

TEN = tuple(map(str, range(10)))


def ten_values() -> tuple[float, ...]:
    """What each of the 1,024 coalitions of ten is worth: something of its own, and something of who is in."""
    rng = random.Random(0)
    return tuple(rng.uniform(-1, 1) + sum(i / 10 for i in range(10) if c >> i & 1) for c in range(1024))


def ten() -> dict[Coalition, float]:
    values = ten_values()
    return {coalition: values[sum(1 << int(player) for player in coalition)] for coalition in all_coalitions(TEN)}


def test_random_orders_come_close_to_the_exact_values_of_ten_agents() -> None:
    simulator, trajectory = play_joint_move(CoalitionConfig(values=ten_values()), ["in"] * 10)
    spent = dict(simulator.tokens)
    exact = {f"agent_{player}": value for player, value in shapley_values(TEN, ten()).items()}
    rule = Shapley(**COMMON, orders=6)
    credit, metrics = assign_credit(rule, simulator, trajectory, seed=11)
    values = first_advantages(credit, trajectory)
    assert sum(values.values()) == pytest.approx(trajectory.returns["agent_0"] - metrics["credit/nobody"], abs=1e-9)
    errors = [abs(value - exact[agent]) for agent, value in values.items()]
    assert 0 < max(errors) <= 4 * metrics["credit/standard_error"], "what is stated is the mean error of the ten"
    assert 0.4 <= fmean(errors) / metrics["credit/standard_error"] <= 1.6
    assert metrics["credit/plays"] < 6 * 10 * 9 + 1, "what circles have in common is played once"
    assert dict(simulator.tokens) == spent
    assert assign_credit(rule, simulator, trajectory, seed=11)[0] == credit
    assert assign_credit(rule, simulator, trajectory, seed=12)[0] != credit


@pytest.mark.parametrize("seed", range(5))
def test_each_estimate_of_ten_is_within_four_of_its_own_standard_errors(seed: int) -> None:
    worths = ten()
    exact = shapley_values(TEN, worths)
    estimates = sampled_shapley_values(random_circular_orders(TEN, 32, seed), worths)
    for player, estimate in estimates.items():
        assert abs(estimate.value - exact[player]) <= 4 * estimate.error
    assert sum(estimate.value for estimate in estimates.values()) == pytest.approx(sum(exact.values()), abs=1e-9)


def test_the_stated_error_is_the_spread_that_is_seen() -> None:
    worths = ten()
    exact, squares, stated = shapley_values(TEN, worths), [], []
    for seed in range(100):
        estimates = sampled_shapley_values(random_circular_orders(TEN, 4, seed), worths)
        squares.append(fmean((estimates[player].value - exact[player]) ** 2 for player in TEN))
        stated.append(fmean(estimates[player].error ** 2 for player in TEN))
    assert fmean(squares) == pytest.approx(fmean(stated), rel=0.15)


def test_a_circle_holds_all_orders_that_go_round_it_either_way() -> None:
    circle = tuple("cadbe")
    around = [circle[start:] + circle[:start] for start in range(5)]
    orders = around + [order[::-1] for order in around]
    met = {Coalition(order[:place]) for order in orders for place in range(6)}
    assert set(arc_coalitions(circle)) == met
    assert len(list(arc_coalitions(circle))) == len(met) == 5 * 4 + 2
    rng = random.Random(1)
    worths = {coalition: rng.uniform(-1, 1) for coalition in all_coalitions(circle)}
    estimates = sampled_shapley_values([circle, circle], worths)
    for player in circle:
        before = [Coalition(order[: order.index(player)]) for order in orders]
        assert estimates[player].value == pytest.approx(
            fmean(worths[s | {player}] - worths[s] for s in before), abs=1e-12
        )
        assert estimates[player].error == 0.0


@pytest.mark.parametrize("quota", [1, 6, 11])
def test_those_who_are_all_alike_get_the_same_from_any_circle(quota: int) -> None:
    players = [str(number) for number in range(11)]
    circles = random_circular_orders(players, 2, quota)
    worths = {arc: float(len(arc) >= quota) for circle in circles for arc in arc_coalitions(circle)}
    for estimate in sampled_shapley_values(circles, worths).values():
        assert estimate.value == pytest.approx(1 / 11, abs=1e-12)
        assert estimate.error == pytest.approx(0, abs=1e-12)


def test_up_to_exact_agents_all_coalitions_are_played_and_above_it_orders_are_drawn() -> None:
    game = CoalitionConfig(values=tuple(float(c**2 % 7) for c in range(16)))
    simulator, trajectory = play_joint_move(game, ["in"] * 4)
    random_move, few = assign_credit(Shapley(**COMMON, exact=3, orders=60), simulator, trajectory)
    whole, all_ = assign_credit(Shapley(**COMMON, exact=4), simulator, trajectory)
    assert few["credit/standard_error"] > 0 == all_["credit/standard_error"]
    assert few["credit/plays"] == all_["credit/plays"] == 15, "no coalition is played twice"
    assert random_move != whole
    for turn in trajectory.turns:
        assert random_move[turn.id].value == pytest.approx(whole[turn.id].value, abs=6 * few["credit/standard_error"])


@pytest.mark.parametrize("settings", [{"orders": 1}, {"exact": -1}, {"samples": 0}, {"split": "none"}])
def test_settings_that_mean_nothing_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Shapley.model_validate(settings)


# --- several turns, listeners, luck ----------------------------------------------------------------------------------


def test_every_turn_gets_its_agents_value_or_an_equal_share_of_it() -> None:
    game = TwoStepConfig()
    voice = FunctionEngine(lambda request: (request.options or {})["b"])
    simulator = make_simulator(game, voice)
    [trajectory] = simulator.play([make_deal("e", game)])
    # All b: 8. Without agent_0 the game goes to 2A: 7, as with nobody. Without agent_1, row b of 2B: 1.
    known = {"agent_0": (8 - 7 + 1 - 7) / 2, "agent_1": (8 - 1 + 7 - 7) / 2}
    copied, _ = assign_credit(Shapley(common="mean", default="a"), simulator, trajectory)
    shared, metrics = assign_credit(Shapley(common="mean", default="a", split="equal"), simulator, trajectory)
    assert [copied[turn.id].value for turn in trajectory.turns] == [known[turn.agent] for turn in trajectory.turns]
    assert [shared[turn.id].value for turn in trajectory.turns] == [known[turn.agent] / 2 for turn in trajectory.turns]
    assert sum(worth.value for worth in shared.values()) == 8 - metrics["credit/nobody"] == 1


def test_those_who_hear_the_muted_answer_anew_and_are_paid_for_in_tokens() -> None:
    game = HintConfig()

    # The guesser believes what it hears: `one` is red, and silence is blue's.
    def say(request: Request) -> str:
        if "symbol" in request.messages[-1].content:
            return "[one]"
        return "[red]" if "word one" in request.messages[-1].content else "[green]"

    simulator = make_simulator(game, FunctionEngine(say))
    [trajectory] = simulator.play([make_deal("e", game, symbol="red")])
    assert trajectory.returns == {"speaker": 1.0, "guesser": 1.0}
    rule = Shapley(common="mean", default={"speaker": "two", "guesser": "green"})
    credit, metrics = assign_credit(rule, simulator, trajectory)
    # v(both) = 1; whoever is left out, green is guessed: 0.
    assert [credit[turn.id].value for turn in trajectory.turns] == [0.5, 0.5]
    assert simulator.tokens["credit"] == 2, "only the guesser, once, when the speaker is muted"
    assert metrics["credit/plays"] == 3


def test_a_coalition_that_is_played_more_often_is_worth_the_mean() -> None:
    game = HintConfig()
    simulator = scripted_simulator(game)
    [trajectory] = episodes(simulator, game, 1, symbol="red")
    rule = Shapley(common="mean", default={"speaker": "one", "guesser": "red"}, samples=200)
    credit, metrics = assign_credit(rule, simulator, trajectory)
    assert metrics["credit/plays"] == 600
    speaker, guesser = (credit[turn.id].value for turn in trajectory.turns)
    paid = trajectory.returns["speaker"]
    # Without the speaker, the guesser may keep its answer (asked the same) or guesses at random; without the guesser 1.
    assert speaker + guesser == pytest.approx(paid - 1, abs=1e-9)
    assert metrics["credit/nobody"] == 1


def test_only_the_named_roles_are_players_and_the_others_are_always_there() -> None:
    game = CoalitionConfig(values=(0, 1, 10, 15, 100, 105, 120, 127))
    roles = {f"agent_{place}": f"role_{place}" for place in range(3)}
    cast = {role: PlayerRole(policy="actor") for role in roles.values()}
    simulator = make_simulator(game, fixed_moves_engine(dict.fromkeys(roles, "in")), **cast)
    [trajectory] = simulator.play([replace(make_deal("e", game), seats=roles)])
    credit, metrics = assign_credit(Shapley(**COMMON, roles=("role_0", "role_1")), simulator, trajectory)
    # With agent_2 always in, nobody is worth 100, agent_0 105, agent_1 120, both 127.
    assert by_agent_of(credit) == {0: (5 + 7) / 2, 1: (20 + 22) / 2}
    assert metrics == {"credit/plays": 3, "credit/standard_error": 0.0, "credit/nobody": 100.0}
    with pytest.raises(ValueError, match=r"roles: 'role_3' can earn nothing here; did you mean .*role_0"):
        assign_credit(Shapley(**COMMON, roles=("role_3",)), simulator, trajectory)


def by_agent_of(credit: Credit) -> dict[int, float]:
    """Turn number -> worth."""
    return {index: advantage.value for (_, index), advantage in credit.items()}


def test_teams_are_divided_separately_and_who_took_no_turn_is_no_player() -> None:
    game = CircleConfig(rounds=1)
    simulator = make_simulator(game, FunctionEngine(lambda request: "[stay]"))
    [trajectory] = simulator.play([make_deal("e", game)])
    rule = Shapley(teams=(("player_0", "player_1"),), default="quit")
    credit, metrics = assign_credit(rule, simulator, trajectory)
    # Who quits in the first round is paid 1 instead of 10: each adds 9 to its own team's worth, whoever else is there.
    assert [credit[turn.id].value for turn in trajectory.turns] == [9.0, 9.0, 9.0]
    assert metrics["credit/plays"] == 3 + 1
    assert metrics["credit/nobody"] == (2 + 1) / 2
    first = make_simulator(game, FunctionEngine(lambda request: CompletionFailure("aborted", "gone")))
    [broken] = first.play([make_deal("e", game)])
    assert [turn.agent for turn in broken.turns] == ["player_0"], "a forfeit"
    credit, metrics = assign_credit(Shapley(default="quit"), first, broken)
    assert list(credit) == [broken.turns[0].id]
    assert metrics["credit/plays"] == 1


def test_the_same_step_is_judged_the_same_way_again() -> None:
    game = HintConfig(symbols=3)
    rule = Shapley(common="mean", samples=3, default={"speaker": "one", "guesser": "red"})
    judged = []
    for newest_first in (False, True):
        simulator = make_simulator(game, FunctionEngine(random_move, newest_first=newest_first, batch=2 * newest_first))
        judged.append(assign_credit(rule, simulator, *episodes(simulator, game, 20)))
    assert judged[0] == judged[1]
    assert rule.build().state_dict() == {}
