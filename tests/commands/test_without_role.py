"""`marl eval run --without ROLE`: held-out episodes with and without a role of a team."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from marl.commands.eval.app import RunEvalOptions
from marl.commands.eval.evaluate import EvaluatedPolicies
from marl.commands.eval.output import write_json_results
from marl.commands.eval.without_role import measure_without_role
from marl.core.types import Request
from marl.games.team.settings import TeamConfig
from marl.scenario.load import ScenarioError, validate
from marl.scenario.schema import Scenario
from marl.view.role_worth import measures_without_roles
from tests.support.addition_task import team_simulator

TEXT = """
game:
  kind: team
  task: {kind: "tests.support.addition_task:AdditionTask"}
  stages:
    - {role: solver, examples: ["{{ answer }}"]}
    - {role: verifier, verifies: solver, scores: [correct]}
    - {role: reviser, hears: [solver], examples: ["{{ answer }}"]}
    - {role: verifier, name: last, verifies: reviser, scores: [correct]}
  measures: {success: reviser.correct}
roles:
  solver: &role {kind: "tests.support.addition_task:VerbatimRole", policy: actor}
  reviser: *role
  verifier: {kind: verifier, policy: checker}
policies:
  actor: {model: {kind: tiny}, learner: grpo}
  checker: {engine: {kind: verifiers, checks: {correct: {kind: exact}}}}
schedule: {steps: 1, groups: 1, group_size: 2}
"""


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return validate(yaml.safe_load(TEXT))


def revised(request: Request) -> str:
    """The solver is right on sums with an even right side; the reviser corrects sums whose right side is 1."""
    left, right = (int(number) for number in request.messages[-1].content.split(" | ")[0].split(" + "))
    is_reviser = request.state.startswith("reviser")
    return str(left + right + (right % 2 == 1 and not (is_reviser and right == 1)))


def evaluated(scenario: Scenario) -> EvaluatedPolicies:
    game = scenario.game
    assert isinstance(game, TeamConfig)
    return EvaluatedPolicies(scenario, None, lambda: team_simulator(game, revised))


def test_a_reviser_is_worth_the_sums_that_only_it_gets_right(scenario: Scenario) -> None:
    # Right sides are 0 to 4, twice each: the solver has 6 of 10 right, the reviser the two with 1, too.
    metrics = measure_without_role(evaluated(scenario), "reviser", 10)
    assert metrics["eval/held_out/success"] == 0.8
    assert metrics["eval/without/reviser/success"] == 0.6
    assert metrics["eval/worth/reviser/success"] == pytest.approx(0.2)
    assert metrics["eval/worth/reviser/success_low"] <= 0.2 <= metrics["eval/worth/reviser/success_high"]
    assert metrics["eval/held_out/reviser_fixes"] == 0.5
    assert metrics["eval/without/reviser/reviser_fixes"] == 0.0


def test_a_solver_that_reads_nobody_is_mute_when_it_is_left_out(scenario: Scenario) -> None:
    metrics = measure_without_role(evaluated(scenario), "solver", 10)
    assert metrics["eval/without/solver/success"] == 0.8
    assert metrics["eval/worth/solver/success"] == 0.0


def test_a_role_that_cannot_be_left_out_is_named(scenario: Scenario) -> None:
    with pytest.raises(ScenarioError, match="--without verifier: no role of a model that has a seat; choices: "):
        measure_without_role(evaluated(scenario), "verifier", 10)
    with pytest.raises(ScenarioError, match="--without critic and --against random exclude each other"):
        RunEvalOptions(without="critic", against="random").metrics_of(evaluated(scenario), None)


def test_a_run_keeps_what_a_role_is_worth_where_the_page_looks_for_it(tmp_path: Path) -> None:
    for name in ("scenario.yaml", "team.yaml"):
        (tmp_path / name).touch()
    kept = RunEvalOptions(without="a/b").results_file(tmp_path)
    assert kept == tmp_path / "without" / "a%2Fb.json"
    assert RunEvalOptions(without="critic", out=tmp_path / "x.json").results_file(tmp_path) == tmp_path / "x.json"
    assert RunEvalOptions().results_file(tmp_path) is None
    assert RunEvalOptions(without="critic").results_file(tmp_path / "team.yaml") is None


def test_the_page_reads_the_figures_of_a_play_without_a_role(scenario: Scenario, tmp_path: Path) -> None:
    figures = measure_without_role(evaluated(scenario), "reviser", 10)
    (tmp_path / "without").mkdir()
    write_json_results(tmp_path / "without" / "reviser.json", {"checkpoint": 4, "figures": figures})
    measured = {each.measure: each for each in measures_without_roles(tmp_path)}
    success = measured["success"]
    assert (success.role, success.checkpoint, success.episodes, success.present) == ("reviser", 4, 10.0, 0.8)
    assert (success.absent, success.worth) == (0.6, pytest.approx(0.2))
    assert not [name for name in measured if name.endswith(("_low", "_high"))]
