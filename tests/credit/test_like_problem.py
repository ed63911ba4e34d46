"""Peers that work on the same problem, in one episode or in several."""

from dataclasses import replace

import pytest

from marl.core.graph import Trajectory
from marl.core.types import Advantage
from marl.credit.baselines.group import GrpoBaseline
from tests.support.handmade_episodes import advantages_of, make_episode, make_evidence, uniform_credit

PEERS = GrpoBaseline(like="problem", std=False)


def on(name: str, agents: str, *problems: str, **more: dict[str, str]) -> Trajectory:
    """An episode whose turns work on these problems."""
    whole = make_episode(name, agents, seats=dict.fromkeys(agents, "solver") | more.get("seats", {}))
    made = Trajectory(whole.deal, name)
    for turn, problem in zip(whole.turns, problems, strict=True):
        made.add(replace(turn, problem=problem), ())
    return made


def test_agents_of_one_role_on_one_problem_are_compared_across_and_within_episodes() -> None:
    episodes = [on("0", "ab", "p", "p"), on("1", "ab", "p", "p"), on("2", "ab", "q", "q")]
    values = {("0", 0): 1.0, ("0", 1): 0.0, ("1", 0): 1.0, ("1", 1): 1.0, ("2", 0): 0.0, ("2", 1): 1.0}
    credit, metrics = PEERS(make_evidence(*episodes), {turn: Advantage(value) for turn, value in values.items()})
    assert [advantages_of(credit, t) for t in episodes] == [[0.25, -0.75], [0.25, 0.25], [-0.5, 0.5]]
    assert metrics == {"credit/groups": 2.0, "credit/degenerate_groups": 0.0}


def test_an_agent_counts_once_an_episode_however_often_it_speaks() -> None:
    episodes = [on("0", "aaa", "p", "p", "p"), on("1", "a", "p")]
    credit, _ = PEERS(make_evidence(*episodes), uniform_credit(episodes, 1.0, 3.0))
    assert [advantages_of(credit, t) for t in episodes] == [[-1.0] * 3, [1.0]]


def test_an_agent_that_works_on_two_problems_has_peers_for_each() -> None:
    episodes = [on("0", "aa", "p", "q"), on("1", "aa", "p", "r")]
    values = {("0", 0): 0.0, ("0", 1): 5.0, ("1", 0): 2.0, ("1", 1): 7.0}
    credit, metrics = PEERS(make_evidence(*episodes), {turn: Advantage(value) for turn, value in values.items()})
    assert [advantages_of(credit, t) for t in episodes] == [[-1.0, 0.0], [1.0, 0.0]]
    assert metrics == {"credit/groups": 3.0, "credit/degenerate_groups": pytest.approx(2 / 3)}


def test_roles_on_one_problem_are_not_compared() -> None:
    seats = {"a": "solver", "b": "critic"}
    episodes = [on("0", "ab", "p", "p", seats=seats), on("1", "ab", "p", "p", seats=seats)]
    values = {("0", 0): 0.0, ("0", 1): 10.0, ("1", 0): 2.0, ("1", 1): 30.0}
    credit, _ = PEERS(make_evidence(*episodes), {turn: Advantage(value) for turn, value in values.items()})
    assert [advantages_of(credit, t) for t in episodes] == [[-1.0, -10.0], [1.0, 10.0]]


def test_eight_solvers_of_one_problem_have_grpos_advantages() -> None:
    # ddof 1, as by hand for 1, 2, 3, 6 in test_baseline: the peers are agents instead of episodes.
    one = on("0", "abcd", *"pppp")
    values = dict(zip([turn.id for turn in one.turns], map(Advantage, (1.0, 2.0, 3.0, 6.0)), strict=True))
    credit, _ = GrpoBaseline(like="problem")(make_evidence(one), values)
    std = (14 / 3) ** 0.5
    assert advantages_of(credit, one) == pytest.approx([d / (std + 1e-6) for d in (-2, -1, 0, 3)], rel=1e-12)


def test_a_role_that_works_on_no_problem_is_named() -> None:
    episodes = [on("0", "a", ""), on("1", "a", "p")]
    with pytest.raises(ValueError, match=r"like: 'problem', but role 'solver' works on none.*choices: start, prompt"):
        PEERS(make_evidence(*episodes), uniform_credit(episodes, 1.0, 2.0))
