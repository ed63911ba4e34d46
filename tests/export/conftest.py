"""The command line in an empty folder, for tests of exports."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import marl_error, marl_output


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """`command("export", RUN)` in an empty folder: what it prints, after it ended well."""
    monkeypatch.chdir(tmp_path)
    return partial(marl_output, monkeypatch, capsys)


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """The same for a command that ends with a message."""
    monkeypatch.chdir(tmp_path)
    return partial(marl_error, monkeypatch, capsys)
