"""Who earned it."""

from collections import Counter

import pytest

from marl.core.types import Fork
from marl.credit.assign.reward_rules import AgentReturnAssign, FullTeamRewardAssign, LastSpeaker, RewardFlowAssign
from marl.games.kuhn_poker import KuhnPokerConfig
from marl.protocols import AssignConfig, Evidence
from tests.support.credit_graphs import ROLES, fork_episode, random_episode
from tests.support.handmade_episodes import advantages_of, make_episode, make_evidence
from tests.support.small_games import FunctionEngine, make_deal, make_simulator, random_move


def test_outcome_pays_every_turn_its_agents_return() -> None:
    t = make_episode("e", "abab", [("a", 1.0, 0), ("b", -2.0, 1), ("a", 0.5, 3)])
    assert advantages_of(AgentReturnAssign()(make_evidence(t)), t) == [1.5, -2.0, 1.5, -2.0]


def test_an_agent_that_is_paid_nothing_earned_nothing() -> None:
    t = make_episode("e", "ab")
    assert advantages_of(AgentReturnAssign()(make_evidence(t)), t) == [0.0, 0.0]


def test_outcome_to_go_leaves_out_what_was_paid_before() -> None:
    t = make_episode("e", "ababa", [("a", 1.0, 0), ("b", 2.0, 0), ("b", 4.0, 1), ("a", 8.0, 3), ("a", 16.0, 4)])
    assert advantages_of(AgentReturnAssign(to_go=True)(make_evidence(t)), t) == [25.0, 4.0, 24.0, 0.0, 16.0]


def test_a_payment_in_parts_counts_whole() -> None:
    t = make_episode("e", "aa", [("a", 1.0, 0), ("a", 2.0, 1), ("a", 4.0, 0)])
    assert advantages_of(AgentReturnAssign(to_go=True)(make_evidence(t)), t) == [7.0, 2.0]
    assert advantages_of(AgentReturnAssign()(make_evidence(t)), t) == [7.0, 7.0]


def test_a_chain_pays_decay_to_the_power_of_the_hops() -> None:
    t = make_episode("e", "aaaaa", [("a", 1.0, 4)])
    assert advantages_of(RewardFlowAssign(decay=0.5)(make_evidence(t)), t) == [1 / 16, 1 / 8, 1 / 4, 1 / 2, 1]


def test_a_diamond_by_hand() -> None:
    # 0:a; 1:b reads 0; 2:a reads 1 and 0; 3:b reads 2 and 1. One team, 8 at the end, decay 1/2:
    # c3 = 8, of which 4 goes on: 2 to 2 and 2 to 1; c2 = 2, so .5 goes to 1 and .5 to 0; c1 = 2.5, so 1.25 goes to 0.
    t = make_episode("e", "abab", [("a", 8.0, 3)])
    assert advantages_of(RewardFlowAssign(decay=0.5, teams=(("a", "b"),))(make_evidence(t)), t) == [1.75, 2.5, 2.0, 8.0]


def test_rewards_never_reach_another_team() -> None:
    t = make_episode("e", "abcabc", [("a", 3.0, 5), ("c", -5.0, 3)])
    flow = RewardFlowAssign(decay=1.0, teams=(("a", "b"),))
    only_a = make_episode("e", "abcabc", [("a", 3.0, 5)])
    only_c = make_episode("e", "abcabc", [("c", -5.0, 3)])
    all_, a, c = (advantages_of(flow(make_evidence(x)), x) for x in (t, only_a, only_c))
    assert [all_[i] for i in (0, 1, 3, 4)] == [a[i] for i in (0, 1, 3, 4)]
    assert [all_[i] for i in (2, 5)] == [c[i] for i in (2, 5)]
    assert [c[i] for i in (0, 1, 3, 4)] == [0.0] * 4
    assert [a[i] for i in (2, 5)] == [0.0] * 2


