"""Properties of all baselines: constant groups, turns without peers, infinite numbers and NaN, shifts and scales."""

import math
import random
from dataclasses import replace
from itertools import chain, product
from operator import mul

import numpy as np
import pytest

from marl.core.graph import Trajectory
from marl.core.types import Advantage, Credit, Reward
from marl.credit.assign.reward_rules import AgentReturnAssign
from marl.credit.baselines.group import (
    AgentGroup,
    AgentTurnGroup,
    GrpoBaseline,
    JointBaseline,
    OpoBaseline,
    RlooBaseline,
    TaskRoleBaseline,
)
from marl.credit.baselines.reinforce import NoBaseline, RoleAverageBaseline
from marl.credit.baselines.whiten import GdpoBaseline, WhitenBaseline
from marl.protocols import BaselineConfig, BaselineRule
from tests.support.detailed_handmade_episodes import detailed_episode, forked_episode, numbers, worth
from tests.support.handmade_episodes import make_evidence, uniform_credit

DIVIDING = {
    "group": GrpoBaseline(epsilon=0),
    "group batch": GrpoBaseline(std="batch", epsilon=0),
    "group prompt": GrpoBaseline(like="prompt", epsilon=0),
    "group problem": GrpoBaseline(like="problem", epsilon=0),
    "agent turn": AgentTurnGroup(epsilon=0),
    "agent turn, problem": AgentTurnGroup(like="problem", epsilon=0),
    "agent": AgentGroup(epsilon=0),
    "joint std": JointBaseline(std=True, epsilon=0),
    "loo whiten": RlooBaseline(whiten=True, whiten_epsilon=0),
    "decoupled": GdpoBaseline(epsilon=0, group_epsilon=0),
    "decoupled verl": GdpoBaseline(unit="token", guard="variance", epsilon=0, group_epsilon=0),
    "whiten groups": WhitenBaseline(like="start", epsilon=0),
    "whiten groups ms-swift": WhitenBaseline(like="start", unit="sequence", guard="std", centre=False, epsilon=0),
    "whiten groups OpenRLHF": WhitenBaseline(like="start", ddof=0, guard="clamp", epsilon=0),
}
"""Within groups, with a division."""
PLAIN = {
    "group mean": GrpoBaseline(std=False),
    "loo": RlooBaseline(),
    "opo": OpoBaseline(),
    "joint": JointBaseline(),
    "joint loo": JointBaseline(against="leave_one_out", common="sum"),
    "joint max": JointBaseline(against="max"),
    "joint round": JointBaseline(per="round"),
}
"""Within groups, without one."""
WIDE = {
    "whiten": WhitenBaseline(epsilon=0),
    "whiten by role": WhitenBaseline(over="role", epsilon=0),
    "whiten sequences": WhitenBaseline(unit="sequence", guard="std", epsilon=0),
    "task": TaskRoleBaseline(epsilon=0),
}
"""Across the whole step."""
GROUPED = {**DIVIDING, **PLAIN}
ALL = {**GROUPED, **WIDE}


def step(groups: int = 3, size: int = 4) -> list[Trajectory]:
    """Groups of episodes of two agents, who are asked the same in each group."""
    return [
        detailed_episode(
            f"{g}.{i}",
            "ab",
            start=f"s{g}",
            seats={"a": "x", "b": "y"},
            prompts=[(g, 0), (g, 1)],
            lengths=[1 + i, 2],
            problems=[f"p{g}"] * 2,
        )
        for g in range(groups)
        for i in range(size)
    ]


def judge(baseline: BaselineRule, episodes: list[Trajectory], assigned: Credit) -> dict:
    seen = replace(make_evidence(*episodes), earned_by_reward={"outcome": assigned})
    return numbers(baseline(seen, assigned)[0])


