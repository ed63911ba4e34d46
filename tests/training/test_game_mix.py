"""Division of a run's starts among its games."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from marl.scenario.load import validate
from marl.training.game_mix import GameGroup, GameMix
from tests.support.two_game_scenarios import SEATS, untrained_two_games

WEIGHTS = st.lists(st.sampled_from([0.3, 0.5, 1, 2, 3, 7.25]), min_size=1, max_size=6)


def mix(weights: list[float], groups: int, **schedule: Any) -> GameMix:
    game = {"game": {"kind": "nim"}, "seats": SEATS, "progress": "episode/return/player_0"}
    games = {f"g{i}": {**game, "weight": weight} for i, weight in enumerate(weights)}
    plan = {"steps": 9, "groups": groups, "group_size": 1, **schedule}
    return GameMix(validate(untrained_two_games(games=games, schedule=plan)))


def dealt(division: GameMix, steps: int) -> list[GameGroup]:
    return [slot for step in range(steps) for slot in division(step)]


@settings(max_examples=25)
@example(weights=[0.3, 0.3, 0.3, 0.3, 0.3, 3], groups=1)
@given(weights=WEIGHTS, groups=st.integers(1, 9))
def test_every_game_gets_its_share_to_within_a_group_after_every_step(weights: list[float], groups: int) -> None:
    division, sums = mix(weights, groups), Counter[str]()
    for step in range(40):
        slots = division(step)
        assert len(slots) == groups
        sums.update(slot.game for slot in slots)
        quotas = {f"g{i}": (step + 1) * groups * weight / sum(weights) for i, weight in enumerate(weights)}
        # Tijdeman 1980: at most 1 - 1 / (2k - 2) groups from the quota, for k games.
        assert all(abs(sums[name] - quota) < 1 for name, quota in quotas.items()), (sums, quotas)


def test_whole_shares_are_dealt_exactly_and_spread_over_the_step() -> None:
    assert [slot.game for slot in mix([1, 2], 6)(0)] == ["g1", "g0", "g1", "g1", "g0", "g1"]
    # 5 groups by 1 : 2 : 3 are 5/6, 5/3, 5/2 a step: after 6 steps 5, 10, 15.
    counts = Counter(slot.game for slot in dealt(mix([1, 2, 3], 5), 6))
    assert counts == {"g0": 5, "g1": 10, "g2": 15}


@pytest.mark.parametrize("by", ["weights", "learning_progress"])
def test_a_game_of_weight_zero_is_never_dealt(by: str) -> None:
    division = mix([0, 1, 0, 2, 0], 3, mix=by)
    division.update_from_step_metrics({f"game/g{i}/episode/return/player_0": 0.0 for i in range(5)})
    division.update_from_step_metrics({f"game/g{i}/episode/return/player_0": 0.5 for i in range(5)})
    counts = Counter(slot.game for slot in dealt(division, 50))
    assert counts == {"g1": 50, "g3": 100}


def test_steps_can_be_dealt_ahead_in_any_order() -> None:
    division = mix([1, 0.3, 5], 2)
    ahead = {step: division(step) for step in reversed(range(30))}
    assert [slot for step in range(30) for slot in ahead[step]] == dealt(mix([1, 0.3, 5], 2), 30)


def test_each_game_counts_its_own_groups_so_that_roles_change_seats_in_each() -> None:
    slots = dealt(mix([1, 1, 3], 3), 20)
    for name in ("g0", "g1", "g2"):
        turns = [slot.rotation for slot in slots if slot.game == name]
        assert turns == list(range(len(turns)))


def test_learning_progress_is_the_moving_average_of_changes() -> None:
    division = mix([1, 3], 8, mix={"by": "learning_progress", "alpha": 0.5, "floor": 0.2})
    assert division.metrics() == {"game/g0/share": 0.25, "game/g1/share": 0.75}
    for first, second in ((0.0, 1.0), (0.4, 1.0), (0.2, 0.9)):
        division.update_from_step_metrics(
            {"game/g0/episode/return/player_0": first, "game/g1/episode/return/player_0": second}
        )
    # Matiisen et al. 2017: q = 0.5 * 0.4 = 0.2, then 0.5 * -0.2 + 0.5 * 0.2 = 0; the other: 0, then 0.5 * -0.1.
    # Weight times |q| are 0.25 * 0 and 0.75 * 0.05, so all but the floor is the second game's.
    assert division.metrics() == pytest.approx({"game/g0/share": 0.2 * 0.25, "game/g1/share": 0.2 * 0.75 + 0.8})
    division.update_from_step_metrics({"game/g0/episode/return/player_0": 0.3})
    # q = 0.5 * 0.1 = 0.05; weight times |q|: 0.0125 and 0.0375; a game that was not played keeps its own.
    assert division.metrics() == pytest.approx({"game/g0/share": 0.25, "game/g1/share": 0.75})


def test_games_are_dealt_by_progress_to_within_a_group_and_in_expectation_exactly() -> None:
    division = mix([1, 1], 8, mix="learning_progress")
    figures = ("game/g0/episode/return/player_0", "game/g1/episode/return/player_0")
    for values in ((0.0, 0.0), (0.3, -0.7)):
        division.update_from_step_metrics(dict(zip(figures, values, strict=True)))
    share = 0.2 * 0.5 + 0.8 * 0.3  # of g0, as q are 0.03 and -0.07
    counts = [Counter(slot.game for slot in division(step))["g0"] for step in range(4000)]
    assert set(counts) == {2, 3}
    assert sum(counts) / 4000 == pytest.approx(8 * share, abs=0.03)
