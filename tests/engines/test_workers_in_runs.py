"""Whole runs whose worker processes fail: they go on without what cannot be judged, or end with a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import marl
from marl.engines.workers.worker import WorkerError
from marl.scenario.load import validate
from tests.support.paths import PLUG_IN


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PLUG_IN)


def scenario(check: dict[str, Any], **schedule: int) -> dict[str, Any]:
    """One agent says yes or no about sums, and a verifier judges it."""
    stages = [{"role": "judge", "legal": ["yes", "no"]}, {"role": "verifier", "verifies": "judge", "scores": ["right"]}]
    return {
        "game": {
            "kind": "team",
            "task": {"kind": "arithmetic", "numbers": [10, 49], "train": 100, "held_out": 10},
            "stages": stages,
            "rewards": {"judge": {"right": "own.right"}},
        },
        "roles": {
            "judge": {"kind": "critic", "policy": "judge"},
            "verifier": {"kind": "verifier", "policy": "checker"},
        },
        "policies": {
            "judge": {
                "model": {"kind": "outside.softmax:TableModel"},
                "engine": {"kind": "outside.softmax:Softmax"},
                "learner": {"kind": "outside.softmax:Reinforce"},
            },
            "checker": {"engine": {"kind": "verifiers", "checks": {"right": check}, "workers": 1}},
        },
        "credit": {"baseline": {"kind": "none"}},
        "schedule": {"steps": 3, "groups": 20, "group_size": 1, "threads": 1, **schedule},
        "checkpoint": {"every": 50},
    }


def rows(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_a_run_goes_on_without_the_episodes_that_cannot_be_judged_and_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert marl.train(
        validate(scenario({"kind": "tests.support.misbehaving_verifiers:UndecidedVerifier", "percent": 4})),
        tmp_path / "run",
    )
    steps = rows(tmp_path / "run")[1:]
    unjudged = [step["episode/unjudged"] for step in steps]
    assert [step["episode/count"] + missing for step, missing in zip(steps, unjudged, strict=True)] == [20.0] * 3
    assert sum(unjudged) > 0
    said = " ".join(capsys.readouterr().out.split())
    assert "policy 'checker' gave no answer (unjudged): right raised InconclusiveError: the service is down" in said


def test_too_many_episodes_that_cannot_be_judged_end_the_run_with_a_checkpoint_and_the_cause(tmp_path: Path) -> None:
    down = tmp_path / "down"

    def break_down(step: int, metrics: Mapping[str, float]) -> None:
        if step == 2:
            down.touch()

    unsure = scenario(
        {"kind": "tests.support.misbehaving_verifiers:UndecidedVerifier", "file": str(down)}, steps=9, groups=5
    )
    with pytest.raises(WorkerError, match=r"3 of the latest \d+ .*right raised InconclusiveError: the service is down"):
        marl.train(validate(unsure), tmp_path / "run", on_step=break_down)
    assert [folder.name for folder in (tmp_path / "run" / "checkpoints").iterdir()] == ["000002"]
