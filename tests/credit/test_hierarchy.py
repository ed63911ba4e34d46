"""What an episode paid, carried down to agents, turns and tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any

import networkx as nx
import pytest
from pydantic import ValidationError

from marl.core.graph import Trajectory
from marl.core.types import Advantage, Credit, Metrics
from marl.credit.assign.hierarchical import HierarchicalAssign
from marl.credit.assign.reward_rules import FullTeamRewardAssign, LastSpeaker
from marl.protocols import AssignConfig, AssignRule, Evidence
from marl.scenario.load import explain_validation_error
from tests.support.credit_graphs import fork_episode, random_episode
from tests.support.handmade_episodes import advantages_of, make_episode, make_evidence

RULES = frozenset({"verifier"})
SHARES: tuple[dict[str, Any], ...] = (
    {"agents": "equal", "calls": "equal"},
    {"agents": {"planner": 1, "solver": 2.5, "critic": 0.1}, "calls": "reads", "discount": 0.8},
    {"agents": {"kind": "outcome"}, "calls": {"kind": "flow", "teams": [["a", "b", "c"]]}, "discount": 0.5},
    {"agents": "equal", "calls": "reads", "discount": 0.0},
)


class Fading(AssignConfig):
    """Says more of each turn every time it is asked, and something of tokens: it has state, and needs readings."""

    kind: str = "fading"

    @property
    def needed_reading_fields(self) -> frozenset[str]:
        return frozenset({"hidden"})

    def build(self) -> AssignRule:
        return _Fading()


class _Fading:
    needed_reading_fields: frozenset[str] = frozenset({"hidden"})

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, evidence: Evidence) -> Credit:
        self.calls += 1
        turns = [turn for trajectory in evidence.trajectories for turn in trajectory.turns]
        return {turn.id: Advantage(-float(turn.id[1] ** self.calls), (1.0, -3.0)) for turn in turns}

    def metrics(self) -> Metrics:
        return {"credit/fading": float(self.calls)}

    def state_dict(self) -> dict[str, Any]:
        return {"calls": self.calls}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.calls = state["calls"]


def saying(t: Trajectory, logprobs: tuple[float, ...]) -> Trajectory:
    """The same episode, every turn with tokens of these log-probabilities."""
    other = Trajectory(t.deal, t.start)
    for turn in t.turns:
        completion = replace(turn.completion, token_ids=(2,) * len(logprobs), logprobs=logprobs)
        other.add(replace(turn, completion=completion), t.graph.pred[turn.id])
    other.rewards = t.rewards
    return other


def test_by_default_the_return_is_copied_to_every_call_as_in_the_released_code() -> None:
    t = random_episode(0)
    seen = Evidence([t], "a_game", rule_based_roles=RULES)
    assert HierarchicalAssign().build()(seen) == FullTeamRewardAssign()(seen)


def test_a_discount_leaves_the_last_turn_whole_and_fades_per_turn_of_the_agent() -> None:
    t = make_episode("e", "abaab", [("a", 6.0, 4), ("b", 2.0, 4)])
    credit = HierarchicalAssign(discount=0.5).build()(make_evidence(t))
    assert advantages_of(credit, t) == [2.0, 4.0, 4.0, 8.0, 8.0]


def test_shares_by_hand() -> None:
    # 12 among a (weight 2) and b (weight 1): 8 and 4. a's three turns, discount 1/2: weights 1/4, 1/2, 1 of 7/4.
    seats = {"a": "planner", "b": "solver"}
    t = make_episode("e", "abaab", [("b", 12.0, 4)], seats=seats)
    rule = HierarchicalAssign(agents={"planner": 2, "solver": 1}, calls="equal", discount=0.5)
    expected = [8 / 7, 4 / 3, 16 / 7, 32 / 7, 8 / 3]
    assert advantages_of(rule.build()(make_evidence(t)), t) == pytest.approx(expected)


def test_turns_count_by_who_read_them_and_the_game_reads_all() -> None:
    # 0 is read by 1; 1 by 2; 2 (a) by 3; 3 by nobody. Each counts one more: 2, 2, 2, 1.
    t = make_episode("e", "abab", [("a", 1.0, 3), ("b", 1.0, 3)])
    assert [len(t.graph.succ[turn.id]) for turn in t.turns] == [2, 2, 1, 0]
    credit = HierarchicalAssign(agents="equal", calls="reads").build()(make_evidence(t))
    assert advantages_of(credit, t) == pytest.approx([3 / 5, 3 / 4, 2 / 5, 1 / 4])


def test_surprising_tokens_get_more() -> None:
    t = random_episode(4)
    credit = HierarchicalAssign(tokens="surprise").build()(make_evidence(t))
    total = sum(reward.value for reward in t.rewards)
    for turn in t.turns:
        logprobs = turn.completion.logprobs
        expected = [total * logprob / fmean(logprobs) for logprob in logprobs]
        assert credit[turn.id].tokens == pytest.approx(expected)
        assert credit[turn.id].value == pytest.approx(total)


@pytest.mark.parametrize("tokens", ["copy", "surprise"])
@pytest.mark.parametrize("shares", SHARES, ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_with_shares_among_agents_and_turns_an_episodes_credit_sums_to_what_it_paid(
    seed: int, shares: dict[str, Any], tokens: str
) -> None:
    t = random_episode(seed)
    rule = HierarchicalAssign.model_validate({"tokens": tokens, **shares})
    seen = Evidence([t], "a_game", rule_based_roles=RULES)
    credit = rule.build()(seen)
    paid = sum(reward.value for reward in t.rewards)
    assert sum(advantage.value for advantage in credit.values()) == pytest.approx(paid)
    for turn in t.turns:
        if tokens != "copy" and turn.role != "verifier" and turn.completion.token_ids:
            assert fmean(credit[turn.id].tokens) == pytest.approx(credit[turn.id].value)


@pytest.mark.parametrize("seed", range(3))
def test_teams_share_what_they_are_paid_and_nothing_else(seed: int) -> None:
    t = random_episode(seed)
    rule = HierarchicalAssign(teams=(("a", "c"),), agents="equal", calls="reads")
    credit = rule.build()(Evidence([t], "a_game", rule_based_roles=RULES))
    for team in ("ac", "b"):
        earned = sum(credit[turn.id].value for turn in t.turns if turn.agent in team)
        assert earned == pytest.approx(sum(reward.value for reward in t.rewards if reward.agent in team))


@pytest.mark.parametrize("seed", range(3))
def test_reads_are_out_degrees(seed: int) -> None:
    t = random_episode(seed)
    credit = HierarchicalAssign(calls="reads").build()(make_evidence(t))
    degrees: dict[Any, int] = dict(nx.DiGraph(t.graph).out_degree())
    total = sum(reward.value for reward in t.rewards)
    for agent in "abc":
        turns = [turn.id for turn in t.turns if turn.agent == agent]
        weights = {turn: degrees[turn] + 1 for turn in turns}
        expected = [total * weight / sum(weights.values()) for weight in weights.values()]
        assert [credit[turn].value for turn in turns] == pytest.approx(expected)


def test_an_agent_that_said_nothing_gets_no_share() -> None:
    t = make_episode("e", "aba", [("c", 6.0, 2)], seats={"a": "x", "b": "x", "c": "x"})
    assert advantages_of(HierarchicalAssign(agents="equal", calls="equal").build()(make_evidence(t)), t) == [
        1.5,
        3.0,
        1.5,
    ]


def test_shares_are_in_proportion_to_the_absolute_credit_of_a_part() -> None:
    t = make_episode("e", "aaaa", [("a", 12.0, 3)])
    rule = HierarchicalAssign(calls=Fading(), tokens=Fading()).build()
    first = advantages_of(rule(make_evidence(t)), t)
    assert first == pytest.approx([0.0, 2.0, 4.0, 6.0])  # 0 + 1 + 2 + 3, whatever the sign
    assert advantages_of(rule(make_evidence(t)), t) == pytest.approx(
        [12 * i**2 / 14 for i in range(4)]
    )  # it has learnt


def test_tokens_follow_the_tokens_of_a_part() -> None:
    t = saying(random_episode(0), (-0.5, -0.5))
    worth = sum(reward.value for reward in t.rewards)
    for advantage in HierarchicalAssign(tokens=Fading()).build()(make_evidence(t)).values():
        assert advantage.tokens == pytest.approx((worth / 2, worth * 3 / 2))


def test_where_a_part_gives_nothing_shares_are_equal() -> None:
    t = make_episode("e", "aab", [("b", 8.0, 2)])
    rule = HierarchicalAssign.model_validate({"agents": {"kind": "outcome"}, "calls": {"kind": "outcome"}})
    assert advantages_of(rule.build()(make_evidence(t)), t) == [
        0.0,
        0.0,
        8.0,
    ]  # a was paid nothing, so it gets no share
    rule = HierarchicalAssign(agents="equal", calls=LastSpeaker(teams=(("b",),)))
    assert advantages_of(rule.build()(make_evidence(t)), t) == [
        2.0,
        2.0,
        4.0,
    ]  # a's own pot is empty: all its weights are 0


def test_parts_keep_their_state_and_say_what_they_need() -> None:
    settings = HierarchicalAssign(calls=Fading(), tokens="surprise")
    assert settings.needed_reading_fields == settings.build().needed_reading_fields == {"hidden"}
    assert HierarchicalAssign().needed_reading_fields == frozenset()
    t = make_episode("e", "aaaa", [("a", 12.0, 3)])
    original, restored = settings.build(), settings.build()
    original(make_evidence(t))
    restored.load_state_dict(original.state_dict())
    assert restored(make_evidence(t)) == original(make_evidence(t)) != settings.build()(make_evidence(t))
    assert original.metrics() == {"credit/fading": 2.0}
    assert HierarchicalAssign(calls="equal", agents=LastSpeaker()).build().state_dict() == {}


def test_an_inherited_turn_is_judged_where_it_was_said_and_so_are_its_tokens() -> None:
    past = make_episode("e", "ab", [("a", 1.0, 1)])
    branch = fork_episode(past, 1, "f", "b", [("a", 4.0, 1)])
    credit = HierarchicalAssign(tokens="surprise").build()(make_evidence(past, branch))
    assert credit[past.turns[0].id] == Advantage(1.0, (1.0,))


@pytest.mark.parametrize("logprobs", [(0.0, 0.0), (float("-inf"), -1.0), ()])
def test_tokens_that_cannot_be_told_apart_share_alike(logprobs: tuple[float, ...]) -> None:
    t = saying(random_episode(2), logprobs)
    for advantage in HierarchicalAssign(tokens="surprise").build()(make_evidence(t)).values():
        assert advantage.tokens == (advantage.value,) * len(logprobs)


WRONG = {
    "agents: unknown; choices: copy, equal, a weight for each role ({role: weight}), or a part ({kind: ...}) "
    "(got 'fair')": {"agents": "fair"},
    "calls: unknown; did you mean 'reads'? choices: copy, equal, reads, or a part ({kind: ...}) (got 'read')": {
        "calls": "read"
    },
    "tokens: unknown; choices: copy, surprise, or a part ({kind: ...}) (got 3)": {"tokens": 3},
    "agents.planner: must be a number greater than 0 (got -1)": {"agents": {"planner": -1, "solver": 1}},
    "calls.deccay: unknown field 'deccay'; did you mean 'decay'? choices: along, decay, kind, teams": {
        "calls": {"kind": "flow", "deccay": 1}
    },
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_settings_are_named(message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        HierarchicalAssign.model_validate(WRONG[message])
    assert explain_validation_error(caught.value) == [message]


def test_a_role_without_a_weight_is_named() -> None:
    t = make_episode("e", "ab", [("a", 1.0, 1)], seats={"a": "planner", "b": "solver"})
    with pytest.raises(ValueError, match=r"credit.assign.agents: no weight for role 'solver', which speaks"):
        HierarchicalAssign(agents={"planner": 1}).build()(make_evidence(t))


@pytest.mark.parametrize("shares", SHARES, ids=str)
def test_settings_survive_being_written_down(shares: dict[str, Any]) -> None:
    rule = HierarchicalAssign.model_validate(shares)
    assert HierarchicalAssign.model_validate(rule.model_dump(mode="json")) == rule
    assert "agents" in HierarchicalAssign.model_json_schema()["properties"]
