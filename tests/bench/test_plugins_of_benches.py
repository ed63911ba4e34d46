"""Benches whose plug-ins are in their own file run as the commands in their docstrings."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from _bench import ROOT

COMMANDS = {
    "self_play": ["--steps", "2", "--few", "1", "--warm-up", "1", "--repeats", "1"],
    "adapters": ["--repeats", "1", "--episodes", "32", "--tokens", "4", "--hidden", "64", "--layers", "1"],
}


@pytest.mark.slow
@pytest.mark.parametrize("bench", COMMANDS)
def test_a_bench_with_plug_ins_of_its_own_runs_and_writes_its_figures(bench: str, tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    command = [sys.executable, f"tests/bench/{bench}.py", *COMMANDS[bench], "--out", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=300)
    assert json.loads(out.read_text())["figures"]
