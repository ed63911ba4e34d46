"""What the targets of the Makefile would do."""

import subprocess

from paths import ROOT


def test_cleaning_up_leaves_what_was_learnt() -> None:
    done = subprocess.run(["make", "-n", "clean"], capture_output=True, text=True, cwd=ROOT, check=True)
    assert ".venv" in done.stdout
    assert "runs" not in done.stdout
