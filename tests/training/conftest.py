"""The command line, for tests that look at what it says of a run; and the choice of learning runs for a commit."""

from __future__ import annotations

import os
import subprocess
from functools import partial
from typing import Any

import pytest

from tests.support.command_line import run_marl
from tests.support.paths import ROOT

LEARNING_SHARE = 5
"""One in so many tests of `test_learning.py` runs on a commit; `make learning-smoke` runs all of them."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep a fifth of the learning runs, chosen by the commit's hash, so that five commits cover them on average.

    Without a Git repository, or with LEARNING_RUNS=all, all are kept.
    """
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    if head.returncode or os.environ.get("LEARNING_RUNS") == "all":
        return
    learning_runs = sorted((item for item in items if item.path.name == "test_learning.py"), key=lambda i: i.nodeid)
    chosen_remainder = int(head.stdout[:8], 16) % LEARNING_SHARE
    left_out = {item for index, item in enumerate(learning_runs) if index % LEARNING_SHARE != chosen_remainder}
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """`run("check", file)`: (exit status, stdout, stderr) of the command in this process."""
    return partial(run_marl, monkeypatch, capsys)