def drawn(episodes: list[Trajectory], seed: int = 0) -> Credit:
    rng = random.Random(seed)
    return uniform_credit(episodes, *(rng.choice([0.0, 0.25, 1.0, -2.0]) + rng.random() / 8 for _ in episodes))


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("value", [0.0, 0.1, 0.3, 0.7, 1 / 3, float(np.float32(0.1)), float(np.float32(0.7)), -1e20])
def test_where_all_are_worth_the_same_everybody_gets_exactly_0(kind: str, value: float) -> None:
    episodes = step()
    assert set(judge(ALL[kind].build(), episodes, uniform_credit(episodes, *[value] * len(episodes))).values()) == {0.0}


@pytest.mark.parametrize("kind", GROUPED)
@pytest.mark.parametrize("value", [0.1, 0.3, 0.7])
def test_a_constant_group_gets_exactly_0_whatever_the_other_groups_do(kind: str, value: float) -> None:
    episodes = step()
    assigned = drawn(episodes) | uniform_credit(episodes[4:8], *[value] * 4)
    advantages = judge(GROUPED[kind].build(), episodes, assigned)
    assert {advantages[turn.id] for t in episodes[4:8] for turn in t.turns} == {0.0}
    assert any(advantages.values())


@pytest.mark.parametrize("kind", GROUPED)
def test_who_has_no_peers_gets_exactly_0(kind: str) -> None:
    episodes = [*step(1, 3), *step(3, 1)[1:]]
    advantages = judge(GROUPED[kind].build(), episodes, drawn(episodes))
    assert {advantages[turn.id] for t in episodes[3:] for turn in t.turns} == {0.0}
    assert any(advantages.values())


@pytest.mark.parametrize("kind", ALL)
def test_one_episode_alone_is_judged_without_a_division_by_0(kind: str) -> None:
    [alone] = step(1, 1)
    advantages = judge(ALL[kind].build(), [alone], uniform_credit([alone], 0.3))
    assert set(advantages) == {turn.id for turn in alone.turns}
    assert not any(advantages.values())
    assert judge(ALL[kind].build(), [], {}) == {}


# The batch's deviation is that of the raw worths, so that it does change.
@pytest.mark.parametrize("kind", [kind for kind in GROUPED if kind != "group batch"])
def test_what_a_whole_group_is_paid_alike_changes_nothing(kind: str) -> None:
    episodes = step()
    assigned, extra = drawn(episodes), {"0": 3.0, "1": -0.5, "2": 100.0}
    more = {turn: Advantage(worth.value + extra[turn[0][0]]) for turn, worth in assigned.items()}
    before, after = (judge(GROUPED[kind].build(), episodes, worths) for worths in (assigned, more))
    assert after == pytest.approx(before, abs=1e-9)


@pytest.mark.parametrize("kind", ALL)
def test_what_all_are_paid_alike_changes_nothing(kind: str) -> None:
    episodes = step()
    assigned = drawn(episodes)
    more = {turn: Advantage(worth.value - 5.5) for turn, worth in assigned.items()}
    before, after = (judge(ALL[kind].build(), episodes, worths) for worths in (assigned, more))
    assert after == pytest.approx(before, abs=1e-9)


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("factor", [0.01, 7.0])
def test_only_those_that_divide_do_without_the_unit_of_rewards(kind: str, factor: float) -> None:
    episodes = step()
    assigned = drawn(episodes)
    more = {turn: Advantage(worth.value * factor) for turn, worth in assigned.items()}
    before, after = (judge(ALL[kind].build(), episodes, worths) for worths in (assigned, more))
    unit = factor if kind in PLAIN else 1.0
    assert after == pytest.approx({turn: value * unit for turn, value in before.items()}, abs=1e-9)


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_a_number_that_is_not_finite_is_left_for_the_learner_to_refuse(kind: str, bad: float) -> None:
    episodes = step()
    assigned = drawn(episodes) | uniform_credit(episodes[:1], bad)
    advantages = judge(ALL[kind].build(), episodes, assigned)
    broken = [advantages[turn.id] for turn in episodes[0].turns]
    assert not any(map(math.isfinite, broken))
    assert all(math.isfinite(advantages[turn.id]) for t in episodes[4:] for turn in t.turns)


