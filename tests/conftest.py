"""Fixtures of the whole suite: one real training run that many tests compare with, and a cache of built models."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.run_processes import RunWorkspace

# Read when a cluster is started: by default its processes give way to everything else, other tests included.
os.environ.setdefault("RAY_worker_niceness", "0")


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunWorkspace:
    """A run that nothing happened to; not to be changed."""
    from tests.support.run_processes import anchored_scenario, train_to_end

    return train_to_end(tmp_path_factory.mktemp("whole"), anchored_scenario())


@pytest.fixture
def desk(whole: RunWorkspace, tmp_path: Path) -> RunWorkspace:
    """The same scenario and the same made models, to be trained once more."""
    from tests.support.run_processes import RunWorkspace

    (tmp_path / "cache").symlink_to(whole.path / "cache")
    return RunWorkspace(tmp_path, whole.scenario)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of made models that tests share."""
    return tmp_path_factory.mktemp("made")
