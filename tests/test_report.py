"""What a run says when it ends."""

import json
from pathlib import Path

from marl.folder import RunFolder
from marl.report import closing


def folder(path: Path, curve: dict[int, float], steps: int, mass: float = 1.0) -> RunFolder:
    rows = [
        {"step": s, **({"eval/nashconv": curve[s], "eval/legal_mass": mass} if s in curve else {})}
        for s in range(steps + 1)
    ]
    (path / "scenario.yaml").write_text("{}\n")
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return RunFolder(path)


def test_the_end_is_the_mean_of_the_last_tenth(tmp_path: Path) -> None:
    told = closing(folder(tmp_path, {0: 1.0, 85: 0.9, 90: 0.3, 95: 0.2, 100: 0.1}, 100), finished=True)
    assert "NashConv 1.000 -> 0.200 (legal mass 1.000)" in told


def test_a_run_that_was_stopped_after_its_last_measurement_says_that_one(tmp_path: Path) -> None:
    told = closing(folder(tmp_path, {0: 1.0, 60: 0.5}, 100), finished=False)
    assert "stopped at step 100" in told
    assert "NashConv 1.000 -> 0.500" in told


def test_a_figure_with_little_legal_mass_does_not_count(tmp_path: Path) -> None:
    assert "does not count" in closing(folder(tmp_path, {0: 1.0, 10: 0.1}, 10, mass=0.9), finished=True)
