"""Credit by replayed forks of a program: the values counted by hand, and those of the native team."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import Any

import pytest

from marl.core.graph import Trajectory
from marl.core.types import Request
from marl.credit.assign.counterfactual import DifferenceReward, LeaveOneAgentOut, Shapley
from marl.credit.assign.replay import RolloutValueChangeAssign
from marl.credit_stage.stage import CreditStage
from marl.experience.tree_sampling import TreeSampling
from marl.games.team.settings import TeamConfig
from marl.protocols import AssignConfig, Evidence, RoleConfig
from marl.roles.programs import CallerRole, ProgramRole
from marl.rollout.simulator import RolloutSimulator
from marl.scenario.schema import CreditConfig
from tests.support.addition_task import Reader, VerbatimRole, grade_answer, team_config, team_deal
from tests.support.calling_programs import CHECK, GeneratorEngine
from tests.support.small_games import FunctionEngine, make_simulator

TEAM = ("planner", "helper", "solver")
RULES = frozenset({"crew", "verifier"})
PAY_OF_ALL = {"solver": {"right": "own.correct"}}
PAY_OF_EACH = {"planner": {"team": "solver.correct"}, "solver": {"right": "own.correct"}}


def crew(task: dict[str, Any]) -> Any:
    """Ask for a plan and for help at once; the solver reads both."""
    texts = yield [("planner", "plan"), ("helper", "help")]
    [answer] = yield [("solver", "\n".join(texts))]
    return answer


class Team:
    """Engines of a team whose solver is right exactly if it reads the word "good"."""

    def __init__(self, plans: Sequence[str], help_text: str, rewards: Any = PAY_OF_ALL) -> None:
        """`plans`: answers of the planner, one after the other and then from the first one again."""
        remaining, self._rewards = cycle(plans), rewards

        def solve(request: Request) -> str:
            return "4" if any("good" in message.content for message in request.messages) else "5"

        self.engines = {
            "planner": FunctionEngine(lambda _: next(remaining)),
            "helper": FunctionEngine(lambda _: help_text),
            "solver": FunctionEngine(solve),
            "grader": FunctionEngine(grade_answer),
        }

    def natively(self) -> tuple[RolloutSimulator, TeamConfig]:
        stages = ({"role": "planner"}, {"role": "helper"}, {"role": "solver", "hears": ["planner", "helper"]})
        game = team_config(*stages, CHECK, rewards=self._rewards)
        roles: dict[str, RoleConfig] = {name: VerbatimRole(policy=name) for name in TEAM}
        return make_simulator(game, self.engines, **roles, verifier=Reader(policy="grader")), game

    def as_program(self) -> tuple[RolloutSimulator, TeamConfig]:
        game = team_config({"role": "crew", "callers": {name: {} for name in TEAM}}, CHECK, rewards=self._rewards)
        roles: dict[str, RoleConfig] = {name: CallerRole(policy=name) for name in TEAM}
        roles |= {"crew": ProgramRole(policy="program"), "verifier": Reader(policy="grader")}
        return make_simulator(game, {**self.engines, "program": GeneratorEngine(crew)}, **roles), game


def credit_by_agent(rule: AssignConfig, simulator: RolloutSimulator, game: TeamConfig) -> dict[str, float]:
    """Play one episode, and return the credit of each team member's only turn."""
    [episode] = simulator.play([team_deal(game)])
    evidence = Evidence([episode], "team", simulator=simulator, rule_based_roles=RULES)
    credit = rule.build()(evidence)
    assert simulator.take_failure_messages() == []
    return {turn.agent: credit[turn.id].value for turn in episode.turns if turn.id in credit}


