"""Groups of a team's agents (AT-GRPO, Dr. MAS, TRR++), and baselines of REINFORCE (RLOO, OPO)."""

from dataclasses import replace

import pytest

from marl.core.types import Completion, Fork
from marl.credit.assign.reward_rules import AgentReturnAssign
from marl.credit.baselines.group import (
    AgentGroup,
    AgentTurnGroup,
    GrpoBaseline,
    OpoBaseline,
    RlooBaseline,
    TaskRoleBaseline,
)
from marl.games.tic_tac_toe import TicTacToeConfig
from tests.support.detailed_handmade_episodes import detailed_episode, numbers, worth
from tests.support.handmade_episodes import advantages_of, make_evidence, uniform_credit
from tests.support.small_games import FunctionEngine, make_deal, make_simulator, random_move

# --- AT-GRPO ---------------------------------------------------------------------------------------------------------


def test_agents_and_turns_are_compared_each_by_themselves() -> None:
    # Both agents speak twice and are always asked the same. Worths of a's first turns 0, 2 and second ones 4, 8; of b's
    # 1, 5 and 0, 10.
    episodes = [detailed_episode(f"{i}", "abab", prompts=[(1,)] * 4) for i in range(2)]
    assigned = worth({"0": [0, 1, 4, 0], "1": [2, 5, 8, 10]})
    credit, metrics = AgentTurnGroup(std=False)(make_evidence(*episodes), assigned)
    assert [advantages_of(credit, t) for t in episodes] == [[-1, -2, -2, -5], [1, 2, 2, 5]]
    assert metrics == {"credit/groups": 4.0, "credit/degenerate_groups": 0.0}


def test_candidates_have_grpos_advantages_of_verl() -> None:
    # 1, 2, 3, 6: mean 3, squares 4 + 1 + 0 + 9 = 14, ddof 1, epsilon 1e-6.
    episodes = [detailed_episode(f"{i}", "a", prompts=[(5,)]) for i in range(4)]
    credit, _ = AgentTurnGroup()(make_evidence(*episodes), worth({"0": [1], "1": [2], "2": [3], "3": [6]}))
    std = (14 / 3) ** 0.5 + 1e-6
    assert list(numbers(credit).values()) == pytest.approx([-2 / std, -1 / std, 0, 3 / std], rel=1e-12)


def test_turns_that_parted_are_not_compared_and_later_groups_may_be_smaller() -> None:
    episodes = [
        detailed_episode("0", "aa", prompts=[(1,), (7,)]),
        detailed_episode("1", "aa", prompts=[(1,), (8,)]),
        detailed_episode("2", "aa", prompts=[(1,), (7,)]),
        detailed_episode("3", "a", prompts=[(1,)]),
    ]
    assigned = worth({"0": [1, 2], "1": [2, 90], "2": [3, 6], "3": [6]})
    credit, _ = AgentTurnGroup(std=False)(make_evidence(*episodes), assigned)
    assert [advantages_of(credit, t) for t in episodes] == [[-2, -2], [-1, 0], [0, 2], [3]]


def test_episodes_from_other_starts_are_peers_only_where_the_problem_is_the_same() -> None:
    episodes = [detailed_episode(f"{i}", "a", start=f"s{i}", prompts=[(1,)], problems=["p"]) for i in range(2)]
    assigned = uniform_credit(episodes, 1.0, 3.0)
    by_start, _ = AgentTurnGroup(std=False)(make_evidence(*episodes), assigned)
    by_problem, _ = AgentTurnGroup(std=False, like="problem")(make_evidence(*episodes), assigned)
    assert [list(numbers(c).values()) for c in (by_start, by_problem)] == [[0, 0], [-1, 1]]
    unposed = detailed_episode("2", "a", prompts=[(1,)])
    with pytest.raises(ValueError, match="like: 'problem', but role 'player' works on none"):
        AgentTurnGroup(like="problem")(make_evidence(unposed), uniform_credit([unposed], 1.0))


class Asking(FunctionEngine):
    """Its prompts' tokens are the words that it was asked."""

    def _answer(self, request):  # type: ignore[no-untyped-def]
        words = "|".join(message.content for message in request.messages)
        completion = super()._answer(request)
        assert isinstance(completion, Completion)
        return replace(completion, prompt_ids=tuple(words.encode()))


def test_forks_of_a_real_game_are_compared_with_the_course_they_left() -> None:
    game = TicTacToeConfig()
    simulator = make_simulator(game, Asking(random_move))
    [past] = simulator.play([make_deal("e", game)])
    episodes = [past, *simulator.play([Fork(past, 2, n=5)])]
    seen = make_evidence(*episodes)
    peers = AgentTurnGroup().compared_turn_groups(seen, AgentReturnAssign()(seen))
    [candidates] = [group for group in peers.groups if past.turns[2].id in group]
    assert candidates == [t.turns[2].id for t in episodes]
    for turn in past.turns[:2]:
        assert [turn.id] in peers.groups


# --- Dr. MAS ---------------------------------------------------------------------------------------------------------


def test_every_turn_of_an_agent_counts() -> None:
    # a is worth 1, 1, 1 and 5: mean 2, where each episode counts once it is 3. b is judged by itself: 0 and 4.
    episodes = [detailed_episode("0", "aaab"), detailed_episode("1", "ab")]
    assigned = worth({"0": [1, 1, 1, 0], "1": [5, 4]})
    credit, metrics = AgentGroup(std=False)(make_evidence(*episodes), assigned)
    assert [advantages_of(credit, t) for t in episodes] == [[-1, -1, -1, -2], [3, 2]]
    assert metrics == {"credit/groups": 2.0, "credit/degenerate_groups": 0.0}
    each_once, _ = GrpoBaseline(std=False)(make_evidence(*episodes), assigned)
    assert [advantages_of(each_once, t) for t in episodes] == [[-2, -2, -2, -2], [2, 2]]
    # ddof 1: squares 3 * 1 + 9 = 12 over 3.
    divided, _ = AgentGroup(epsilon=0.5)(make_evidence(*episodes), assigned)
    assert divided["1", 0].value == pytest.approx(3 / (2 + 0.5), rel=1e-12)


