"""Dynamic sampling: starts that teach nothing are replaced by fresh ones, the same way every time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from statistics import pvariance
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from marl.core.graph import Trajectory
from marl.core.seeds import hash_to_seed
from marl.core.types import Deal, Reward
from marl.experience.dynamic_sampling import DynamicSampling, GroupRanking, GroupSampler
from marl.rollout.simulator import RolloutSimulator
from marl.scenario.load import ScenarioError, validate
from tests.support.difficulty_game import DifficultyGameConfig, answer_by_difficulty
from tests.support.paths import SCENARIOS
from tests.support.run_processes import RunWorkspace, SignalTrigger, kuhn_scenario, metric_lines, outcome, train_to_end
from tests.support.small_games import (
    PAIR,
    FailingPenniesConfig,
    FunctionEngine,
    PenniesConfig,
    make_deal,
    make_simulator,
    random_move,
)


def deals(groups: int = 16, size: int = 4) -> list[Deal]:
    names = [f"000000.{group}" for group in range(groups)]
    return [Deal(f"{n}.{i}", n, hash_to_seed("deal", n), {"solver": "player"}) for n in names for i in range(size)]


def drill() -> RolloutSimulator:
    return make_simulator(DifficultyGameConfig(), FunctionEngine(answer_by_difficulty))


def grouped(played: Sequence[Trajectory]) -> dict[str, list[Trajectory]]:
    return {group: list(members) for group, members in groupby(played, lambda t: t.deal.group)}


def paid(episodes: Sequence[Trajectory]) -> set[float]:
    return {episode.returns.get("solver", 0.0) for episode in episodes}


def slot(group: str) -> int:
    return int(group.partition("+")[0].partition(".")[2])


def test_groups_that_all_succeed_or_all_fail_give_way_to_fresh_ones() -> None:
    dynamic, first = GroupSampler(DynamicSampling(rounds=20)), grouped(drill().play(deals()))
    groups = grouped(dynamic.gather(0, lambda _: deals(), drill()))
    assert all(paid(episodes) == {0.0, 1.0} for episodes in groups.values())
    assert [slot(group) for group in groups] == list(range(16)), "in deal order"
    # What differed at once is there as it was played; the others are other starts of the same size and seats.
    first_kept = {group: episodes for group, episodes in first.items() if len(paid(episodes)) == 2}
    assert 0 < len(first_kept) < 16
    assert {group: episodes for group, episodes in groups.items() if "+" not in group} == first_kept
    fresh = [episodes for group, episodes in groups.items() if "+" in group]
    assert all(len(episodes) == 4 and len({(t.deal.seed, t.start) for t in episodes}) == 1 for episodes in fresh)
    assert not {t.deal.seed for members in fresh for t in members} & {
        t.deal.seed for members in first.values() for t in members
    }


@pytest.mark.parametrize(
    ("limit", "used"),
    [
        # The sum is .6875: .9 of it needs three groups, .7 of it two, the earlier of equal ones first.
        ({"top_p": 0.9}, [True, True, True, False]),
        ({"top_p": 0.7}, [True, False, True, False]),
        ({"top_p": 0.3}, [True, False, False, False]),
        ({"top_p": 1.0}, [True, True, True, False]),
        ({"top_k": 1}, [True, False, False, False]),
        ({"top_k": 9}, [True] * 4),
    ],
)
def test_groups_are_ranked_by_the_variance_of_their_returns(limit: dict[str, Any], used: list[bool]) -> None:
    assert GroupRanking(**limit).select([0.25, 0.1875, 0.25, 0.0]) == used
    assert GroupRanking(**limit).select([0.0, 0.0]) == [True, True]


def test_a_step_has_the_groups_that_are_half_right_before_those_that_are_nearly_all_right() -> None:
    everything = grouped(GroupSampler(DynamicSampling(rounds=1)).gather(0, lambda _: deals(), drill()))
    variance = {group: pvariance([t.returns.get("solver", 0.0) for t in ts]) for group, ts in everything.items()}
    assert {*variance.values()} == {0.1875, 0.25}, "one or three of four right; two of four right"
    ranked = GroupSampler(DynamicSampling(rounds=1, rank=GroupRanking(top_k=[*variance.values()].count(0.25))))
    chosen = grouped(ranked.gather(0, lambda _: deals(), drill()))
    assert [*chosen] == [group for group in variance if variance[group] == 0.25]
    assert ranked.metrics()["dynamic/dropped"] == 16 - len(chosen)


def test_a_rank_needs_one_limit() -> None:
    for limits in ({}, {"top_p": 0.5, "top_k": 2}):
        with pytest.raises(ValueError, match="give either top_p or top_k"):
            GroupRanking(**limits)


def test_every_episode_has_a_name_of_its_own_and_says_something_of_its_own() -> None:
    episodes = GroupSampler(DynamicSampling(rounds=20)).gather(0, lambda _: deals(), drill())
    assert len({t.id for t in episodes}) == len(episodes) == 64
    assert len({turn.request.seed for t in episodes for turn in t.turns}) == 64


def test_the_same_step_is_played_the_same_way_by_an_experience_that_knows_nothing_of_it() -> None:
    used = GroupSampler(DynamicSampling())
    used.gather(0, lambda _: deals(groups=3), drill())
    resumed = GroupSampler(DynamicSampling())
    resumed.load_state_dict(used.state_dict())
    assert resumed.gather(0, lambda _: deals(), drill()) == used.gather(0, lambda _: deals(), drill())
    assert resumed.metrics() == used.metrics()


def test_all_that_is_played_is_counted_as_tokens_of_training_and_told() -> None:
    simulator, dynamic = drill(), GroupSampler(DynamicSampling(rounds=2))
    episodes = dynamic.gather(0, lambda _: deals(), simulator)
    metrics, first = dynamic.metrics(), grouped(drill().play(deals()))
    again = 16 - sum(len(paid(episodes)) == 2 for episodes in first.values())
    assert simulator.tokens == {"train": 2 * 4 * (16 + again)}  # a voice says two tokens
    assert metrics["dynamic/rounds"] == 2
    assert metrics["dynamic/kept"] == len(grouped(episodes))
    assert metrics["dynamic/dropped"] == 16 + again - len(grouped(episodes))
    share = sum(t.findings.measures["success"] for members in first.values() for t in members) / 64
    assert metrics["dynamic/first/success"] == pytest.approx(share)


def test_when_the_rounds_are_over_the_step_has_fewer_groups_or_keeps_the_constant_ones() -> None:
    fewer = grouped(GroupSampler(DynamicSampling(rounds=1)).gather(0, lambda _: deals(), drill()))
    filled = GroupSampler(DynamicSampling(rounds=1, constant="keep"))
    assert [t for t in filled.gather(0, lambda _: deals(), drill()) if t.deal.group in fewer] == [
        t for members in fewer.values() for t in members
    ]
    assert len(grouped(filled.gather(0, lambda _: deals(), drill()))) == 16
    assert filled.metrics()["dynamic/kept"] == len(fewer) < 16
    assert filled.metrics()["dynamic/dropped"] == 0


def test_a_step_in_which_nothing_differs_is_played_all_the_same() -> None:
    dynamic = GroupSampler(DynamicSampling(rounds=3))
    episodes = dynamic.gather(
        0, lambda _: deals(groups=2), make_simulator(DifficultyGameConfig(), FunctionEngine(lambda request: "[yes]"))
    )
    assert list(grouped(episodes)) == ["000000.0+2", "000000.1+2"]
    assert dynamic.metrics()["dynamic/kept"] == 0


def test_success_can_be_asked_to_lie_strictly_inside_a_range() -> None:
    requests = DynamicSampling(rounds=30, inside=(0.25, 0.75))
    groups = grouped(GroupSampler(requests).gather(0, lambda _: deals(), drill()))
    assert {sum(t.findings.measures["success"] for t in episodes) for episodes in groups.values()} == {2.0}


def test_in_a_team_it_is_enough_that_one_agents_pay_differs_unless_roles_are_named() -> None:
    seats: dict[str, str] = dict(zip(PAIR, "xy", strict=True))
    duel = PenniesConfig()
    played = make_simulator(duel, FunctionEngine(random_move)).play([make_deal(f"{i}", duel, 0) for i in range(2)])
    episodes = [replaced(t, seats, (1.0, 0.5 * i)) for i, t in enumerate(played)]

    class Recorded:
        def play(self, dealt: Sequence[Deal]) -> list[Trajectory]:
            return episodes

    starts = [t.deal for t in episodes]
    samplers = {
        roles: GroupSampler(DynamicSampling(rounds=1, roles=roles)) for roles in ((), ("x",), ("y",), ("x", "y"))
    }
    for dynamic in samplers.values():
        dynamic.gather(0, lambda _: starts, Recorded())  # type: ignore[arg-type]
    assert [dynamic.metrics()["dynamic/kept"] for dynamic in samplers.values()] == [1, 0, 1, 1]


def replaced(played: Trajectory, seats: dict[str, str], returns: tuple[float, float]) -> Trajectory:
    """The episode in one group, with these seats and pay."""
    made = Trajectory(replace(played.deal, group="g", seats=seats), played.start)
    for turn in played.turns:
        made.add(turn, ())
    made.rewards = [Reward(agent, value, made.turns[-1].id) for agent, value in zip(PAIR, returns, strict=True)]
    return made


def test_equal_pay_in_another_order_is_equal() -> None:
    [played] = make_simulator(PenniesConfig(), FunctionEngine(random_move)).play([make_deal("e", PenniesConfig(), 0)])
    one, other = replaced(played, dict(played.deal.seats), (0, 0)), replaced(played, dict(played.deal.seats), (0, 0))
    parts = [Reward(PAIR[0], value, played.turns[-1].id) for value in (0.1, 0.2, 0.3)]
    one.rewards, other.rewards = parts, parts[::-1]
    assert one.returns != other.returns, "rounded as they were added"
    assert not GroupSampler(DynamicSampling())._is_group_kept([one, other])


def test_a_game_that_pays_nan_is_not_hidden_by_new_groups() -> None:
    [played] = make_simulator(PenniesConfig(), FunctionEngine(random_move)).play([make_deal("e", PenniesConfig(), 0)])
    one, broken = (replaced(played, dict(played.deal.seats), (value, 0)) for value in (1.0, math.nan))
    sampler = GroupSampler(DynamicSampling(rank=GroupRanking(top_k=1)))
    for group in ([one, broken], [broken, one]):
        assert sampler._is_group_kept(group)
        assert sampler._variance(group) == math.inf


def test_a_group_of_which_every_episode_was_dropped_is_played_again() -> None:
    simulator = make_simulator(FailingPenniesConfig(), FunctionEngine(random_move))
    simulator.drops.limit = 1000
    requests = [replace(make_deal(f"{i}", FailingPenniesConfig(), i // 2), group=f"{i // 2}") for i in range(12)]
    episodes = GroupSampler(DynamicSampling(rounds=3, constant="keep")).gather(0, lambda _: requests, simulator)
    assert {t.deal.group.partition("+")[0] for t in episodes} <= {str(i) for i in range(6)}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"inside": [0.5, 0.5]}, r"inside: \[0.5, 0.5\] has nothing inside; choices: \[low, high\] with low < high"),
        ({"rounds": 0}, "rounds"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        DynamicSampling.model_validate(settings)


def test_a_scenario_in_which_nothing_can_be_compared_is_refused() -> None:
    whole = kuhn_scenario(experience={"kind": "dynamic", "roles": ["plaer"]}, credit={"baseline": "none"})
    whole["schedule"]["group_size"] = 1
    with pytest.raises(ScenarioError) as refused:
        validate(whole, "a file")
    message = str(refused.value)
    assert (
        "experience.kind: 'dynamic' compares the episodes of one start, but schedule.group_size is 1; use 2" in message
    )
    assert "experience.roles: no seat has the role 'plaer'; did you mean 'player'" in message


def test_a_measure_that_the_game_does_not_have_is_named() -> None:
    dynamic = GroupSampler(DynamicSampling(inside=(0, 1), success="sucess"))
    with pytest.raises(ValueError, match=r"experience.success: the game has no measure 'sucess'; did you mean 'succes"):
        dynamic.gather(0, lambda _: deals(), drill())


@pytest.mark.parametrize("experience", [{"kind": "dynamic", "inside": [0, 1]}, {"kind": "pool"}])
def test_a_measure_that_a_game_is_known_to_lack_is_named_before_play(experience: dict[str, Any]) -> None:
    data = yaml.safe_load((SCENARIOS / "team_arithmetic.yaml").read_text())
    with pytest.raises(ScenarioError, match=r"experience.success: the game has no measure 'succes'; did you mean"):
        validate(data | {"experience": experience | {"success": "succes"}})
    assert validate(data | {"experience": experience})


@pytest.mark.slow
def test_a_run_with_refill_and_a_coefficient_that_adapts_goes_on_exactly_after_a_kill(tmp_path: Any) -> None:
    kl = {"coefficient": 0.2, "target": 0.01, "horizon": 20}
    credit = {"baseline": {"kind": "group"}, "kl": kl, "overlong": {"limit": 6, "buffer": 4}}
    whole = kuhn_scenario(
        {"reference": {"coefficient": 0.0}}, experience={"kind": "dynamic", "rounds": 2}, credit=credit
    )
    whole |= {"schedule": {"steps": 5, "groups": 4, "group_size": 2, "threads": 1}, "evaluate": {"every": 50}}
    whole["checkpoint"] = {"every": 2}
    (tmp_path / "whole").mkdir()
    once = train_to_end(tmp_path / "whole", whole)
    killed = tmp_path / "killed"
    killed.mkdir()
    (killed / "cache").symlink_to(once.path / "cache")
    desk = RunWorkspace(killed, once.scenario)
    assert desk.train(kill=SignalTrigger("open", "metrics.jsonl", 4)) == -9, desk.take_output()
    assert desk.train("--resume", "auto") == 0, desk.take_output()
    assert metric_lines(desk.run) == metric_lines(once.run)
    assert outcome(desk.run) == outcome(once.run)
    assert len({row.partition("credit/kl_coefficient")[2][:22] for row in metric_lines(once.run)}) > 3


@pytest.mark.parametrize(
    ("settings", "groups", "message"),
    [
        ({"rank": {"top_k": 4}}, 4, "experience.rank.top_k: 4 leaves out none of schedule.groups 4; choices: 1 to 3"),
        ({"rank": {"top_p": 0.9}}, 1, "experience.rank: schedule.groups is 1, so there is nothing to rank; remove it"),
        ({"success": "win"}, 4, r"experience.success: 'win' has no effect without bounds; give inside: \[low, high\]"),
    ],
)
def test_a_selection_without_effect_is_named(settings: dict[str, Any], groups: int, message: str) -> None:
    whole = kuhn_scenario(experience={"kind": "dynamic", **settings})
    whole["schedule"]["groups"] = groups
    with pytest.raises(ScenarioError, match=message):
        validate(whole)
    whole["experience"] = {"kind": "dynamic", "rank": {"top_k": 3}}
    whole["schedule"]["groups"] = 4
    assert validate(whole)


def test_roles_that_are_paid_the_same_whatever_they_do_are_refused() -> None:
    data = yaml.safe_load((SCENARIOS / "train_solver_only.yaml").read_text())
    data["experience"] = {"kind": "dynamic", "roles": ["planner", "verifier"]}
    with pytest.raises(
        ScenarioError, match=r"experience.roles: planner, verifier: paid the same .*; choices: solver, cr"
    ):
        validate(data)
    data["experience"]["roles"] = ["planner", "solver"]
    validate(data)
