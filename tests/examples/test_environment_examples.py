"""The environments of verifiers and TRL in games/README.md: checked, learned from, and paid as their code says."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import marl
from marl.core.graph import Trajectory, read_trajectories
from tests.support.command_line import run_marl
from tests.support.readme_blocks import BLOCKS, write_modules

SMALL = {"hidden": 16, "layers": 1, "warm_up": {"steps": 60, "episodes": 128, "batch": 32, "lr": 0.02}}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """`run("check", file)`: (exit status, stdout, stderr) of the command."""
    return partial(run_marl, monkeypatch, capsys)


@pytest.fixture(autouse=True)
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: Path) -> None:
    """A folder with the modules of games/README.md, in which commands are given."""
    monkeypatch.setenv("MARL_CACHE", str(made))
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.chdir(tmp_path)
    write_modules("games/README.md", tmp_path)


def trained(kind: str, run: Any) -> list[Trajectory]:
    """Check the scenario of the page that has such a game, train it for two steps, and return the episodes."""
    named = f"kind: {kind}\n"
    (block,) = (b for b in BLOCKS if b.document == "games/README.md" and b.language == "yaml" and named in b.text)
    Path("scenario.yaml").write_text(block.text)
    status, said, complaint = run("check", "scenario.yaml", "--trust")
    assert status == 0, complaint  # libraries draw bars of their own there
    assert said.startswith("scenario.yaml: fine;")
    model = [f"policies.actor.model.{name}={value}".replace("'", "") for name, value in SMALL.items()]
    few = ["schedule.steps=2", "schedule.groups=4", "schedule.group_size=4", "checkpoint.trajectories=1.0"]
    assert marl.train(marl.load("scenario.yaml", [*model, *few]), Path("run"))
    return [each for step in (1, 2) for each in read_trajectories(Path(f"run/trajectories/{step:06d}.jsonl.zst"))]


def is_call(action: str | None) -> bool:
    """Whether a move is JSON with a tool's name; what is none is an answer."""
    try:
        return "name" in json.loads(action or "")
    except json.JSONDecodeError:
        return False


def test_the_environment_of_trl_is_learned_from(run: Any) -> None:
    played = trained("trl_environment", run)
    assert len(played) == 32
    finished = [trajectory for trajectory in played if all(turn.action for turn in trajectory.turns)]
    assert finished
    for trajectory in finished:  # in the others an answer was cut off, which is an illegal move
        calls = [turn.action for turn in trajectory.turns if is_call(turn.action)]
        opened = trajectory.returns["player_0"] + 0.1 * (len(trajectory.turns) + len(calls))
        assert opened == pytest.approx(0) or opened == pytest.approx(1)


@pytest.mark.slow
def test_the_environment_of_verifiers_is_learned_from(run: Any) -> None:
    pytest.importorskip("verifiers")
    played = trained("verifiers_environment", run)
    assert len(played) == 32
    assert {trajectory.returns.get("player_0", 0.0) for trajectory in played} == {0.0, 1.0}
    assert max(len(trajectory.turns) for trajectory in played) == 3
