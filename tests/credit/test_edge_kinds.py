"""Credit rules follow the kinds of edges that `along` names, and all but gates by default."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import marl
from marl.core.graph import Trajectory
from marl.credit.assign.hierarchical import HierarchicalAssign
from marl.credit.assign.process import ProcessRewardAssign
from marl.credit.assign.reward_rules import RewardFlowAssign
from marl.credit.assign.teams import CreditTeam
from marl.credit.mixing.rounds import team_rounds
from marl.protocols import Evidence
from marl.scenario.load import ScenarioError
from tests.support.handmade_episodes import advantages_of, make_episode, make_evidence
from tests.support.paths import KUHN

TEAM = (("a", "b", "c"),)


def mixed() -> Trajectory:
    """c (turn 2) was told of a's words, heard b's, and b's opened its gate; b is gated by a."""
    whole = make_episode("e", "abc", [("c", 8.0, 2)])
    made = Trajectory(whole.deal, whole.start)
    made.rewards, made.end = whole.rewards, whole.end
    kinds: list[dict[int, tuple[Any, ...]]] = [{}, {0: ("gated",)}, {0: ("told",), 1: ("heard", "gated")}]
    for turn, edges in zip(whole.turns, kinds, strict=True):
        made.add(turn, [("e", source) for source in edges], {("e", source): kind for source, kind in edges.items()})
    return made


def test_flow_passes_back_along_the_chosen_kinds() -> None:
    def flow(**settings: Any) -> list[float]:
        t = mixed()
        return advantages_of(RewardFlowAssign(decay=0.5, teams=TEAM, **settings).build()(make_evidence(t)), t)

    assert flow() == [2.0, 2.0, 8.0]
    assert flow(along=("heard",)) == [0.0, 4.0, 8.0]
    assert flow(along=("told",)) == [4.0, 0.0, 8.0]
    assert flow(along=("heard", "told", "gated")) == [2 + 1, 2.0, 8.0]


def test_turns_count_by_the_readers_of_the_chosen_kinds() -> None:
    t = mixed()
    alone = Trajectory(t.deal, t.start)
    for turn in t.turns:
        edges = t.graph.pred[turn.id]
        alone.add(replace(turn, agent="a"), edges, {source: edge["kinds"] for source, edge in edges.items()})
    alone.rewards = [replace(t.rewards[0], agent="a")]

    def reads(**settings: Any) -> list[float]:
        return advantages_of(HierarchicalAssign(calls="reads", **settings).build()(make_evidence(alone)), alone)

    assert reads() == pytest.approx([8 * 2 / 5, 8 * 2 / 5, 8 / 5])
    assert reads(along=("told",)) == pytest.approx([8 * 2 / 4, 8 / 4, 8 / 4])
    assert reads(along=("posed",)) == pytest.approx([8 / 3] * 3)


def test_a_verdict_is_of_the_last_turn_that_its_seat_read_in_the_chosen_ways() -> None:
    t = mixed()
    verdict = replace(t.turns[2], role="verifier")
    t.turns[2] = replace(verdict, completion=replace(verdict.completion, text='{"scores": {"correct": 1}}'))

    def scored(**settings: Any) -> list[float]:
        seats = {"a": "player", "b": "player", "c": "verifier"}
        judged = Trajectory(replace(t.deal, seats=seats), t.start)
        judged.__dict__.update({**t.__dict__, "deal": judged.deal, "rewards": []})
        rule = ProcessRewardAssign(scores={"verifier": ("correct",)}, **settings).build()
        credit = rule(Evidence([judged], "a_game", rule_based_roles=frozenset({"verifier"})))
        return [credit["e", place].value for place in (0, 1)]

    assert scored() == [0.0, 1.0]
    assert scored(along=("told",)) == [1.0, 0.0]


def test_rounds_are_counted_along_the_chosen_kinds() -> None:
    team = CreditTeam(frozenset("abc"))

    def speakers(*along: Any) -> list[str]:
        return ["".join(turn.agent for turn in each.turns) for each in team_rounds(mixed(), team, "reading", along)]

    assert speakers("heard", "told") == ["ab", "c"]
    assert speakers("heard", "told", "gated") == ["a", "b", "c"]
    assert speakers("told") == ["ab", "c"]
    assert speakers("posed") == ["abc"]


def test_unknown_kinds_and_none_are_refused() -> None:
    with pytest.raises(ScenarioError, match=r"credit\.assign\.along"):
        marl.load(
            KUHN, ["credit.assign={kind: 'marl.credit.assign.reward_rules:RewardFlowAssign', along: [overheard]}"]
        )
    with pytest.raises(ScenarioError, match=r"credit\.assign\.along"):
        marl.load(KUHN, ["credit.assign={kind: 'marl.credit.assign.reward_rules:RewardFlowAssign', along: []}"])
