"""MAGRPO: a team's joint return against that of other episodes."""

import pytest

from marl.core.types import Advantage, Reward
from marl.credit.assign.reward_rules import AgentReturnAssign
from marl.credit.baselines.group import JointBaseline
from tests.support.detailed_handmade_episodes import detailed_episode, forked_episode, numbers, worth
from tests.support.handmade_episodes import advantages_of, make_evidence

EPISODES = [detailed_episode(f"{i}", "abab") for i in range(3)]
# What members were worth, as the mean of their turns: a 1, b 3; a 5, b 3; a 0, b 5. Joint: 4, 8, 5 or the halves of it.
EARNED = worth({"0": [0, 3, 2, 3], "1": [5, 2, 5, 4], "2": [0, 5, 0, 5]})


@pytest.mark.parametrize(
    ("joint", "expected"),
    [
        # 4, 8, 5 have mean 17 / 3.
        (JointBaseline(common="sum"), (-5 / 3, 7 / 3, -2 / 3)),
        (JointBaseline(common="mean"), (-5 / 6, 7 / 6, -1 / 3)),
        # 4 - (8 + 5) / 2, 8 - (4 + 5) / 2, 5 - (4 + 8) / 2
        (JointBaseline(common="sum", against="leave_one_out"), (-2.5, 3.5, -1.0)),
        (JointBaseline(common="sum", against="max"), (-4.0, 0.0, -3.0)),
        # Squares 25 + 49 + 4 = 78 ninths, over 3 (ddof 0): variance 26 / 9.
        (JointBaseline(common="sum", std=True), tuple(d / 26**0.5 for d in (-5, 7, -2))),
        (JointBaseline(common="sum", std=True, epsilon=10), tuple(d / 30 for d in (-5, 7, -2))),
    ],
    ids=["sum", "mean", "MARLOO", "MAReMax", "CoMLRL 1.4.3", "floor"],
)
def test_every_turn_of_a_team_has_the_joint_advantage(joint: JointBaseline, expected: tuple[float, ...]) -> None:
    credit, metrics = joint(make_evidence(*EPISODES), EARNED)
    for episode, advantage in zip(EPISODES, expected, strict=True):
        assert advantages_of(credit, episode) == pytest.approx([advantage] * 4, rel=1e-12)
    assert metrics == {"credit/groups": 1.0, "credit/degenerate_groups": 0.0}


def test_teams_act_each_for_itself_and_who_is_in_none_alone() -> None:
    episodes = [detailed_episode(f"{i}", "abc") for i in range(2)]
    assigned = worth({"0": [0, 2, 10], "1": [4, 6, 30]})
    credit, _ = JointBaseline(teams=(("a", "b"),))(make_evidence(*episodes), assigned)
    assert [advantages_of(credit, t) for t in episodes] == [[-2, -2, -10], [2, 2, 10]]
    with pytest.raises(ValueError, match="teams: no agent 'd' in this game; agents: a, b, c"):
        JointBaseline(teams=(("a", "d"),))(make_evidence(*episodes), assigned)
    with pytest.raises(ValueError, match="teams: 'a' is in more than one"):
        JointBaseline(teams=(("a", "b"), ("a", "c")))


def test_a_common_reward_counts_once_whoever_is_paid() -> None:
    episodes = [detailed_episode(f"{i}", "ab") for i in range(2)]
    for agents in ("ab", "b"):  # all are paid, or the last one
        for value, t in enumerate(episodes):
            t.rewards = [Reward(agent, float(value), t.turns[-1].id) for agent in agents]
        joint = JointBaseline(common="mean" if agents == "ab" else "sum")
        credit, _ = joint(make_evidence(*episodes), AgentReturnAssign()(make_evidence(*episodes)))
        assert [advantages_of(credit, t) for t in episodes] == [[-0.5, -0.5], [0.5, 0.5]]


