"""A run that version 0.1.0 wrote, before the rooms were put in order, goes on and can be read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import marl
from marl.runs.run_folder import RunFolder
from marl.training.rejudge import Rejudge

OLD = Path(__file__).parent / "old_layout"
"""Steps 1 to 4 of a tiny run with the kinds `leave_one_out` (baseline) and `rloo` (learner); checkpoint of step 2."""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MARL_CACHE", str(tmp_path / "cache"))
    shutil.copytree(OLD, tmp_path / "run")
    return tmp_path / "run"


def rows(run: Path) -> dict[int, dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {row["step"]: {k: v for k, v in row.items() if not k.startswith("time/")} for row in lines}


def test_it_resumes_from_its_checkpoint_and_does_what_it_did_then(run: Path) -> None:
    before = rows(OLD)
    with pytest.warns(FutureWarning, match="kind 'leave_one_out' of baselines is now called 'rloo'"):
        scenario = marl.load(OLD / "scenario.yaml")
    assert marl.train(scenario, run, resume="auto")
    after = rows(run)
    assert after[2] == before[2], "what was there is left alone"
    for step in (3, 4):
        told = {name: after[step][name] for name in before[step]}  # there may be new figures
        assert told == pytest.approx(before[step], rel=1e-3, abs=1e-5), "another processor may round otherwise"


def test_its_episodes_are_judged_again(run: Path) -> None:
    assert RunFolder(run).recorded() == [1, 2, 3, 4]
    again = Rejudge(run, 2)("outcome/none")
    assert len(again.credit()) == sum(len(trajectory.turns) for trajectory in Rejudge(run, 2).trajectories)
