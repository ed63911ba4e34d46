"""Against what: GRPO's groups and SPIRAL's role averages."""

import json
from itertools import product

import numpy as np
import pytest
import torch
from trl.trainer.utils import nanstd

from marl.core.graph import Trajectory
from marl.core.types import Turn
from marl.credit.assign.reward_rules import AgentReturnAssign
from marl.credit.baselines.group import GrpoBaseline
from marl.credit.baselines.peer_baseline import PeerGrouping
from marl.credit.baselines.reinforce import NoBaseline, RoleAverageBaseline
from tests.support.handmade_episodes import advantages_of, make_episode, make_evidence, uniform_credit


def group_of(*returns: float, baseline: GrpoBaseline | None = None, start: str = "s") -> list[float]:
    """The advantages of one group of single-turn episodes."""
    episodes = [make_episode(f"{i}", "a", start=start) for i in range(len(returns))]
    credit, _ = (baseline or GrpoBaseline())(make_evidence(*episodes), uniform_credit(episodes, *returns))
    return [advantages_of(credit, t)[0] for t in episodes]


# --- groups ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0.1, 0.3, 0.7, 1 / 3, -1.1, float(np.float32(0.1)), float(np.float32(0.7)), 1e20])
@pytest.mark.parametrize("size", [2, 3, 7, 8])
@pytest.mark.parametrize("epsilon", [0.0, 1e-6])
def test_a_constant_group_is_exactly_0(value: float, size: int, epsilon: float) -> None:
    assert group_of(*[value] * size, baseline=GrpoBaseline(epsilon=epsilon)) == [0.0] * size


def test_returns_that_differ_by_the_order_of_adding_are_equal() -> None:
    assert 0.1 + 0.2 + 0.3 != 0.3 + 0.2 + 0.1
    assert group_of(0.1 + 0.2 + 0.3, 0.3 + 0.2 + 0.1, baseline=GrpoBaseline(epsilon=0.0)) == [0.0, 0.0]


def test_a_constant_group_of_episodes_of_different_lengths_is_exactly_0() -> None:
    episodes = [make_episode(f"{n}", "a" * n) for n in (1, 3, 6, 10)]
    credit, metrics = GrpoBaseline()(make_evidence(*episodes), uniform_credit(episodes, 0.1, 0.1, 0.1, 0.1))
    assert {advantage.value for advantage in credit.values()} == {0.0}
    assert metrics == {"credit/groups": 1.0, "credit/degenerate_groups": 1.0}


def test_who_has_no_peers_gets_0_and_is_counted() -> None:
    episodes = [make_episode("0", "a", start="s"), make_episode("1", "a", start="t"), make_episode("2", "a", start="t")]
    credit, metrics = GrpoBaseline()(make_evidence(*episodes), uniform_credit(episodes, 5.0, 1.0, 2.0))
    assert advantages_of(credit, episodes[0]) == [0.0]
    assert metrics == {"credit/groups": 2.0, "credit/degenerate_groups": 0.5}


def test_the_spread_has_ddof_1() -> None:
    # Returns 1, 2, 3, 6: mean 3, squared differences 4 + 1 + 0 + 9 = 14, variance 14 / 3.
    std = (14 / 3) ** 0.5
    assert group_of(1, 2, 3, 6) == pytest.approx([d / (std + 1e-6) for d in (-2, -1, 0, 3)], rel=1e-12)
    assert group_of(1, 2, 3, 6, baseline=GrpoBaseline(epsilon=0.5)) == pytest.approx(
        [d / (std + 0.5) for d in (-2, -1, 0, 3)]
    )
    assert group_of(1, 2, 3, 6, baseline=GrpoBaseline(std=False)) == [-2, -1, 0, 3]
    # verl's compute_grpo_outcome_advantage on a pair: mean 1/2, torch.std 0.70711, epsilon 1e-6.
    assert group_of(1, 0) == pytest.approx([0.5 / (0.7071067811865476 + 1e-6), -0.5 / (0.7071067811865476 + 1e-6)])