# --- TRR++ -----------------------------------------------------------------------------------------------------------

SEATS = {"p": "proposer", "s": "solver", "t": "solver"}


def test_tasks_and_roles_have_a_mean_and_a_deviation_each() -> None:
    # Proposer: 0, 1, 1, 0: mean 1/2, squares 1, variance 1/3. Solvers of `sum`: 1, 0, 1, 0 (the same); of `sort`: 0, 0,
    # 0, 1: mean 1/4, squares 3/16 + 9/16 = 3/4, variance 1/4.
    kinds = ("sum 1", "sum 2", "sort 1", "sort 2")
    episodes = [
        detailed_episode(f"{i}", "pst", start=f"{i}", seats=SEATS, problems=["", k, k]) for i, k in enumerate(kinds)
    ]
    assigned = worth({"0": [0, 1, 0], "1": [1, 1, 0], "2": [1, 0, 0], "3": [0, 0, 1]})
    credit, metrics = TaskRoleBaseline(task=r"^\w+", epsilon=0)(make_evidence(*episodes), assigned)
    half = 0.5 * 3**0.5
    assert [advantages_of(credit, t) for t in episodes] == [
        pytest.approx([-half, half, -half]),
        pytest.approx([half, half, -half]),
        pytest.approx([half, -0.5, -0.5]),
        pytest.approx([-half, -0.5, 1.5]),
    ]
    assert metrics == {"credit/groups": 3.0, "credit/degenerate_groups": 0.0}


def test_without_a_pattern_the_game_is_the_task() -> None:
    episodes = [detailed_episode(f"{i}", "s", start=f"{i}", seats=SEATS, problems=[f"{i}"]) for i in range(2)]
    credit, _ = TaskRoleBaseline(std=False)(make_evidence(*episodes), uniform_credit(episodes, 0.0, 4.0))
    assert [advantages_of(credit, t) for t in episodes] == [[-2], [2]]


def test_one_work_on_one_problem_counts_once() -> None:
    episodes = [
        detailed_episode("0", "sss", seats=SEATS, problems=["p", "p", "q"]),
        detailed_episode("1", "s", seats=SEATS, problems=["p"]),
    ]
    credit, _ = TaskRoleBaseline(std=False)(make_evidence(*episodes), worth({"0": [0, 0, 3], "1": [6]}))
    # Worths 0 (twice said, once counted), 3, 6.
    assert [advantages_of(credit, t) for t in episodes] == [[-3, -3, 0], [3]]


def test_a_problem_whose_task_cannot_be_told_is_named() -> None:
    one = detailed_episode("0", "s", seats=SEATS, problems=["1+2"])
    with pytest.raises(ValueError, match=r"task: '\[a-z\]\+' finds nothing in '1\+2' \(turn \('0', 0\)\)"):
        TaskRoleBaseline(task="[a-z]+")(make_evidence(one), uniform_credit([one], 1.0))
    with pytest.raises(ValueError, match="'\\(' is no regular expression"):
        TaskRoleBaseline(task="(")


# --- RLOO, OPO -------------------------------------------------------------------------------------------------------


def test_each_is_compared_with_the_others() -> None:
    # 1 - (2 + 6) / 2, 2 - (1 + 6) / 2, 6 - (1 + 2) / 2: 3 / 2 of the differences from the mean.
    episodes = [detailed_episode(f"{i}", "aa") for i in range(3)]
    credit, _ = RlooBaseline()(make_evidence(*episodes), uniform_credit(episodes, 1, 2, 6))
    assert [advantages_of(credit, t) for t in episodes] == [[-3, -3], [-1.5, -1.5], [4.5, 4.5]]


def test_a_turns_own_worth_may_differ_from_its_episodes() -> None:
    # Rewards to go: 4, 2 (mean 3) and 1. The others of the first episode's turns: 1; of the second's: 3.
    episodes = [detailed_episode("0", "aa"), detailed_episode("1", "a")]
    credit, _ = RlooBaseline()(make_evidence(*episodes), worth({"0": [4, 2], "1": [1]}))
    assert [advantages_of(credit, t) for t in episodes] == [[3, 1], [-2]]


def test_long_answers_make_the_baseline() -> None:
    # Lengths 1 + 2, 1 and worths 4, 0: baseline (3 * 4 + 1 * 0) / 4 = 3.
    episodes = [detailed_episode("0", "aa", lengths=[1, 2]), detailed_episode("1", "a", lengths=[1])]
    credit, _ = OpoBaseline()(make_evidence(*episodes), uniform_credit(episodes, 4, 0))
    assert [advantages_of(credit, t) for t in episodes] == [[1, 1], [-3]]


def test_of_equal_lengths_the_baseline_is_the_mean_and_without_any_there_is_none() -> None:
    episodes = [detailed_episode(f"{i}", "a", lengths=[7]) for i in range(3)]
    assigned = uniform_credit(episodes, 1, 2, 6)
    assert OpoBaseline()(make_evidence(*episodes), assigned) == GrpoBaseline(std=False)(
        make_evidence(*episodes), assigned
    )
    silent = [detailed_episode(f"{i}", "a", lengths=[0]) for i in range(3)]
    assert set(numbers(OpoBaseline()(make_evidence(*silent), assigned)[0]).values()) == {0.0}
