"""Turns probed by playing on from around them, against values found by walking the whole game."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from itertools import pairwise
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from marl.core.graph import Trajectory
from marl.core.types import Fork, Request, TurnId
from marl.credit.assign.replay import RolloutValueChangeAssign
from marl.engines.scripted import Tabular
from marl.games.hint import HintConfig
from marl.games.kuhn_poker import KuhnPokerConfig
from marl.games.matrix_games import MatrixConfig, TwoStepConfig
from marl.protocols import Evidence, GameConfig
from marl.rollout.simulator import RolloutSimulator
from tests.support.addition_task import team_config, team_deal, team_simulator
from tests.support.counterfactual_rollouts import (
    assign_credit,
    episodes,
    expected_return,
    first_advantages,
    scripted_simulator,
    table_strategy,
)
from tests.support.small_games import (
    PAIR,
    FailingPenniesConfig,
    FunctionEngine,
    PenniesConfig,
    make_deal,
    make_simulator,
    random_move,
)

Rows = Mapping[str, Mapping[str, float]]
Before = Callable[..., list[float]]
HINTS: Rows = {
    "red": {"one": 0.6, "two": 0.3, "three": 0.1},
    "green": {"one": 0.2, "two": 0.5, "three": 0.3},
    "one": {"red": 0.8, "green": 0.1, "blue": 0.1},
    "two": {"red": 0.1, "green": 0.6, "blue": 0.3},
}


def world(game: GameConfig, rows: Rows) -> tuple[RolloutSimulator, Before]:
    """Players with a table, and what a team (default: all) can expect before each turn of an episode and at its end."""
    simulator = scripted_simulator(game, Tabular.model_validate({"table": rows}))
    tree, strategy = table_strategy(simulator, game, rows)
    starts = [list((start.options or {}).values()) for start in game.all_start_states() or ()]

    def before(trajectory: Trajectory, *agents: str) -> list[float]:
        moves = [turn.action or "" for turn in trajectory.turns]
        start = starts.index([trajectory.start]) if len(starts) > 1 else 0
        return [expected_return(tree, moves[:many], strategy, start, agents) for many in range(len(moves) + 1)]

    return simulator, before


def hinted(many: int) -> tuple[RolloutSimulator, Before, list[Trajectory]]:
    game = HintConfig(symbols=3)
    simulator, before = world(game, HINTS)
    return simulator, before, episodes(simulator, game, many)


# --- against the exact values ----------------------------------------------------------------------------------------


def test_the_vine_is_correlated_with_the_exact_advantage() -> None:
    simulator, before, played = hinted(25)
    credit, metrics = assign_credit(RolloutValueChangeAssign(samples=64), simulator, *played)
    judged, known = [], []
    for trajectory in played:
        values = before(trajectory)
        assert values[-1] == sum(trajectory.returns.values())
        judged += [credit[turn.id].value for turn in trajectory.turns]
        known += [after - value for value, after in pairwise(values)]
    assert np.std(known) > 0.25
    assert np.corrcoef(judged, known)[0, 1] > 0.97
    # V of a team that is paid 0 or 2 has a standard deviation of at most 1, and a turn has at most two of them.
    assert max(abs(a - b) for a, b in zip(judged, known, strict=True)) < 4 * np.sqrt(2 / 64)
    assert metrics == {"credit/plays": 2 * 64}


@pytest.mark.parametrize("form", ["vine", "siblings"])
def test_over_many_plays_the_mean_is_the_exact_one(form: str) -> None:
    simulator, before, played = hinted(4)
    rule = RolloutValueChangeAssign.model_validate({"form": form, "samples": 1})
    samples: dict[TurnId, list[float]] = defaultdict(list)
    for _ in range(250):
        for turn, advantage in assign_credit(rule, simulator, *played)[0].items():
            samples[turn].append(advantage.value)
    for trajectory in played:
        values = before(trajectory)
        for turn, value, after in zip(trajectory.turns, values, values[1:], strict=False):
            then = values[-1] if form == "siblings" else after
            assert fmean(samples[turn.id]) == pytest.approx(then - value, abs=4 * np.sqrt(2 / 250))


def test_siblings_are_compared_with_what_the_course_was_paid() -> None:
    simulator, before, played = hinted(12)
    credit, metrics = assign_credit(RolloutValueChangeAssign(form="siblings", samples=64), simulator, *played)
    for trajectory in played:
        values = before(trajectory)
        for turn, value in zip(trajectory.turns, values, strict=False):
            assert credit[turn.id].value == pytest.approx(values[-1] - value, abs=4 / np.sqrt(64))
    assert metrics == {"credit/plays": 2 * 64}


def test_over_the_courses_that_may_follow_siblings_expect_what_the_vine_does() -> None:
    # A speaker's word is worth the same to both, on average over what is guessed.
    simulator, before, played = hinted(150)
    credit, _ = assign_credit(RolloutValueChangeAssign(form="siblings", samples=4), simulator, *played)
    samples: dict[tuple[str, str | None], list[float]] = defaultdict(list)
    known: dict[tuple[str, str | None], float] = {}
    for trajectory in played:
        word, (value, after, _) = trajectory.turns[0], before(trajectory)
        key = trajectory.start, word.action
        samples[key].append(credit[word.id].value)
        known[key] = after - value
    assert len(known) == 9
    for key, worths in samples.items():
        assert fmean(worths) == pytest.approx(known[key], abs=4 * np.sqrt(5 / 4 / len(worths)))


def test_in_a_game_of_opponents_each_is_a_team_of_its_own() -> None:
    game = KuhnPokerConfig()
    simulator, before = world(game, {"K": {"check": 0.2, "bet": 0.8}})
    played = episodes(simulator, game, 8)
    credit, _ = assign_credit(RolloutValueChangeAssign(samples=64, teams=(PAIR[:1], PAIR[1:])), simulator, *played)
    for trajectory in played:
        for turn in trajectory.turns:
            values = before(trajectory, turn.agent)
            index = turn.id[1]
            # The stakes are at most 2, so the standard deviation of each mean is at most 1/4.
            assert credit[turn.id].value == pytest.approx(values[index + 1] - values[index], abs=np.sqrt(2))


def test_what_was_paid_before_drops_out() -> None:
    game = PenniesConfig(rounds=3)
    simulator, _ = world(game, {})
    played = episodes(simulator, game, 3)
    rule = RolloutValueChangeAssign(samples=100, teams=(PAIR[:1], PAIR[1:]))
    credit, _ = assign_credit(rule, simulator, *played)
    for trajectory in played:
        for first, second in zip(trajectory.turns[::2], trajectory.turns[1::2], strict=True):
            assert credit[first.id].value == pytest.approx(0, abs=0.8), "half of the time the other will match it"
            # player_1 loses 1 if they match and wins 1 if not; what is won in other rounds is as in any course.
            assert credit[second.id].value == pytest.approx(-1 if first.action == second.action else 1, abs=0.8)


# --- how much is played ----------------------------------------------------------------------------------------------


def test_states_that_two_turns_or_two_courses_share_are_played_once() -> None:
    game = TwoStepConfig()
    simulator = scripted_simulator(game)
    [trunk] = episodes(simulator, game, 1)
    branches = simulator.play_forks([Fork(trunk, 2, n=3)])[0]
    credit, metrics = assign_credit(RolloutValueChangeAssign(samples=5), simulator, trunk, *branches)
    # Two states that all have in common, then the first of the second step, and the last one, in each of four courses.
    # That third state is another turn's in each course, and only the trunk's is worth less play.
    assert metrics["credit/plays"] * 4 == 5 * (2 + 4 + 4)
    assert set(credit) == {turn.id for course in (trunk, *branches) for turn in course.turns}


def test_only_the_named_roles_are_probed() -> None:
    game = team_config({"role": "planner"}, {"role": "solver", "hears": ["planner"]}, rewards={"solver": {"all": "1"}})
    simulator = team_simulator(game, lambda request: "4")
    [trajectory] = simulator.play([team_deal(game)])
    for role, plays in {"planner": 2 * 3, "solver": 3}.items():
        credit, metrics = assign_credit(RolloutValueChangeAssign(samples=3, roles=(role,)), simulator, trajectory)
        assert first_advantages(credit, trajectory) == {role: 0.0}
        assert metrics == {"credit/plays": plays}
    with pytest.raises(ValueError, match="roles: 'critic' can earn nothing here; choices: planner, solver"):
        assign_credit(RolloutValueChangeAssign(roles=("critic",)), simulator, trajectory)


def test_answers_by_rule_are_not_played_again_where_nothing_else_is_left() -> None:
    game = team_config(
        {"role": "solver", "n": 2},
        {"role": "verifier", "verifies": "solver", "scores": ["correct"]},
        rewards={"solver": {"correct": "own.correct"}},
    )

    def say(request: Request) -> str:
        return "4" if request.seed % 2 else "5"

    simulator = team_simulator(game, say)
    [trajectory] = simulator.play([team_deal(game)])
    part = RolloutValueChangeAssign(samples=40).build()
    spent = simulator.tokens["credit"]
    credit = part(Evidence([trajectory], "team", simulator=simulator, rule_based_roles=frozenset({"verifier"})))
    assert part.metrics() == {"credit/plays": 80}, "before solver_0 and before solver_1; after it, what was paid"
    assert list(first_advantages(credit, trajectory)) == ["solver_1", "solver_0"]
    for turn in trajectory.turns[:2]:
        assert credit[turn.id].value == pytest.approx(0.5 if turn.action == "4" else -0.5, abs=0.5)
    # Each verdict is two of this voice's tokens: (2 solvers + 2 verdicts) and (1 + 2), 40 times.
    assert simulator.tokens["credit"] - spent == 2 * 40 * (4 + 3)


def test_a_team_that_is_paid_the_same_in_any_case_gets_exactly_0() -> None:
    game = MatrixConfig(table=[[0.1, 0.1], [0.1, 0.1]])
    simulator = scripted_simulator(game)
    for form in ("vine", "siblings"):
        credit, _ = assign_credit(
            RolloutValueChangeAssign.model_validate({"form": form}), simulator, *episodes(simulator, game, 5)
        )
        assert {advantage.value for advantage in credit.values()} == {0.0}


def test_a_game_that_breaks_leaves_the_turns_around_without_an_entry() -> None:
    game = FailingPenniesConfig()
    simulator = make_simulator(game, FunctionEngine(lambda request: "[safe]"))
    [trajectory] = simulator.play([make_deal("e", game)])
    simulator.drops.limit = 1000
    broken = make_simulator(game, FunctionEngine(lambda request: "[crack]"))
    broken.drops.limit = 1000
    credit, metrics = assign_credit(RolloutValueChangeAssign(samples=2), broken, trajectory)
    assert (credit, metrics) == ({}, {"credit/plays": 0.0})
    assert len(assign_credit(RolloutValueChangeAssign(samples=2), simulator, trajectory)[0]) == 4


def test_without_a_game_at_hand_nothing_can_be_played() -> None:
    _, _, [trajectory] = hinted(1)
    with pytest.raises(ValueError, match="'replay' plays what did not happen, so it needs the game"):
        assign_credit(RolloutValueChangeAssign(), None, trajectory)


@pytest.mark.parametrize("form", ["vine", "siblings"])
def test_the_same_step_is_judged_the_same_way_whatever_the_order_of_answers(form: str) -> None:
    game = KuhnPokerConfig()
    rule = RolloutValueChangeAssign.model_validate({"form": form, "samples": 3, "teams": [["player_0"]]})
    judged = []
    for newest_first in (False, True):
        simulator = make_simulator(game, FunctionEngine(random_move, newest_first=newest_first, batch=3 * newest_first))
        judged.append(assign_credit(rule, simulator, *episodes(simulator, game, 12)))
    assert judged[0] == judged[1]
    assert rule.build().state_dict() == {}


@pytest.mark.parametrize("settings", [{"form": "c3"}, {"samples": 0}, {"m": 3}])
def test_settings_that_mean_nothing_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        RolloutValueChangeAssign.model_validate(settings)


def test_a_turn_of_a_fork_is_probed_where_it_stands() -> None:
    # The guesser hears another word in the fork; its turn is worth what that word makes of it.
    simulator, before, [trajectory] = hinted(1)
    other = next(word for word in ("one", "two") if word != trajectory.turns[0].action)
    [[fork]] = simulator.play_forks([Fork(trajectory, 0, other)])
    credit, _ = assign_credit(RolloutValueChangeAssign(samples=200), simulator, fork)
    for turn, (value, after) in zip(fork.turns, pairwise(before(fork)), strict=True):
        assert credit[turn.id].value == pytest.approx(after - value, abs=4 * np.sqrt(2 / 200))
