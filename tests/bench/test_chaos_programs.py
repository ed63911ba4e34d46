"""A tenth of the chaos of programs: a few faults, and the run is the one that was left alone."""

from __future__ import annotations

from pathlib import Path

import chaos_programs
import pytest

STEPS, FAULTS = 5, 10


@pytest.mark.slow
@pytest.mark.one_in(2)
def test_a_run_whose_programs_and_connections_are_lost_is_the_run_that_was_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PYTHONPATH", "MARL_CACHE", "CHAOS_LOG"):
        monkeypatch.setenv(name, "")
    figures = chaos_programs.measured(STEPS, chaos_programs.fault_counts(FAULTS, 1), 0, tmp_path, "here")
    assert chaos_programs.violations(figures) == []
    assert sum(figures["faults"].values()) == FAULTS
    assert figures["episodes"]["on_disk"] == figures["episodes"]["dealt"] == STEPS * 32
    attempts = figures["attempts"]
    assert attempts["begin"] > attempts["end"] > STEPS * 32
