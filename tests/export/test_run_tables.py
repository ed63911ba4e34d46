"""`marl.open_run`: tables of a run's records, equal to the files on disk."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import marl
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError
from tests.support.recorded_runs import kuhn_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return kuhn_run(tmp_path / "kuhn")


def test_metrics_are_the_rows_of_the_file(run: Path) -> None:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    table = marl.open_run(run).metrics()
    assert [row["step"] for row in table] == [line["step"] for line in lines]
    for row, line in zip(table, lines, strict=True):
        recorded = {name: line[name] for name in row if name in line}
        assert {name: value for name, value in row.items() if value is not None} == recorded


def test_turns_and_credit_of_a_step_agree_with_its_records(run: Path) -> None:
    home, tables = RunFolder(run), marl.open_run(run)
    turns, credit = tables.turns((2, 2)), tables.credit((2, 2))
    recorded = {turn.id: turn for episode in home.load_trajectories(2) for turn in episode.turns}
    assert {(row["episode"], row["turn"]) for row in turns} == recorded.keys()
    for row in turns:
        turn = recorded[row["episode"], row["turn"]]
        assert (row["completion"], row["action"]) == (turn.completion.text, turn.action)
    judged = home.read_credit_of_step(2).turns()
    assert {(row["episode"], row["turn"]): row["advantage"] for row in credit} == {
        key: record.advantage for key, record in judged.items()
    }
    assert {row["step"] for row in tables.episodes()} == {1, 2}
    assert len(tables.episodes((1, 1))) == len(home.load_trajectories(1))


def test_tables_become_data_frames_of_both_libraries(run: Path) -> None:
    tables = marl.open_run(run)
    for table in (tables.metrics(), tables.evaluations(), tables.episodes(), tables.turns(), tables.credit()):
        assert table.to_pandas().shape == table.to_polars().shape == (len(table), len(table.columns))
    assert set(tables.credit().to_pandas()["step"].unique()) == {1, 2}


def test_without_pandas_the_error_names_the_command(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = marl.open_run(run).metrics()
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ScenarioError, match="pip install pandas"):
        table.to_pandas()
    assert table[0]["step"] == table[:1][0]["step"]


def test_steps_and_roles_that_were_not_recorded_are_refused(run: Path) -> None:
    tables = marl.open_run(run)
    with pytest.raises(ScenarioError, match="no episodes of these steps; it recorded 2, 1 to 2"):
        tables.turns((7, 9))
    with pytest.raises(ScenarioError, match="role nobody"):
        tables.turns(roles=["nobody"])
    with pytest.raises(ScenarioError):
        marl.open_run(run / "trajectories")
