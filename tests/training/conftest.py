"""The command line, for tests that look at what it says of a run."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests.support.command_line import run_marl


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """`run("check", file)`: (exit status, stdout, stderr) of the command in this process."""
    return partial(run_marl, monkeypatch, capsys)
