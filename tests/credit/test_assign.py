"""Who earned it."""

from collections import Counter

import pytest
from by_hand import episode, evidence, worths
from small_games import Voice, deal, drawn, table

from credit.assign import Flow, Outcome
from games.kuhn_poker import KuhnPokerConfig


def test_outcome_pays_every_turn_its_agents_return() -> None:
    t = episode("e", "abab", [("a", 1.0, 0), ("b", -2.0, 1), ("a", 0.5, 3)])
    assert worths(Outcome()(evidence(t)), t) == [1.5, -2.0, 1.5, -2.0]


def test_an_agent_that_is_paid_nothing_earned_nothing() -> None:
    t = episode("e", "ab")
    assert worths(Outcome()(evidence(t)), t) == [0.0, 0.0]


def test_outcome_to_go_leaves_out_what_was_paid_before() -> None:
    t = episode("e", "ababa", [("a", 1.0, 0), ("b", 2.0, 0), ("b", 4.0, 1), ("a", 8.0, 3), ("a", 16.0, 4)])
    assert worths(Outcome(to_go=True)(evidence(t)), t) == [25.0, 4.0, 24.0, 0.0, 16.0]


def test_a_payment_in_parts_counts_whole() -> None:
    t = episode("e", "aa", [("a", 1.0, 0), ("a", 2.0, 1), ("a", 4.0, 0)])
    assert worths(Outcome(to_go=True)(evidence(t)), t) == [7.0, 2.0]
    assert worths(Outcome()(evidence(t)), t) == [7.0, 7.0]


def test_a_chain_pays_decay_to_the_power_of_the_hops() -> None:
    t = episode("e", "aaaaa", [("a", 1.0, 4)])
    assert worths(Flow(decay=0.5)(evidence(t)), t) == [1 / 16, 1 / 8, 1 / 4, 1 / 2, 1]


def test_a_diamond_by_hand() -> None:
    # 0:a; 1:b reads 0; 2:a reads 1 and 0; 3:b reads 2 and 1. One team, 8 at the end, decay 1/2:
    # c3 = 8, of which 4 goes on: 2 to 2 and 2 to 1; c2 = 2, so .5 goes to 1 and .5 to 0; c1 = 2.5, so 1.25 goes to 0.
    t = episode("e", "abab", [("a", 8.0, 3)])
    assert worths(Flow(decay=0.5, teams=(("a", "b"),))(evidence(t)), t) == [1.75, 2.5, 2.0, 8.0]


def test_rewards_never_reach_another_team() -> None:
    t = episode("e", "abcabc", [("a", 3.0, 5), ("c", -5.0, 3)])
    flow = Flow(decay=1.0, teams=(("a", "b"),))
    only_a = episode("e", "abcabc", [("a", 3.0, 5)])
    only_c = episode("e", "abcabc", [("c", -5.0, 3)])
    all_, a, c = (worths(flow(evidence(x)), x) for x in (t, only_a, only_c))
    assert [all_[i] for i in (0, 1, 3, 4)] == [a[i] for i in (0, 1, 3, 4)]
    assert [all_[i] for i in (2, 5)] == [c[i] for i in (2, 5)]
    assert [c[i] for i in (0, 1, 3, 4)] == [0.0] * 4
    assert [a[i] for i in (2, 5)] == [0.0] * 2


@pytest.mark.parametrize("seed", range(5))
def test_with_decay_1_and_one_team_the_turns_that_read_nothing_get_all_there_is(seed: int) -> None:
    # What is conserved: a reward is passed on whole, to the turns that had been read, until it reaches the first ones.
    agents = "abcbacabcacb"[seed:]
    t = episode("e", agents, [("a", 1.5, 2), ("b", -4.0, 5), ("c", 10.0, len(agents) - 1)])
    credit = Flow(decay=1.0, teams=(("a", "b", "c"),))(evidence(t))
    first = [turn for turn in t.turns if not list(t.graph.predecessors(turn.id))]
    assert sum(credit[turn.id].value for turn in first) == pytest.approx(7.5)


def test_flow_is_linear_in_the_rewards() -> None:
    parts = [[("a", 1.0, 1)], [("b", 2.0, 3)], [("a", -3.0, 4), ("b", 5.0, 5)]]
    flow = Flow(decay=0.7, teams=(("a", "b"),))
    each = [worths(flow(evidence(t)), t) for t in (episode("e", "ababab", paid) for paid in parts)]
    whole = episode("e", "ababab", [reward for paid in parts for reward in paid])
    assert worths(flow(evidence(whole)), whole) == pytest.approx([sum(column) for column in zip(*each, strict=True)])


def test_flow_looks_at_every_turn_once() -> None:
    looks: Counter[object] = Counter()

    class Counting(dict):  # type: ignore[type-arg]
        def __getitem__(self, key: object) -> object:
            looks[key] += 1
            return super().__getitem__(key)

    class Watched:
        def __init__(self, pred: dict[object, object]) -> None:
            self.pred = Counting(pred)

    t = episode("e", "ab" * 200, [("a", 1.0, 399)])
    t.graph = Watched({turn.id: dict(t.graph.pred[turn.id]) for turn in t.turns})  # type: ignore[assignment]
    Flow(teams=(("a", "b"),))(evidence(t))
    assert looks == Counter(turn.id for turn in t.turns)


def test_teams_are_checked() -> None:
    with pytest.raises(ValueError, match="'a' is in more than one"):
        Flow(teams=(("a", "b"), ("a", "c")))
    with pytest.raises(ValueError, match="no agent 'z' in this game; agents: a, b"):
        Flow(teams=(("a", "z"),))(evidence(episode("e", "ab")))


def test_in_kuhn_poker_a_called_bet_pays_the_bettor_over_one_hop() -> None:
    game = KuhnPokerConfig()
    laid = table(game, Voice(drawn))
    [past] = laid.play([deal("e", game, cards="KQ")])
    bet = laid.fork(past.turns[0].id, 1, "bet")[0]
    called = laid.fork(bet.turns[1].id, 1, "call")[0]
    assert worths(Flow(decay=0.9)(evidence(called)), called) == [pytest.approx(0.9 * 2.0), -2.0]