@pytest.mark.parametrize("kind", [kind for kind in ALL if not kind.startswith("joint")])
def test_numbers_for_tokens_are_shifted_and_scaled_like_their_turn(kind: str) -> None:
    episodes = step()
    turns = {turn.id: turn for t in episodes for turn in t.turns}
    plain = drawn(episodes)
    assigned = {
        turn: Advantage(w.value, (w.value,) * len(turns[turn].completion.token_ids), (9.0,))
        for turn, w in plain.items()
    }
    seen = replace(make_evidence(*episodes), earned_by_reward={"outcome": assigned})
    credit, _ = ALL[kind].build()(seen, assigned)
    for turn, advantage in credit.items():
        assert advantage.tokens == pytest.approx((advantage.value,) * len(assigned[turn].tokens), abs=1e-12)
        assert advantage.returns == (9.0,)


def test_tokens_of_a_turn_keep_their_differences() -> None:
    episodes = [detailed_episode(f"{i}", "a", lengths=[2]) for i in range(2)]
    assigned = {("0", 0): Advantage(2.0, (1.5, 2.5)), ("1", 0): Advantage(4.0, (4.0, 5.0))}
    # Mean 3, deviation of 2 and 4 with ddof 1: sqrt(2).
    credit, _ = GrpoBaseline(epsilon=0)(make_evidence(*episodes), assigned)
    assert [credit[f"{i}", 0].tokens for i in range(2)] == [
        pytest.approx((-1.5 / 2**0.5, -0.5 / 2**0.5)),
        pytest.approx((1 / 2**0.5, 2 / 2**0.5)),
    ]
    # Averages of the past: 0 before the first episode, (1 - 0.75) 2 = 0.5 before the second.
    credit, _ = RoleAverageBaseline(alpha=0.75).build()(make_evidence(*episodes), assigned)
    assert [credit[f"{i}", 0].tokens for i in range(2)] == [(1.5, 2.5), (3.5, 4.5)]
    assert NoBaseline()(make_evidence(*episodes), assigned)[0] == assigned


def test_tokens_of_equal_turns_get_exactly_0() -> None:
    episodes = [detailed_episode(f"{i}", "a", lengths=[2]) for i in range(2)]
    assigned = {(f"{i}", 0): Advantage(0.1, (0.0, 0.2)) for i in range(2)}
    credit, _ = GrpoBaseline()(make_evidence(*episodes), assigned)
    assert {advantage.tokens for advantage in credit.values()} == {(0.0, 0.0)}


def test_batch_deviation_is_that_of_all_worths_of_the_step() -> None:
    # Worths 0, 2 and 4, 10: means 1 and 7; all of them: mean 4, squares 16 + 4 + 0 + 36 = 56, variance 56 / 3.
    episodes = [detailed_episode(f"{i}", "a", start=f"{i // 2}") for i in range(4)]
    credit, _ = GrpoBaseline(std="batch", epsilon=0.5)(make_evidence(*episodes), uniform_credit(episodes, 0, 2, 4, 10))
    deviation = (56 / 3) ** 0.5 + 0.5
    assert list(numbers(credit).values()) == pytest.approx([x / deviation for x in (-1, 1, -3, 3)], rel=1e-12)


@pytest.mark.parametrize("kind", ALL)
def test_seats_that_answer_by_rule_are_no_peers(kind: str) -> None:
    episodes = step()
    assigned = drawn(episodes)
    seen = replace(make_evidence(*episodes), earned_by_reward={"outcome": assigned}, rule_based_roles=frozenset({"y"}))
    alone = {turn.id for t in episodes for turn in t.turns if turn.role == "x"}
    alone_assigned = {turn: worth for turn, worth in assigned.items() if turn in alone}
    credit, _ = ALL[kind].build()(seen, assigned)
    assert set(credit) == alone
    assert numbers(credit) == judge(ALL[kind].build(), episodes, alone_assigned)


# --- who is compared with whom ---------------------------------------------------------------------------------------