TOGETHER = {"teams": (TEAM,)}
ENOUGH = (["good"], "good, too")
"""A plan and a help of which one would be enough. The team gets 1 if the solver and one of both are there."""
COUNTED = [
    # Of the 6 orders of joining, the solver completes the team in 4 and each of the others in one.
    (Shapley.model_validate(TOGETHER), ENOUGH, {"planner": 1 / 6, "helper": 1 / 6, "solver": 2 / 3}),
    (LeaveOneAgentOut.model_validate(TOGETHER), ENOUGH, {"planner": 0, "helper": 0, "solver": 1}),
    (DifferenceReward.model_validate(TOGETHER), ENOUGH, {"planner": 0, "helper": 0, "solver": 1}),
    # The solver is wrong, and would be right if the helper had said "good".
    (
        DifferenceReward.model_validate(TOGETHER | {"default": {"helper": "good"}}),
        (["none"], "none"),
        {"planner": 0, "helper": -1, "solver": 0},
    ),
    # Plans are good and bad by turns, so the team gets 1/2 before the plan, and 1 after this one.
    (
        RolloutValueChangeAssign.model_validate(TOGETHER | {"samples": 4}),
        (["good", "bad"], "none"),
        {"planner": 0.5, "helper": 0, "solver": 0},
    ),
    (
        RolloutValueChangeAssign.model_validate(TOGETHER | {"samples": 4}),
        (["bad", "good"], "none"),
        {"planner": -0.5, "helper": 0, "solver": 0},
    ),
    (
        RolloutValueChangeAssign.model_validate(TOGETHER | {"samples": 3, "form": "siblings"}),
        (["good", "bad"], "none"),
        {"planner": 1 - 1 / 3, "helper": 0, "solver": 0},
    ),
]


@pytest.mark.parametrize(
    ("rule", "answers", "expected"), COUNTED, ids=[f"{index} {case[0].kind}" for index, case in enumerate(COUNTED)]
)
def test_credit_of_a_program_is_that_counted_by_hand_and_that_of_the_native_team(
    rule: AssignConfig, answers: tuple[list[str], str], expected: dict[str, float]
) -> None:
    assert credit_by_agent(rule, *Team(*answers).as_program()) == pytest.approx(expected, abs=1e-9)
    assert credit_by_agent(rule, *Team(*answers).natively()) == pytest.approx(expected, abs=1e-9)


def grown_tree(simulator: RolloutSimulator, game: TeamConfig) -> tuple[list[Trajectory], dict[str, float]]:
    settings = TreeSampling(candidates=3, roles=TEAM, agent=0, team=1)
    tree = settings.build()
    rollouts = tree.gather(0, lambda _: [team_deal(game)], simulator)
    return rollouts, dict(tree.metrics())


def described(rollout: Trajectory) -> tuple[Any, ...]:
    """The turn at which a rollout left another one, what the team said in it, and what it was paid."""
    said = [(turn.agent, turn.completion.text) for turn in rollout.turns if turn.agent in TEAM]
    return rollout.id, rollout.parent, said, rollout.returns


def test_a_tree_of_a_program_is_that_of_the_native_team() -> None:
    plans = ["bad", "good", "bad", "good"]
    as_program, metrics = grown_tree(*Team(plans, "none", PAY_OF_EACH).as_program())
    natively, native_metrics = grown_tree(*Team(plans, "none", PAY_OF_EACH).natively())
    assert [described(rollout) for rollout in as_program] == [described(rollout) for rollout in natively]
    assert metrics == native_metrics
    # The first plan is bad, and of two further plans one is good; the other decisions change nothing.
    assert [rollout.returns.get("solver", 0.0) for rollout in as_program] == [0, 1, 0, 1, 1, 1, 1, 1, 1]
    assert metrics["tree/rollouts"] == 9
    assert metrics["tree/decisions"] == 3
    assert metrics["tree/gain"] == pytest.approx((2 - 2 / 3) / 3)
    rule = CreditConfig.model_validate({"baseline": {"kind": "agent_turn_group", "std": False}})
    advantages: list[dict[tuple[str, int], float]] = []
    for rollouts in (as_program, natively):
        credit = CreditStage(rule)(Evidence(rollouts, "team", rule_based_roles=RULES)).credit
        team_turns = {turn.id for rollout in rollouts for turn in rollout.turns if turn.agent in TEAM}
        advantages.append({turn: credit[turn].value for turn in team_turns & credit.keys()})
    assert advantages[0] == advantages[1]
    # Candidates are compared with those of their decision alone: plans that earned 0, 1 and 0.
    assert sorted(filter(None, advantages[0].values())) == pytest.approx([-1 / 3, -1 / 3, 2 / 3])