@pytest.mark.parametrize("seed", range(5))
def test_with_decay_1_and_one_team_the_turns_that_read_nothing_get_all_there_is(seed: int) -> None:
    # What is conserved: a reward is passed on whole, to the turns that had been read, until it reaches the first ones.
    agents = "abcbacabcacb"[seed:]
    t = make_episode("e", agents, [("a", 1.5, 2), ("b", -4.0, 5), ("c", 10.0, len(agents) - 1)])
    credit = RewardFlowAssign(decay=1.0, teams=(("a", "b", "c"),))(make_evidence(t))
    first = [turn for turn in t.turns if not list(t.graph.predecessors(turn.id))]
    assert sum(credit[turn.id].value for turn in first) == pytest.approx(7.5)


def test_flow_is_linear_in_the_rewards() -> None:
    parts = [[("a", 1.0, 1)], [("b", 2.0, 3)], [("a", -3.0, 4), ("b", 5.0, 5)]]
    flow = RewardFlowAssign(decay=0.7, teams=(("a", "b"),))
    each = [advantages_of(flow(make_evidence(t)), t) for t in (make_episode("e", "ababab", paid) for paid in parts)]
    whole = make_episode("e", "ababab", [reward for paid in parts for reward in paid])
    assert advantages_of(flow(make_evidence(whole)), whole) == pytest.approx(
        [sum(column) for column in zip(*each, strict=True)]
    )


def test_flow_looks_at_every_turn_once() -> None:
    looks: Counter[object] = Counter()

    class Counting(dict):  # type: ignore[type-arg]
        def __getitem__(self, key: object) -> object:
            looks[key] += 1
            return super().__getitem__(key)

    t = make_episode("e", "ab" * 200, [("a", 1.0, 399)])
    t.reads = Counting(t.reads)
    RewardFlowAssign(teams=(("a", "b"),))(make_evidence(t))
    assert looks == Counter(turn.id for turn in t.turns)


def test_teams_are_checked() -> None:
    with pytest.raises(ValueError, match="'a' is in more than one"):
        RewardFlowAssign(teams=(("a", "b"), ("a", "c")))
    with pytest.raises(ValueError, match="no agent 'z' in this game; agents: a, b"):
        RewardFlowAssign(teams=(("a", "z"),))(make_evidence(make_episode("e", "ab")))


def test_in_kuhn_poker_a_called_bet_pays_the_bettor_over_one_hop() -> None:
    game = KuhnPokerConfig()
    simulator = make_simulator(game, FunctionEngine(random_move))
    [past] = simulator.play([make_deal("e", game, cards="KQ")])
    [[bet]] = simulator.play_forks([Fork(past, 0, "bet")])
    [[called]] = simulator.play_forks([Fork(bet, 1, "call")])
    assert advantages_of(RewardFlowAssign(decay=0.9)(make_evidence(called)), called) == [pytest.approx(0.9 * 2.0), -2.0]


TEAM = (("a", "b"),)


def test_uniform_pays_every_turn_of_a_team_what_the_team_is_paid() -> None:
    t = make_episode("e", "abcabc", [("a", 1.0, 0), ("b", 2.0, 4), ("c", -5.0, 5)])
    assert advantages_of(FullTeamRewardAssign()(make_evidence(t)), t) == [-2.0] * 6
    assert advantages_of(FullTeamRewardAssign(teams=TEAM)(make_evidence(t)), t) == [3.0, 3.0, -5.0, 3.0, 3.0, -5.0]


def test_where_a_game_pays_the_same_to_all_the_mean_counts_it_once() -> None:
    t = make_episode("e", "abab", [("a", 7.0, 3), ("b", 7.0, 3)])
    assert advantages_of(FullTeamRewardAssign(common="mean")(make_evidence(t)), t) == [7.0] * 4
    assert advantages_of(LastSpeaker(common="mean")(make_evidence(t)), t) == [0.0, 0.0, 0.0, 7.0]