LIKE = {
    "group prompt": "prompt",
    "group problem": "problem",
    "agent turn": "prompt",
    "agent turn, problem": "prompt",
    "joint round": "prompt",
    "task": None,
    "whiten": None,
    "whiten by role": None,
    "whiten sequences": None,
}


@pytest.mark.parametrize("kind", ALL)
def test_peers_are_those_whose_worth_makes_a_difference(kind: str) -> None:
    # Each turn's worth is changed in its turn; whose advantage then changes must be a peer of that turn.
    episodes = step(2, 3)
    assigned = drawn(episodes)
    seen = replace(make_evidence(*episodes), earned_by_reward={"outcome": assigned})
    peers = ALL[kind].compared_turn_groups(seen, assigned)
    assert peers is not None
    assert peers.shared_property == LIKE.get(kind, "start")
    assert sorted(chain(*peers.groups)) == sorted(assigned)
    if kind in ("group batch", "loo whiten", *(kind for kind in ALL if kind.startswith(("whiten g", "decoupled")))):
        return  # their last step is no comparison with peers: it divides by what all differ
    groups = {turn: set(group) for group in peers.groups for turn in group}
    before = judge(ALL[kind].build(), episodes, assigned)
    for turn in assigned:
        after = judge(ALL[kind].build(), episodes, assigned | {turn: Advantage(17.0)})
        moved = {other for other in assigned if abs(before[other] - after[other]) > 1e-12}
        if kind.startswith("joint"):  # what one member is worth moves its whole team
            moved = {other for other in moved if other[1] == turn[1]}
        assert moved <= groups[turn]


def test_only_those_that_take_peers_ask_for_groups() -> None:
    compares = {kind for kind, baseline in ALL.items() if baseline.needs_groups}
    assert compares == set(GROUPED)


def test_what_the_rule_declares_is_so() -> None:
    # Beside the first turn, episodes part: the second turns' prompts differ.
    episodes = [detailed_episode(f"{i}", "aa", prompts=[(1,), (2, i)], problems=["p", "q"]) for i in range(3)]
    assigned = uniform_credit(episodes, 1.0, 2.0, 4.0)
    turns = {turn.id: turn for t in episodes for turn in t.turns}
    for baseline in (GrpoBaseline(like="prompt"), AgentTurnGroup(), JointBaseline(per="round")):
        peers = baseline.compared_turn_groups(make_evidence(*episodes), assigned)
        assert sorted(map(len, peers.groups)) == [1, 1, 1, 3]
        assert all(len({turns[t].completion.prompt_ids for t in group}) == 1 for group in peers.groups)
    for baseline in (GrpoBaseline(), AgentGroup(), JointBaseline()):
        assert [len(group) for group in baseline.compared_turn_groups(make_evidence(*episodes), assigned).groups] == [6]


# --- the stopping bias -----------------------------------------------------------------------------------------------

CHANCES = {"stop": 0.7, "continue": 0.3}
OVER = {  # how an episode may go, with what it pays, turn by turn: whether to go on makes no difference
    ("stop",): (0.0,),
    ("continue", "continue"): (1.0, -1.0),
    ("continue", "stop"): (1.0, -1.0),
}
NOISE = (-0.5, 0.5)
"""On the last reward, each as likely."""


def course(name: str, moves: tuple[str, ...], off: float) -> Trajectory:
    made = detailed_episode(name, "a" * len(moves), prompts=[(1,), (2,)][: len(moves)], problems=["p"] * len(moves))
    paid = [*OVER[moves][:-1], OVER[moves][-1] + off]
    made.rewards = [Reward("a", value, turn.id) for value, turn in zip(paid, made.turns, strict=True)]
    return made


def gradient(baseline: BaselineRule, to_go: bool) -> float:
    """Of the logit of `continue`, over all pairs of episodes: sum of advantage times d log probability."""
    total = 0.0
    for (one, other), (x, y) in product(product(OVER, OVER), product(NOISE, NOISE)):
        pair = [course("0", one, x), course("1", other, y)]
        assigned = AgentReturnAssign(to_go=to_go)(make_evidence(*pair))
        advantages = judge(baseline, pair, assigned)
        slopes = [(move == "continue") - CHANCES["continue"] for move in (*one, *other)]
        chance = math.prod(CHANCES[move] for move in (*one, *other)) / 4
        total += chance * sum(map(mul, slopes, (advantages[turn.id] for t in pair for turn in t.turns)))
    return total


