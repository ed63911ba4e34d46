"""Difference rewards, leave-one-out and the aristocrat utility: what was paid against what would have been."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import ValidationError

from marl.core.types import Fork, Request
from marl.credit.assign.counterfactual import DifferenceReward, LeaveOneAgentOut
from marl.engines.scripted import Tabular
from marl.games.hint import HintConfig
from marl.games.kuhn_poker import KuhnPokerConfig
from marl.games.matrix_games import CoalitionConfig, MatrixConfig, TwoStepConfig
from marl.protocols import AssignConfig, Evidence
from marl.roles.answering import PlayerRole
from tests.support.addition_task import team_config, team_deal, team_simulator
from tests.support.counterfactual_rollouts import (
    assign_credit,
    episodes,
    expected_return,
    first_advantages,
    play_joint_move,
    scripted_simulator,
    table_strategy,
)
from tests.support.small_games import (
    FailingPenniesConfig,
    FunctionEngine,
    PenniesConfig,
    make_deal,
    make_simulator,
    random_move,
)

POLICY = DifferenceReward(against="policy", common="mean")


# --- against the policy: COMA with Q = G -----------------------------------------------------------------------------

COMA = {
    ("a", "a"): (-0.5, -0.5),
    ("a", "b"): (-3.5, 0.5),
    ("b", "a"): (0.5, -3.5),
    ("b", "b"): (3.5, 3.5),
}
"""On [[0, 1], [1, 8]] with uniform policies and exact Q."""


def test_comas_table_comes_out_of_real_play() -> None:
    game = MatrixConfig(table="qmix_2b")
    simulator = scripted_simulator(game)
    played = episodes(simulator, game, 30)
    spent = simulator.tokens["credit"]
    credit, metrics = assign_credit(POLICY, simulator, *played)
    met = {tuple(t.action for t in e.turns): tuple(credit[t.id].value for t in e.turns) for e in played}
    assert met == {joint: pytest.approx(known, abs=1e-12) for joint, known in COMA.items()}
    assert metrics["credit/plays"] == 2, "one other move for each of two turns"
    assert simulator.tokens["credit"] - spent == 4, "one token to score each move of each of two questions, once a step"


@pytest.mark.parametrize("name", ["qmix_2b", "climbing", "penalty", "additive"])
def test_under_the_policy_the_mean_of_the_credit_is_0_for_each_agent(name: str) -> None:
    game = MatrixConfig(table=name)
    moves = "abc"[: game.build().cells.shape[0]]
    odds = dict(zip(moves, {2: (0.25, 0.75), 3: (0.125, 0.25, 0.625)}[len(moves)], strict=True))
    player = Tabular(table={f"agent_{place}": odds for place in range(game.build().cells.ndim)})
    simulator = scripted_simulator(game, player)
    [trajectory] = episodes(simulator, game, 1)
    for turn in trajectory.turns:
        forks = [
            simulator.play_forks([Fork(trajectory, turn.id[1], move, keeps_unchanged_answers=True)])[0][0]
            for move in moves
        ]
        credit, _ = assign_credit(POLICY, simulator, *forks)
        worths = [credit[fork.turns[turn.id[1]].id].value for fork in forks]
        assert max(map(abs, worths)) > 0
        assert sum(odds[move] * worth for move, worth in zip(moves, worths, strict=True)) == pytest.approx(0, abs=1e-9)


def test_a_last_turn_is_worth_its_exact_advantage() -> None:
    # The guesser speaks last, so nothing is left to chance: Q(h, a) - V(h), by walking the game.
    game = HintConfig(symbols=3)
    rows = {"one": {"red": 0.5, "green": 0.3, "blue": 0.2}, "two": {"red": 0.1, "green": 0.1, "blue": 0.8}}
    simulator = scripted_simulator(game, Tabular(table=rows))
    tree, strategy = table_strategy(simulator, game, rows)
    played = episodes(simulator, game, 60)
    credit, _ = assign_credit(DifferenceReward(against="policy"), simulator, *played)
    symbols = ["red", "green", "blue"]
    for trajectory in played:
        moves = [turn.action or "" for turn in trajectory.turns]
        start = symbols.index(trajectory.start)
        before, after = (expected_return(tree, moves[:many], strategy, start) for many in (1, 2))
        assert credit[trajectory.turns[1].id].value == pytest.approx(after - before, abs=1e-12)


def test_an_answer_that_was_refused_is_compared_with_all_legal_ones() -> None:
    game = MatrixConfig(table="qmix_2b")
    simulator = make_simulator(game, Refuses())
    [trajectory] = simulator.play([make_deal("e", game)])
    assert [turn.action for turn in trajectory.turns] == [None]
    credit, metrics = assign_credit(POLICY, simulator, trajectory)
    # It cost 1. Its other moves leave agent_1, who is then asked, with `b`: 1 and 8, each with probability 1/2.
    assert credit[trajectory.turns[0].id].value == pytest.approx(-1 - (1 + 8) / 2)
    assert metrics["credit/plays"] == 2


class Refuses(FunctionEngine):
    """agent_0 mumbles, agent_1 says b; both find all moves as likely."""

    def __init__(self) -> None:
        super().__init__(lambda request: "mumble" if request.state.startswith("agent_0") else "[b]")


def test_what_is_never_said_is_never_played() -> None:
    game = MatrixConfig(table=[[0, 1, 5]] * 3)
    simulator = scripted_simulator(game, Tabular(table={"agent_1": {"a": 0.25, "b": 0.75, "c": 0.0}}))
    played = episodes(simulator, game, 20)
    credit, metrics = assign_credit(POLICY, simulator, *played)
    for trajectory in played:
        assert credit[trajectory.turns[0].id].value == 0.0, "whose choice changes nothing earns nothing"
        second = trajectory.turns[1]
        assert credit[second.id].value == pytest.approx({"a": -0.75, "b": 0.25}[second.action or ""])
    assert metrics["credit/plays"] == 2 + 1


def test_free_text_has_no_finite_list_of_moves() -> None:
    game = team_config({"role": "solver"})
    simulator = team_simulator(game, lambda request: "4")
    [trajectory] = simulator.play([team_deal(game)])
    with pytest.raises(ValueError, match=r"role 'solver' may say any text .*choices: against: default"):
        assign_credit(DifferenceReward(against="policy"), simulator, trajectory)


# --- against a default -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [LeaveOneAgentOut, DifferenceReward])
@pytest.mark.parametrize(("name", "known"), [("and", 1.0), ("or", 0.0)])
def test_leaving_one_out_is_not_efficient(rule: type[LeaveOneAgentOut], name: str, known: float) -> None:
    simulator, trajectory = play_joint_move(MatrixConfig(table=name), "bbb")
    spent = dict(simulator.tokens)
    credit, metrics = assign_credit(rule(common="mean", default="a"), simulator, trajectory)
    assert [credit[turn.id].value for turn in trajectory.turns] == [known] * 3
    assert metrics == {"credit/plays": 3}
    assert dict(simulator.tokens) == spent, "who moves at once with others is not asked again"


def test_an_additive_game_pays_each_what_it_adds() -> None:
    simulator, trajectory = play_joint_move(CoalitionConfig(preset="additive"), ["in"] * 3)
    for rule in (LeaveOneAgentOut, DifferenceReward):
        credit, _ = assign_credit(rule(common="mean", default="out"), simulator, trajectory)
        assert [credit[turn.id].value for turn in trajectory.turns] == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    "rule", [LeaveOneAgentOut(default="a"), DifferenceReward(default="a"), DifferenceReward(against="policy")]
)
def test_where_all_moves_pay_the_same_everybody_earns_exactly_0(rule: AssignConfig) -> None:
    game = MatrixConfig(table=[[0.1, 0.1], [0.1, 0.1]])
    simulator = scripted_simulator(game)
    credit, _ = assign_credit(rule, simulator, *episodes(simulator, game, 6))
    assert {advantage.value for advantage in credit.values()} == {0.0}


def test_a_default_of_ones_own_comes_before_the_roles() -> None:
    simulator, trajectory = play_joint_move(MatrixConfig(table="climbing"), "aa")

    def worths(default: Any) -> list[float]:
        credit, _ = assign_credit(LeaveOneAgentOut(common="mean", default=default), simulator, trajectory)
        return [credit[turn.id].value for turn in trajectory.turns]

    assert worths("b") == [11 + 30, 11 + 30]
    assert worths({"player": "b", "agent_1": "c"}) == [11 + 30, 11 - 0]
    assert worths({"agent_0": "c"}) == [11 - 0, 11 + 30], (
        "who has none says nothing, and that costs as much as the worst cell"
    )
    with pytest.raises(ValueError, match=r"default: no role or agent 'agent_2'; did you mean .*player"):
        worths({"agent_2": "a"})


def test_one_turn_is_replaced_or_all_of_its_agents() -> None:
    game = TwoStepConfig()
    simulator = make_simulator(game, FunctionEngine(lambda request: (request.options or {})["b"]))
    [trajectory] = simulator.play([make_deal("e", game)])
    assert trajectory.returns["agent_0"] == 8

    def worths(rule: AssignConfig) -> list[float]:
        credit, _ = assign_credit(rule, simulator, trajectory)
        return [credit[turn.id].value for turn in trajectory.turns]

    # agent_0's first `a` leads to 2A, which pays 7; agent_1's first move changes nothing; in 2B the other cells pay 1.
    assert worths(DifferenceReward(common="mean", default="a")) == [1.0, 0.0, 7.0, 7.0]
    # All of agent_0's: (a, a), so 7. All of agent_1's: 2B, row b, column a: 1.
    assert worths(DifferenceReward(common="mean", default="a", each="agent")) == [1.0, 7.0, 1.0, 7.0]
    assert worths(LeaveOneAgentOut(common="mean", default="a")) == [1.0, 7.0, 1.0, 7.0]


def test_silence_at_one_turn_is_no_answer_there() -> None:
    game = PenniesConfig(rounds=2)
    simulator = make_simulator(game, FunctionEngine(lambda request: "[heads]"))
    [trajectory] = simulator.play([make_deal("e", game)])
    credit, _ = assign_credit(DifferenceReward(teams=(("player_0",), ("player_1",))), simulator, trajectory)
    # player_0 wins both rounds, 2 to -2. Who says nothing pays the other 2, the worst loss of play, and the game ends.
    assert [credit[turn.id].value for turn in trajectory.turns] == [2 - -2, -2 - -2, 2 - (1 - 2), -2 - (-1 - 2)]


def test_samples_average_over_what_others_may_answer() -> None:
    game = HintConfig(symbols=2)
    simulator = scripted_simulator(game)
    trajectory = next(e for e in episodes(simulator, game, 12, symbol="red") if e.turns[0].action == "two")
    credit, metrics = assign_credit(DifferenceReward(common="mean", default="one", samples=400), simulator, trajectory)
    # After another word the guesser guesses anew: right half of the time.
    assert credit[trajectory.turns[0].id].value == pytest.approx(trajectory.returns.get("speaker", 0.0) - 0.5, abs=0.1)
    assert metrics == {"credit/plays": 800}


# --- who is judged ---------------------------------------------------------------------------------------------------

CHAIN = team_config(
    {"role": "planner"},
    {"role": "solver", "n": 2, "hears": ["planner"]},
    {"role": "verifier", "verifies": "solver", "scores": ["correct"]},
    rewards={"solver": {"correct": "own.correct"}},
)


def led(request: Request) -> str:
    """The planner says go; solvers who hear that are right."""
    _, _, heard = request.messages[-1].content.partition(" | ")
    return "go" if not heard else "4" if heard == "planner: go" else "5"


def test_verifiers_are_asked_again_and_earn_nothing() -> None:
    simulator = team_simulator(CHAIN, led)
    [trajectory] = simulator.play([team_deal(CHAIN)])
    evidence = Evidence([trajectory], "team", simulator=simulator, rule_based_roles=frozenset({"verifier"}))
    part = LeaveOneAgentOut().build()
    # Both are right, which pays 2. Without the planner neither is, without a solver the other one.
    assert first_advantages(part(evidence), trajectory) == {"planner": 2.0, "solver_0": 1.0, "solver_1": 1.0}
    assert part.metrics() == {"credit/plays": 3}
    only = LeaveOneAgentOut(roles=("solver",)).build()
    assert first_advantages(only(evidence), trajectory) == {"solver_0": 1.0, "solver_1": 1.0}
    assert only.metrics() == {"credit/plays": 2}
    with pytest.raises(ValueError, match=r"roles: 'verifier' can earn nothing here; .*planner, solver"):
        LeaveOneAgentOut(roles=("verifier",)).build()(evidence)


def test_without_a_game_at_hand_nothing_can_be_said() -> None:
    _, trajectory = play_joint_move(MatrixConfig(table="and"), "bbb")
    for rule in (LeaveOneAgentOut(), DifferenceReward()):
        with pytest.raises(ValueError, match=rf"{rule.kind!r} plays what did not happen, so it needs the game"):
            assign_credit(rule, None, trajectory)


def test_what_is_scaled_is_scaled_in_every_course() -> None:
    game = MatrixConfig(table="climbing")
    simulator, trajectory = play_joint_move(game, "aa")
    evidence = Evidence([trajectory], "matrix", simulator=simulator)
    halved = evidence.transform_rewards(lambda trajectory: trajectory.with_scaled_rewards(0.5))
    for rule in (LeaveOneAgentOut(default="b"), DifferenceReward(default="c"), POLICY):
        whole, half = rule.build()(evidence), rule.build()(halved)
        assert {turn: 2 * worth.value for turn, worth in half.items()} == pytest.approx(
            {turn: worth.value for turn, worth in whole.items()}
        )


def test_courses_of_a_tree_keep_to_their_own_answers_and_one_they_share_is_judged_where_it_was_said() -> None:
    game = TwoStepConfig()
    simulator = make_simulator(game, FunctionEngine(lambda request: (request.options or {})["b"]))
    [trunk] = simulator.play([make_deal("e", game)])
    [[branch]] = simulator.play_forks([Fork(trunk, 3, "a", keeps_unchanged_answers=True)])
    assert (trunk.returns["agent_0"], branch.returns["agent_0"]) == (8, 1)
    alone, both = (
        assign_credit(LeaveOneAgentOut(common="mean", default="a"), simulator, *held)[0]
        for held in ([branch], [trunk, branch])
    )
    # In the branch agent_1 ends with `a`. Without agent_0 it is 2A: 1 - 7. Without agent_1 nothing changes: 1 - 1.
    assert [alone[turn.id].value for turn in branch.turns] == [-6, 0, -6, 0]
    # In the trunk: 8 - 7 and 8 - 1.
    assert [both[turn.id].value for turn in trunk.turns] == [1, 7, 1, 7]
    assert both[branch.turns[3].id].value == 0


def test_a_game_that_breaks_leaves_those_turns_without_an_entry_that_depend_on_it() -> None:
    game = FailingPenniesConfig()
    simulator = make_simulator(game, FunctionEngine(lambda request: "[safe]"))
    [trajectory] = simulator.play([make_deal("e", game)])
    simulator.drops.limit = 100
    default: dict[str, str | None] = {"player_0": "safe", "player_1": "crack"}
    one, whole = (
        assign_credit(rule(default=default), simulator, trajectory)[0] for rule in (DifferenceReward, LeaveOneAgentOut)
    )
    assert {turn.agent for turn in trajectory.turns if turn.id in one} == {"player_0"}
    assert whole == {}, "an episode's agents are judged together or not at all"


def test_a_replaced_turn_has_no_tokens_from_which_its_agent_could_go_on() -> None:
    game = PenniesConfig(rounds=2)
    simulator = make_simulator(game, FunctionEngine(random_move), player=PlayerRole(policy="actor", history="append"))
    [trajectory] = simulator.play([make_deal("e", game)])
    with pytest.raises(ValueError, match=r"role 'player' \(history: append\).*choices: each: agent"):
        assign_credit(DifferenceReward(default="heads"), simulator, trajectory)
    assert len(assign_credit(DifferenceReward(default="heads", each="agent"), simulator, trajectory)[0]) == 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"against": "policy", "each": "agent"}, "compared turn by turn"),
        ({"against": "policy", "default": "a"}, "default: 'a' has no effect"),
        ({"against": "nobody"}, "against"),
        ({"samples": 0}, "samples"),
        ({"teams": [["a", "b"], ["b"]]}, "'b' is in more than one"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        DifferenceReward.model_validate(settings)


@pytest.mark.parametrize(
    "rule", [LeaveOneAgentOut(default="bet"), DifferenceReward(default="bet"), DifferenceReward(against="policy")]
)
def test_the_same_step_is_judged_the_same_way_and_nothing_is_remembered(rule: AssignConfig) -> None:
    game = KuhnPokerConfig()
    judged = []
    for newest_first in (False, True):
        simulator = make_simulator(game, FunctionEngine(random_move, newest_first=newest_first, batch=3 * newest_first))
        part = rule.model_copy(update={"teams": (("player_0",),)}).build()
        evidence = Evidence(episodes(simulator, game, 12), "kuhn_poker", simulator=simulator)
        judged.append((part(evidence), part.metrics()))
        assert part.state_dict() == {}
        part.load_state_dict({})
    assert judged[0] == judged[1]
    assert len(judged[0][0]) == sum(len(t.turns) for t in evidence.trajectories)
