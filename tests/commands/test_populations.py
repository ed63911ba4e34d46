"""`RUN@pool` and `RUN@meta`: the members of a league as players, opponents and mixtures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from marl.commands.eval.evaluate import evaluate_policies, policies_of_run
from marl.commands.eval.exploitability import AVERAGE, measure_exploitability
from marl.commands.eval.players import read_roster
from marl.runs.populations import episodes_by_share, read_population
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError
from tests.support.league_scenarios import league
from tests.support.run_processes import RunWorkspace, train_to_end


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunWorkspace:
    return train_to_end(tmp_path_factory.mktemp("population"), league())


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, trained: RunWorkspace) -> None:
    monkeypatch.setenv("MARL_CACHE", str(trained.path / "cache"))


def test_a_pool_is_all_members_alike_and_a_meta_strategy_those_that_are_met(trained: RunWorkspace) -> None:
    pool, meta = (read_population(f"{trained.run}@{name}") for name in ("pool", "meta"))
    folders = [trained.run / "league" / "actor" / f"{member.version:06d}" for member in pool]
    assert [member.folder for member in pool] == folders
    assert all(folder.is_dir() for folder in folders)
    assert {member.weight for member in pool} == {1 / len(pool)}
    # Members are met with probabilities in proportion to (1 - win rate)^2, the default of `pfsp`.
    assert [member.version for member in meta] == [member.version for member in pool]
    assert sum(member.weight for member in meta) == pytest.approx(1)
    last = list(RunFolder(trained.run).rows())[-1]
    assert last["league/pool"] <= len(pool)


def test_the_exact_nashconv_of_a_population_is_that_of_its_mixture(trained: RunWorkspace) -> None:
    spec = f"{trained.run}@pool"
    rows = measure_exploitability(read_roster([spec]))
    assert rows[spec].nashconv == pytest.approx(rows[AVERAGE].nashconv)
    weights = rows[spec].weights
    assert all(list(shares) == [1 / len(rows[spec].weights["player_0"])] * len(shares) for shares in weights.values())


def test_a_run_is_evaluated_against_the_members_of_another_one(trained: RunWorkspace) -> None:
    policies = policies_of_run(trained.run, (), None, best=False)
    figures = evaluate_policies(policies, f"{trained.run}@meta", 12)
    assert figures[f"eval/{trained.run.name}@meta/episodes"] == 12


def test_a_population_is_exported_with_its_weights(trained: RunWorkspace, run: Any, tmp_path: Path) -> None:
    spec, out = f"{trained.run}@meta", tmp_path / "meta"
    status, _, complaint = run("export", spec, "--out", out)
    assert status == 0, complaint
    rows = json.loads((out / "population.json").read_text())["members"]
    members = read_population(spec)
    assert [row["weight"] for row in rows] == pytest.approx([member.weight for member in members])
    assert [row["step"] for row in rows] == [member.version for member in members]
    # Each folder is a player, as the run's own one is.
    assert len(read_roster([str(trained.run), *[str(member.folder) for member in members]]).entrants) == len(rows) + 1
    assert all((out / row["folder"] / "config.json").is_file() for row in rows)
    status, _, complaint = run("export", spec, "--out", tmp_path / "other", "--best")
    assert "--best: " in complaint


def test_a_run_without_a_league_has_no_population(whole: RunWorkspace, run: Any, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="@pool: the run has no pool; its experience is 'rollouts', not 'league'"):
        read_population(f"{whole.run}@pool")


def test_episodes_are_divided_by_shares_and_seats() -> None:
    assert episodes_by_share([0.5, 0.25, 0.25], 100, 2) == [50, 24, 26]
    assert episodes_by_share([0.0, 1.0], 3, 2) == [0, 2]