def test_roles_that_changed_seats_are_other_teams() -> None:
    seats = [{"a": "x", "b": "y"}, {"a": "y", "b": "x"}]
    episodes = [detailed_episode(f"{i}", "ab", seats=seats[i // 2]) for i in range(4)]
    credit, metrics = JointBaseline()(
        make_evidence(*episodes), worth({"0": [0, 0], "1": [2, 2], "2": [8, 8], "3": [4, 4]})
    )
    assert [advantages_of(credit, t) for t in episodes] == [[-1, -1], [1, 1], [2, 2], [-2, -2]]
    assert metrics["credit/groups"] == 2.0


def test_rounds_are_compared_where_all_members_were_asked_the_same() -> None:
    # First rounds always; second ones of episodes 0 and 1, for b was asked something else in the third.
    prompt_rows = [[(1,), (2,), (3,), (4,)], [(1,), (2,), (3,), (4,)], [(1,), (2,), (3,), (5,)]]
    episodes = [detailed_episode(f"{i}", "abab", prompts=prompts) for i, prompts in enumerate(prompt_rows)]
    assigned = worth({"0": [1, 3, 0, 2], "1": [3, 3, 4, 2], "2": [4, 4, 9, 9]})
    credit, metrics = JointBaseline(per="round")(make_evidence(*episodes), assigned)
    # Rounds' joint returns: 2, 3, 4 (mean 3); 1, 3 (mean 2); 9 alone.
    assert [advantages_of(credit, t) for t in episodes] == [[-1, -1, -1, -1], [0, 0, 1, 1], [1, 1, 0, 0]]
    assert metrics == {"credit/groups": 3.0, "credit/degenerate_groups": pytest.approx(1 / 3)}


def test_rounds_of_a_tree_have_the_papers_returns() -> None:
    # Round 1 pays 1 to both and is shared; of its two continuations one pays 2 more, the other 4. In another episode
    # from this start, round 1 pays 0 and so does round 2. R_1 = 1 + (2 + 4) / 2 = 4 against 0; R_2 = 2 and 4.
    prompt_rows = [(1,), (2,), (3,), (4,)]
    past = detailed_episode("0", "abab", prompts=prompt_rows)
    episodes = [
        past,
        forked_episode(past, 2, detailed_episode("1", "abab", prompts=prompt_rows)),
        detailed_episode("2", "abab", prompts=prompt_rows),
    ]
    for t, (first, second) in zip(episodes, [(1, 2), (1, 4), (0, 0)], strict=True):
        t.rewards = [Reward(a, float(v), t.turns[i].id) for i, v in ((1, first), (3, second)) for a in "ab"]
    assigned = {
        turn.id: Advantage(4.0) for turn in past.turns[:2]
    }  # the mean of what the courses that hold them earned
    assigned |= {turn.id: Advantage(2.0) for turn in past.turns[2:]}
    assigned |= {turn.id: Advantage(4.0) for turn in episodes[1].turns[2:]}
    assigned |= {turn.id: Advantage(0.0) for turn in episodes[2].turns}
    credit, metrics = JointBaseline(per="round")(make_evidence(*episodes), assigned)
    # Round 1: 4 and 0, the shared one once. Round 2: 2, 4 and 0.
    assert numbers(credit) == {
        **{("0", 0): 2.0, ("0", 1): 2.0, ("2", 0): -2.0, ("2", 1): -2.0},
        **{("0", 2): 0.0, ("0", 3): 0.0, ("1", 2): 2.0, ("1", 3): 2.0, ("2", 2): -2.0, ("2", 3): -2.0},
    }
    assert metrics == {"credit/groups": 2.0, "credit/degenerate_groups": 0.0}


def test_what_differs_within_a_team_is_lost_tokens_included() -> None:
    episodes = [detailed_episode(f"{i}", "ab", lengths=[2, 2]) for i in range(2)]
    assigned = {(f"{i}", j): Advantage(float(i + j), (0.0, 5.0), (7.0,)) for i in range(2) for j in range(2)}
    credit, _ = JointBaseline()(make_evidence(*episodes), assigned)
    assert credit["1", 0] == credit["1", 1] == Advantage(0.5, (), (7.0,))


def test_against_makes_no_difference_where_the_mean_is_taken_off_again() -> None:
    with pytest.raises(ValueError, match="against: 'max' makes no difference with std: true"):
        JointBaseline(std=True, against="max")
