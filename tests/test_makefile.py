"""What the targets of the Makefile would do."""

import os
import subprocess
from pathlib import Path

from tests.support.paths import ROOT


def test_cleaning_up_leaves_what_was_learnt() -> None:
    done = subprocess.run(["make", "-n", "clean"], capture_output=True, text=True, cwd=ROOT, check=True)
    assert ".venv" in done.stdout
    assert "runs" not in done.stdout


def test_the_bench_of_samplers_measures_the_pretrained_model_where_it_is(tmp_path: Path) -> None:
    model = tmp_path / "real" / "SmolLM2-135M-Instruct"

    def bench() -> str:
        environment = {**os.environ, "MARL_CACHE": str(tmp_path)}
        return subprocess.check_output(["make", "-n", "bench"], text=True, cwd=ROOT, env=environment)

    assert f"--model {model}" not in bench()
    model.mkdir(parents=True)
    assert f"--model {model}" in bench()
