"""Every committed scenario of a team: its graders can be trusted, and it trains as it is written, only smaller."""

from __future__ import annotations

import json
from pathlib import Path

import networkx as nx
import pytest
import yaml

import marl
from marl.core.graph import read_trajectories
from marl.engines.workers.settings import Verifiers
from marl.evaluation.dry_run import play_dry_run
from marl.evaluation.dry_run_findings import scenario_errors, scenario_warnings
from marl.protocols import VerifierConfig
from marl.scenario.schema import Scenario
from marl.view.run_plan import render_plan
from tests.support.command_line import run_marl
from tests.support.small_team_scenarios import SCENARIOS, TEAMS, small_scenario

WORKFLOWS = {"absolute_zero", "best_of_n", "chain", "debate", "mae", "mixture_of_agents", "r_zero", "sage"}
WORKFLOWS |= {"solver_critic", "team_arithmetic", "train_solver_only"}


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, made: Path) -> None:
    monkeypatch.setenv("MARL_CACHE", str(made))


def test_the_workflows_of_the_literature_are_committed() -> None:
    assert set(TEAMS) >= WORKFLOWS


def different_graders() -> list[str]:
    """Scenarios of which no two have the same problems and the same checks; all others are like one of them."""
    chosen: dict[str, str] = {}
    for name in TEAMS:
        data = yaml.safe_load((SCENARIOS / f"{name}.yaml").read_text())
        engines = [policy.get("engine") for policy in data["policies"].values()]
        chosen.setdefault(str([data["game"]["task"], engines]), name)
    return list(chosen.values())


def checks_of(scenario: Scenario) -> dict[str, VerifierConfig]:
    engines = {name: policy.engine for name, policy in scenario.policies.items()}
    return {
        f"{policy}.{name}": check
        for policy, engine in engines.items()
        if isinstance(engine, Verifiers)
        for name, check in engine.checks.items()
    }


@pytest.mark.parametrize("name", different_graders())
@pytest.mark.one_in(3)
def test_the_graders_of_every_team_pass_check(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = SCENARIOS / f"{name}.yaml"
    code, said, errors = run_marl(monkeypatch, capsys, "check", "--quick", file, "--graders")
    assert (code, errors) == (0, "")
    assert [line for line in said.splitlines() if not line.startswith("note: ")] == [
        # Nothing, gibberish, the right answer and another problem's, for each of five problems.
        f"{file}: fine; game team, trains {', '.join(n for n, p in marl.load(file).policies.items() if p.learner)}",
        f"{file}: graders: {len(checks_of(marl.load(file))) * 5 * 4} verdicts as they must be",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("file", sorted(SCENARIOS.glob("*.yaml")), ids=lambda file: file.stem)
def test_random_play_of_every_scenario_shows_nothing_wrong(file: Path) -> None:
    run = play_dry_run(marl.load(file))
    assert list(scenario_errors(run)) == []
    # Random play never finds the goal of the lake, so all its returns are 0.
    expected = ["roles.walker: was paid 0 in each of 8 random episodes; as long as every move is paid the same"]
    warnings = [warning.rpartition(",")[0] for warning in scenario_warnings(run)]
    assert warnings == (expected if file.stem == "gymnasium_frozen_lake" else [])
    shown = render_plan(run)
    assert all(f"{role} reads first" in shown for role in run.prompt_token_counts), "every model's prompt is shown"


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", TEAMS)
def test_every_team_trains_end_to_end(name: str, tmp_path: Path) -> None:
    scenario = small_scenario(name, groups=2, group_size=2)
    assert marl.train(scenario, tmp_path)

    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert rows[-1]["eval/held_out/episodes"] == 4
    learning = {name for name, policy in scenario.policies.items() if policy.learner}
    assert {key.split("/")[1] for row in rows for key in row if key.startswith("policy/")} == learning

    played = [t for file in sorted((tmp_path / "trajectories").iterdir()) for t in read_trajectories(file)]
    begun = sum(trajectory.parent is None for trajectory in played)
    assert begun == 2 * 2 * 2 or (scenario.experience.kind == "dynamic" and begun < 2 * 2 * 2), "none is lost"
    assert all(trajectory.end == "terminated" for trajectory in played)
    assert all(nx.is_directed_acyclic_graph(trajectory.graph) for trajectory in played)

    turns = [turn for trajectory in played for turn in trajectory.turns]
    by_rule = {name for name, role in scenario.roles.items() if scenario.policies[role.policy].engine.is_rule_based}
    toolboxes = {name for name, role in scenario.roles.items() if role.kind == "toolbox"}
    heard = {turn.role for turn in turns}
    assert by_rule - toolboxes <= heard, "who verifies is heard; models taught so little may call no tool"
    assert by_rule or name in ("carry_chain", "fork_join"), "only there does the game itself know what is right"
    for turn in turns:
        has_tokens = bool(turn.completion.prompt_ids or turn.completion.token_ids)
        engine = scenario.policies[scenario.roles[turn.role].policy].engine
        assert has_tokens == engine.needs_model, "only a model's answers have tokens, and only tokens have gradients"
