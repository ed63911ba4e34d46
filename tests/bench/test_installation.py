"""The page on installation: its commands work in a fresh environment, and what it says of faults names real tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import installation
import pytest

SECTIONS = installation.documented_commands(installation.PAGE)


def test_every_section_installs_from_the_checkout_with_tested_versions_and_trains_three_steps() -> None:
    assert list(SECTIONS) == ["marl alone", "With Ray", "With vLLM, without a GPU"]
    for commands in SECTIONS.values():
        assert commands[0].startswith("pip install -c .ci/constraints.txt -e ")
        assert commands[-1].startswith("marl train ")
        assert "schedule.steps=3" in commands[-1].split()


def test_a_command_that_fails_is_named_with_its_output(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"marl_is_not_here\n.*not found"):
        installation.output_of("marl_is_not_here", tmp_path, {})


@pytest.mark.slow
@pytest.mark.one_in(10)
@pytest.mark.parametrize("section", list(SECTIONS))
def test_the_documented_commands_install_and_train(section: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(tmp_path), "pyyaml"]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("pip finds no packages here")
    found = installation.install_and_train(SECTIONS[section], tmp_path)
    assert found["printed"][0].startswith("NashConv")
    assert found["disk_mib"] < 6000
