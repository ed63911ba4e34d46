"""Whole runs whose worker processes fail: they go on without what cannot be judged, or end with a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import marl
from marl.engines.workers.worker import WorkerPoolError
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
    assert "policy 'checker' gave no answer (unjudged): right raised InfrastructureError: the service is down" in said


def test_too_many_episodes_that_cannot_be_judged_end_the_run_with_a_checkpoint_and_the_cause(tmp_path: Path) -> None:
    down = tmp_path / "down"

    def break_down(step: int, metrics: Mapping[str, float]) -> None:
        if step == 2:
            down.touch()

    unsure = scenario(
        {"kind": "tests.support.misbehaving_verifiers:UndecidedVerifier", "file": str(down)}, steps=9, groups=5
    )
    with pytest.raises(
        WorkerPoolError, match=r"3 of the latest \d+ .*right raised InfrastructureError: the service is down"
    ):
        marl.train(validate(unsure), tmp_path / "run", on_step=break_down)
    assert [folder.name for folder in (tmp_path / "run" / "checkpoints").iterdir()] == ["000002"]


def failing(percent: int, fault: str = "raise", **schedule: int) -> dict[str, Any]:
    check = {"kind": "tests.support.misbehaving_verifiers:FailingVerifier", "percent": percent, "fault": fault}
    return scenario(check, **schedule)


def test_faulty_verdicts_are_counted_by_check_and_ring_an_alarm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert marl.train(validate(failing(4, steps=3) | {"alarms": {"patience": 1}}), tmp_path / "run")
    steps = rows(tmp_path / "run")[1:]
    shares = [step.get("role/verifier/faulty/right", 0.0) for step in steps]
    assert max(shares) in (0.05, 0.1)  # one or two of twenty
    assert shares == [step.get("role/verifier/faulty", 0.0) for step in steps]
    assert [step.get("alarm/verifier/faulty", 0.0) for step in steps] == [float(share > 0.01) for share in shares]
    said = " ".join(capsys.readouterr().out.split())
    assert "ALARM role verifier: 10.0% of 20 verdicts a step are faulty: a check's code failed (faulty >= 0.01)" in said


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raise", "raised ZeroDivisionError: of nothing"),
        ("exit", "the process that ran it died"),
        ("segfault", "the process that ran it died"),
        ("nan", "gave a score of nan"),
    ],
)
@pytest.mark.one_in(3)
def test_a_check_that_fails_on_a_third_of_the_answers_ends_the_run(fault: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(
        WorkerPoolError, match=rf"checks\.right: \d+ of its latest \d+ verdicts are faulty, .*: {message}"
    ):
        marl.train(validate(failing(33, fault)), tmp_path / "run")
