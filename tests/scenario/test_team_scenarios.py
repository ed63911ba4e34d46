"""Every committed scenario of a team: its graders can be trusted, and it trains as it is written, only smaller."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import networkx as nx
import pytest
from small_teams import SCENARIOS, TEAMS, small

import marl
from marl.commands import cli
from marl.engines.workers.settings import Verifiers
from marl.graph import read_trajectories

WORKFLOWS = {"absolute_zero", "best_of_n", "chain", "debate", "mae", "mixture_of_agents", "r_zero", "sage"}
WORKFLOWS |= {"solver_critic", "team_arithmetic", "train_solver_only"}


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, made: Path) -> None:
    monkeypatch.setenv("MARL_CACHE", str(made))


def test_the_workflows_of_the_literature_are_committed() -> None:
    assert set(TEAMS) >= WORKFLOWS


@pytest.mark.parametrize("name", TEAMS)
def test_the_graders_of_every_team_pass_check(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = SCENARIOS / f"{name}.yaml"
    monkeypatch.setattr(sys, "argv", ["marl", "check", str(file), "--graders"])
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(SystemExit) as left:
        cli.main()
    output = capsys.readouterr()
    assert (left.value.code or 0, output.err) == (0, "")
    engines = [policy.engine for policy in marl.load(file).policies.values()]
    checks = sum(len(engine.checks) for engine in engines if isinstance(engine, Verifiers))
    # Nothing, gibberish, the right answer and another problem's, for each of five problems.
    assert output.out.splitlines()[1] == f"{file}: graders: {checks * 5 * 4} verdicts as they must be"


@pytest.mark.slow
@pytest.mark.parametrize("name", TEAMS)
def test_every_team_trains_end_to_end(name: str, tmp_path: Path) -> None:
    scenario = small(name, groups=2, group_size=2)
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
    by_rule = {name for name, role in scenario.roles.items() if scenario.policies[role.policy].engine.rule_bound}
    assert by_rule <= {turn.role for turn in turns}, "who verifies is heard"
    assert by_rule or name == "carry_chain", "only there does the game itself know what is right"
    for turn in turns:
        has_tokens = bool(turn.completion.prompt_ids or turn.completion.token_ids)
        assert has_tokens == (turn.role not in by_rule), "what has no tokens is never trained"
