"""Programs written elsewhere learn as much as the native team with the same settings."""

from __future__ import annotations

import figures
import pytest

PROGRAMS = ("program_graph", "program_agents_sdk", "program_openai_client")
NATIVE = "program_digits_native"
SUCCESS = "held_out/success/end"
TOLERANCE = 0.03
"""Tolerated difference to the lowest success of the native runs."""


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_seed_of_a_program_reaches_the_lowest_success_of_the_native_team(program: str) -> None:
    assert figures.values(program, "seed") == figures.values(NATIVE, "seed") == [0, 1, 2]
    assert figures.values(program, "steps") == figures.values(NATIVE, "steps")
    assert min(figures.values(program, SUCCESS)) >= min(figures.values(NATIVE, SUCCESS)) - TOLERANCE
    assert figures.values(program, "held_out/failed/end") == [0.0] * 3


def test_programs_that_send_equal_prompts_learn_the_same() -> None:
    success = [figures.values(program, SUCCESS) for program in PROGRAMS]
    assert success[0] == success[1] == success[2]