@pytest.mark.parametrize("seed", range(5))
def test_advantages_are_trls(seed: int) -> None:
    # trl.GRPOTrainer._generate_and_score_completions: (r - nanmean) / (nanstd + 1e-4), by group.
    rewards = torch.randn(3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    theirs = (rewards - torch.nanmean(rewards, dim=1, keepdim=True)) / (nanstd(rewards, dim=1)[:, None] + 1e-4)
    ours = [group_of(*row, baseline=GrpoBaseline(epsilon=1e-4)) for row in rewards.tolist()]
    assert np.array(ours) == pytest.approx(theirs.numpy(), rel=1e-7)  # its nanstd counts in float32


def test_episodes_with_the_same_start_are_compared_agent_by_agent_whatever_their_seed() -> None:
    episodes = [make_episode(f"{i}", "abab", start="s" if i < 2 else "t") for i in range(4)]
    for i, t in enumerate(episodes):
        t.rewards = make_episode(t.id, "abab", [("a", float(i), 3), ("b", -10.0 * i, 3)]).rewards
    credit, _ = GrpoBaseline(std=False)(make_evidence(*episodes), AgentReturnAssign()(make_evidence(*episodes)))
    assert [advantages_of(credit, t) for t in episodes] == [
        [-0.5, 5.0, -0.5, 5.0],
        [0.5, -5.0, 0.5, -5.0],
        [-0.5, 5.0, -0.5, 5.0],
        [0.5, -5.0, 0.5, -5.0],
    ]


def test_an_episode_counts_once_however_many_turns_it_has() -> None:
    episodes = [make_episode("short", "a"), make_episode("long", "aaaaaaaaa")]
    credit, _ = GrpoBaseline(std=False)(make_evidence(*episodes), uniform_credit(episodes, 1.0, 3.0))
    assert advantages_of(credit, episodes[0]) == [-1.0]
    assert advantages_of(credit, episodes[1]) == [1.0] * 9


def test_roles_in_the_same_seat_are_not_compared() -> None:
    episodes = [make_episode(f"{i}", "a", seats={"a": role}) for i, role in enumerate(("x", "x", "y", "y"))]
    credit, _ = GrpoBaseline(std=False)(make_evidence(*episodes), uniform_credit(episodes, 0.0, 2.0, 10.0, 30.0))
    assert [advantages_of(credit, t)[0] for t in episodes] == [-1.0, 1.0, -10.0, 10.0]


def test_like_prompt_compares_equal_prompts_only() -> None:
    episodes = [
        make_episode("0", "aa", prompts=[(1,), (7, 7)]),
        make_episode("1", "aa", prompts=[(1,), (8,)]),
        make_episode("2", "aa", prompts=[(1,), (7, 7)]),
    ]
    credit, metrics = GrpoBaseline(like="prompt", std=False)(
        make_evidence(*episodes), uniform_credit(episodes, 0.0, 3.0, 6.0)
    )
    assert [advantages_of(credit, t) for t in episodes] == [[-3.0, -3.0], [0.0, 0.0], [3.0, 3.0]]
    assert metrics == {"credit/groups": 3.0, "credit/degenerate_groups": pytest.approx(1 / 3)}


def test_turns_that_were_not_judged_stay_so_and_do_not_count() -> None:
    episodes = [make_episode(f"{i}", "ab") for i in range(3)]
    worth = uniform_credit(episodes, 1.0, 2.0, 60.0)
    for turn in episodes[2].turns:
        del worth[turn.id]
    del worth["0", 1]
    credit, _ = GrpoBaseline(std=False)(make_evidence(*episodes), worth)
    assert {turn: advantage.value for turn, advantage in credit.items()} == {
        ("0", 0): -0.5,
        ("1", 0): 0.5,
        ("1", 1): 0.0,
    }


# --- the stopping bias ------------------------------------------------------------------------------------------------

CONTINUE, STOP = 0.3, 0.7
"""The policy's probabilities; its gradient with respect to the logit of `continue` follows."""


def stopping() -> list[tuple[float, float, Trajectory]]:
    """(probability, d log probability / d logit, episode) of a game with equal true values.

    `stop` ends it and pays 0. `continue` pays 1 at once and asks again; then either answer costs 1 and ends it.
    """
    outcomes = [(STOP, -CONTINUE, make_episode("stop", "a", [("a", 0.0, 0)]))]
    for chance, score in ((CONTINUE, 1 - CONTINUE), (STOP, -CONTINUE)):
        t = make_episode(f"on {score}", "aa", [("a", 1.0, 0), ("a", -1.0, 1)])
        outcomes.append((CONTINUE * chance, (1 - CONTINUE) + score, t))
    return outcomes


def renamed(t: Trajectory, name: str) -> Trajectory:
    return make_episode(name, [turn.agent for turn in t.turns], [(r.agent, r.value, r.turn[1]) for r in t.rewards])


@pytest.mark.parametrize("std", [True, False])
@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_deciding_when_to_stop_gets_no_gradient_where_stopping_makes_no_difference(std: bool, noise: float) -> None:
    # Exactly: all pairs of outcomes, each with its probability; with noise, every episode's last reward is off by
    # plus or minus 1/2, each as likely, which leaves the true values equal.
    gradient = total = 0.0
    for (p, g, first), (q, h, second), x, y in product(stopping(), stopping(), (-noise, noise), (-noise, noise)):
        pair = [renamed(first, "0"), renamed(second, "1")]
        for t, off in zip(pair, (x, y), strict=True):
            extra = make_episode(t.id, [turn.agent for turn in t.turns], [("a", off, len(t.turns) - 1)])
            t.rewards += extra.rewards
        credit, _ = GrpoBaseline(std=std)(make_evidence(*pair), AgentReturnAssign()(make_evidence(*pair)))
        gradient += p * q / 4 * (g * advantages_of(credit, pair[0])[0] + h * advantages_of(credit, pair[1])[0])
        total += p * q / 4
    assert total == pytest.approx(1)
    assert gradient == pytest.approx(0, abs=1e-12)


# --- role averages ---------------------------------------------------------------------------------------------------

REWARDS = (1, -1, 1, 1, 0)
RAE = {
    "update_first": (0.95, -0.9975, 0.952375, 0.904756, -0.090482),
    "subtract_first": (1, -1.05, 1.0025, 0.952375, -0.095244),
}
"""Worked by hand from the recursion, alpha 0.95."""


@pytest.mark.parametrize("order", RAE)
def test_role_averages_are_the_published_ones(order: str) -> None:
    episodes = [make_episode(f"{i}", "a") for i in range(5)]
    average = RoleAverageBaseline.model_validate({"order": order}).build()
    credit, _ = average(make_evidence(*episodes), uniform_credit(episodes, *REWARDS))
    assert [advantages_of(credit, t)[0] for t in episodes] == pytest.approx(RAE[order], abs=5e-7)


def test_the_two_orders_differ_by_the_factor_alpha() -> None:
    episodes = [make_episode(f"{i}", "a") for i in range(5)]
    each = []
    for order in RAE:
        average = RoleAverageBaseline.model_validate({"order": order, "alpha": 0.8}).build()
        credit, _ = average(make_evidence(*episodes), uniform_credit(episodes, *REWARDS))
        each.append(np.array([advantages_of(credit, t)[0] for t in episodes]))
    assert each[0] == pytest.approx(0.8 * each[1], rel=1e-12)


def test_role_averages_go_on_after_a_restart() -> None:
    episodes = [make_episode(f"{i}", "ab") for i in range(5)]
    whole, before, after = (RoleAverageBaseline().build() for _ in range(3))
    credit, _ = whole(make_evidence(*episodes), uniform_credit(episodes, *REWARDS))
    before(make_evidence(*episodes[:2]), uniform_credit(episodes[:2], *REWARDS[:2]))
    after.load_state_dict(json.loads(json.dumps(before.state_dict())))
    rest, metrics = after(make_evidence(*episodes[2:]), uniform_credit(episodes[2:], *REWARDS[2:]))
    assert rest == {turn: worth for turn, worth in credit.items() if turn in rest}
    assert set(metrics) == {"credit/average/a_game/player/a", "credit/average/a_game/player/b"}


def test_each_role_and_seat_has_an_average_of_its_own_that_learns_once_an_episode() -> None:
    t = make_episode("0", "abaa", [("a", 1.0, 3), ("b", -1.0, 3)], seats={"a": "x", "b": "y"})
    average = RoleAverageBaseline(alpha=0.9).build()
    average(make_evidence(t), AgentReturnAssign()(make_evidence(t)))
    assert average.state_dict()["means"] == {"a_game/x/a": pytest.approx(0.1), "a_game/y/b": pytest.approx(-0.1)}


def test_compared_with_nothing_a_turn_keeps_what_it_earned() -> None:
    t = make_episode("0", "ab")
    worth = uniform_credit([t], 3.0)
    assert NoBaseline()(make_evidence(t), worth) == (worth, {})


def test_keys_of_a_plug_in_may_be_objects_without_a_hash() -> None:
    class RoleKey:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self, trajectory: Trajectory, turn: Turn) -> str:
            return turn.role

    episode = make_episode("e", "ab")
    earned = uniform_credit([episode], 1.0)
    grouping, evidence = PeerGrouping("start", RoleKey(), lambda _, turn: turn.id), make_evidence(episode)
    grouping.groups(evidence, earned)
    assert grouping.compared_turn_groups(evidence, earned).groups == [[("e", 0), ("e", 1)]]