@pytest.mark.parametrize("kind", ALL)
def test_returns_of_whole_episodes_pay_nothing_for_going_on(kind: str) -> None:
    assert gradient(ALL[kind].build(), to_go=False) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("kind", ["group prompt", "agent turn", "agent turn, problem", "joint round", "loo"])
def test_nor_do_returns_to_go_of_turns_that_were_asked_the_same_or_against_others(kind: str) -> None:
    assert gradient(ALL[kind].build(), to_go=True) == pytest.approx(0, abs=1e-12)


def test_returns_to_go_do_pay_against_the_mean_of_whole_episodes() -> None:
    # The half of a pair's mean that is an episode's own: 0 if it stops, -1 / 2 if it goes on, which has chance 0.3 and
    # slope 0.7. So both together gain 0.3 * 0.7 / 2, but for pairs that go on and end alike (chance 0.09 / 2): they get
    # 0 instead of 1 / 2 for each first turn and -1 / 2 for each second one, whose slopes are 0 in the mean.
    assert gradient(GrpoBaseline(std=False), to_go=True) == pytest.approx(0.105 - 0.045 * 0.7, rel=1e-9)


# --- forks -----------------------------------------------------------------------------------------------------------


def fork_of_three() -> tuple[list[Trajectory], Credit]:
    """Two turns each; the first one is shared, the second ones are candidates with one prompt."""
    past = detailed_episode("0", "ab", prompts=[(1,), (2,)])
    rest = [detailed_episode(f"{i}", "ab", prompts=[(1,), (2,)]) for i in (1, 2)]
    assigned = worth({"0": [3.0, 1.0]}) | {("1", 1): Advantage(2.0), ("2", 1): Advantage(6.0)}
    return [past, *(forked_episode(past, 1, course) for course in rest)], assigned


@pytest.mark.parametrize(
    "baseline",
    [
        GrpoBaseline(like="prompt", std=False),
        AgentTurnGroup(std=False),
        JointBaseline(per="round", teams=(("a",), ("b",))),
    ],
    ids=["prompt", "agent turn", "joint"],
)
def test_candidates_are_compared_and_what_they_share_enters_once(baseline: BaselineConfig) -> None:
    episodes, assigned = fork_of_three()
    credit, metrics = baseline.build()(make_evidence(*episodes), assigned)
    # Candidates 1, 2, 6 have mean 3; the shared turn has no peers.
    assert numbers(credit) == {("0", 0): 0.0, ("0", 1): -2.0, ("1", 1): -1.0, ("2", 1): 3.0}
    assert metrics == {"credit/groups": 2.0, "credit/degenerate_groups": 0.5}


def test_a_turn_that_all_inherited_has_no_others() -> None:
    episodes, assigned = fork_of_three()
    credit, _ = RlooBaseline()(make_evidence(*episodes), assigned)
    # 1 - (2 + 6) / 2, 2 - (1 + 6) / 2, 6 - (1 + 2) / 2
    assert numbers(credit) == {("0", 0): 0.0, ("0", 1): -3.0, ("1", 1): -1.5, ("2", 1): 4.5}


def test_a_turn_that_some_inherited_is_compared_with_the_others() -> None:
    episodes, assigned = fork_of_three()
    other = detailed_episode("3", "ab", prompts=[(1,), (3,)])
    assigned |= worth({"3": [5.0, 9.0]})
    credit, _ = RlooBaseline()(make_evidence(*episodes, other), assigned)
    # Agent a: the shared turn is worth 3 in three episodes, of which none may count for it; the other episode's is 5.
    assert (credit["0", 0].value, credit["3", 0].value) == (-2.0, 2.0)
