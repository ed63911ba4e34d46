"""Names of the parts of an advantage: each is the number that the real credit rule put into its record."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from pydantic import TypeAdapter

from marl.credit_stage.records import CreditRecord, TurnCreditRecord
from marl.credit_stage.stage import CreditStage
from marl.protocols import Evidence
from marl.scenario.load import load
from marl.view.baseline_description import BaselineDescription, describe_baseline
from tests.support.paths import KUHN
from tests.support.recorded_runs import kuhn_episode


def judged(*overrides: str) -> CreditRecord:
    """The record of eight hands of Kuhn poker from each of two starts."""
    rng = random.Random(0)
    hands = [kuhn_episode(f"1.{i}.{k}", cards, rng) for i, cards in enumerate(("KQ", "JK")) for k in range(8)]
    stage = CreditStage(load(KUHN, list(overrides)).credit)
    return stage(Evidence(hands, "kuhn_poker")).to_credit_record(hands, {"player": "actor"})


def descriptions(record: CreditRecord) -> list[BaselineDescription]:
    turns = record.turns()
    return [describe_baseline(group.like, [turns[turn] for turn in group.turns]) for group in record.groups]


EPISODES = "8 episodes with this start"


@pytest.mark.parametrize(
    ("baseline", "centre", "divisor"),
    [
        ({"kind": "group", "std": True}, f"mean of {EPISODES}, this one included", "standard deviation"),
        ({"kind": "group", "std": False}, f"mean of {EPISODES}, this one included", ""),
        ({"kind": "rloo"}, "mean of the 7 other episodes with this start", ""),
    ],
)
def test_the_parts_of_a_rule_are_named(baseline: dict[str, Any], centre: str, divisor: str) -> None:
    described = descriptions(judged(f"credit.baseline={TypeAdapter(dict[str, Any]).dump_json(baseline).decode()}"))
    named = [each for each in described if each.centre]
    assert named
    assert {(each.centre, each.divisor) for each in named} == {(centre, divisor)}
    assert all(each.centre or each.all_equal for each in described)


def turn(index: int, earned: float, baseline: float, scale: float) -> TurnCreditRecord:
    numbers = {"assigned": earned, "penalties": {}, "earned": earned, "baseline": baseline, "scale": scale}
    return TurnCreditRecord(
        *((f"1.0.{index}", 0), "a", "solver", "actor", (0, 0), 0, (), earned),
        **numbers,
        group=0,
        advantage=(earned - baseline) * scale,
    )


def test_the_mean_and_the_deviation_of_eight_episodes_are_those_of_a_hand_calculation() -> None:
    # Five episodes earned 1 and three earned 0: mean 5/8; variance (5 * (3/8)^2 + 3 * (5/8)^2) / 7 = 15/56.
    members = [turn(i, float(i < 5), 0.625, (56 / 15) ** 0.5) for i in range(8)]
    assert describe_baseline("start", members) == BaselineDescription(
        f"mean of {EPISODES}, this one included", "standard deviation"
    )


def test_episodes_that_earned_the_same_say_so() -> None:
    equal = [turn(i, 1.0, 1.0, 0.0) for i in range(8)]
    assert describe_baseline("start", equal).all_equal == f"all {EPISODES} earned the same"
    assert describe_baseline("prompt", equal[:1]).all_equal == "it is the only one of the turns with this prompt"


def test_turns_that_are_compared_by_their_agents_mean_are_divided_by_the_deviation_of_these_means() -> None:
    # Two episodes with two turns of one agent, that earned 0 and 1, and 1 and 1: the means .5 and 1 deviate by .125^.5.
    members = [turn(i // 2, earned, 0.75, 8**0.5) for i, earned in enumerate((0.0, 1.0, 1.0, 1.0))]
    turns = [replace(member, turn=(member.turn[0], i)) for i, member in enumerate(members)]
    described = describe_baseline("problem", turns)
    assert (described.centre, described.divisor) == (
        "mean of 2 episodes on this problem, this one included",
        "standard deviation",
    )


def test_a_number_that_the_group_does_not_give_has_no_name() -> None:
    learned = [turn(i, float(i), 0.1 * i, 1.0) for i in range(4)]
    assert describe_baseline("start", learned) == BaselineDescription()
