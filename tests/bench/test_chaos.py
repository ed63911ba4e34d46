"""Chaos in small: a few faults, and the run is the one that was left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("ray")

import chaos

COUNTS = {"simulators": 1, "learners": 1, "machines": 1, "stopped_simulators": 1}


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.xdist_group("ray")
def test_a_run_whose_processes_and_machine_are_lost_is_the_run_that_was_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setenv("MARL_CACHE", "")
    figures = chaos.measured(6, COUNTS, 0, tmp_path)
    assert (figures["kills"], figures["stops"]) == (3, 1)
    assert set(figures["equal"].values()) == {True}
    counts = figures["episodes"]
    assert counts["on_disk"] == counts["dealt"] == 6 * 24
    assert {counts[name] for name in ("missing", "twice", "of_no_deal", "in_another_step", "steps_twice")} == {0}
    assert figures["said"]["a simulator hangs"] >= 1
    assert figures["said"]["a learner died"] >= 1