def test_only_the_last_turn_of_a_team_is_paid_and_the_others_are_judged_to_be_worth_nothing() -> None:
    t = make_episode("e", "abcacb", [("a", 1.0, 0), ("b", 2.0, 1), ("c", -5.0, 2)])
    assert advantages_of(LastSpeaker()(make_evidence(t)), t) == [0.0, 0.0, 0.0, 0.0, 0.0, -2.0]
    assert advantages_of(LastSpeaker(teams=TEAM)(make_evidence(t)), t) == [0.0, 0.0, 0.0, 0.0, -5.0, 3.0]


@pytest.mark.parametrize("rule", [FullTeamRewardAssign(), LastSpeaker()], ids=lambda rule: rule.kind)
def test_seats_that_answer_by_rule_are_in_no_team(rule: AssignConfig) -> None:
    t = random_episode(1)
    credit = rule.build()(Evidence([t], "a_game", rule_based_roles=frozenset({"verifier"})))
    assert credit.keys() == {turn.id for turn in t.turns if turn.role != "verifier"}


@pytest.mark.parametrize("seed", range(5))
def test_on_any_graph_the_last_speakers_credit_sums_to_what_was_paid(seed: int) -> None:
    t = random_episode(seed)
    total = sum(reward.value for reward in t.rewards)
    assert sum(a.value for a in LastSpeaker()(make_evidence(t)).values()) == pytest.approx(total)
    teams = sum(a.value for a in LastSpeaker(teams=TEAM)(make_evidence(t)).values())
    spoke = {turn.agent for turn in t.turns}
    assert spoke == set(ROLES)
    assert teams == pytest.approx(total)


FORKS: list[tuple[AssignConfig, tuple[list[float], list[float], list[float]]]] = [
    # (first two turns inherited) as in the episode in which they were said; then each branch's own
    (AgentReturnAssign(), ([1.0, 0.0], [1.0], [4.0])),
    (AgentReturnAssign(to_go=True), ([1.0, 0.0], [1.0], [4.0])),
    (FullTeamRewardAssign(), ([1.0, 1.0], [1.0], [4.0])),
    (LastSpeaker(), ([0.0, 0.0], [1.0], [4.0])),
    # c2 = r; half of that goes on, to what the last turn had read: both turns, a quarter each; then b passes a half on.
    (RewardFlowAssign(decay=0.5, teams=TEAM), ([1 / 4 + 1 / 8, 1 / 4], [1.0], [4.0])),
]


@pytest.mark.parametrize(
    ("rule", "expected"), FORKS, ids=[f"{rule.kind}{rule.model_dump().get('to_go', '')}" for rule, _ in FORKS]
)
def test_a_turn_that_branches_inherited_is_worth_what_it_is_where_it_was_said(
    rule: AssignConfig, expected: tuple[list[float], list[float], list[float]]
) -> None:
    past = make_episode("e", "aba", [("a", 1.0, 2)])
    branch = fork_episode(past, 2, "f", "a", [("a", 4.0, 2)])
    credit = rule.build()(make_evidence(past, branch))
    shared, first, second = expected
    assert [credit[turn.id].value for turn in past.turns[:2]] == pytest.approx(shared)
    assert [credit[t.turns[2].id].value for t in (past, branch)] == [*first, *second]
    assert len(credit) == 4


def test_a_rewards_pool_is_what_its_team_is_paid() -> None:
    t = random_episode(3)
    seen = Evidence([t], "a_game", rule_based_roles=frozenset({"verifier"}))
    returns = t.returns
    assert dict(RewardFlowAssign().agent_groups_with_shared_reward(t, seen)) == {
        frozenset({agent}): returns.get(agent, 0.0) for agent in "abc"
    }
    reward_pools = dict(RewardFlowAssign(teams=TEAM).agent_groups_with_shared_reward(t, seen))
    assert reward_pools[frozenset("ab")] == pytest.approx(returns.get("a", 0.0) + returns.get("b", 0.0))
