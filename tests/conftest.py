"""Fixtures of the whole suite: one real training run that many tests compare with, and a cache of built models."""

from __future__ import annotations

import os
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

if TYPE_CHECKING:
    from tests.support.run_processes import RunWorkspace

# Read when a cluster is started: by default its processes give way to everything else, other tests included.
os.environ.setdefault("RAY_worker_niceness", "0")
# Plug-ins of the tests lie in this checkout; commands import code from the folders of PYTHONPATH without consent.
_ROOT = str(Path(__file__).parents[1])
if _ROOT not in os.environ.get("PYTHONPATH", "").split(os.pathsep):
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [_ROOT, os.environ.get("PYTHONPATH")]))


def pytest_configure(config: pytest.Config) -> None:
    """Draw the examples of Hypothesis from fixed seeds in the default suite; the slow suite explores new ones.

    A failure of the slow suite prints its example, to be added to the test by `@example`. Examples have no time limit,
    because a busy machine would break it.
    """
    default_suite = "not slow" in config.option.markexpr
    hypothesis.settings.register_profile("marl", deadline=None, derandomize=default_suite, print_blob=True)
    hypothesis.settings.load_profile("marl")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep one in N of the tests marked `one_in(N)`, chosen by the commit's hash: N commits cover them on average.

    Without a Git repository, with the environment variable ALL_LONG_RUNS, or if a test is named (FILE::TEST), all are
    kept: who repeats a failed test must not have it left out at the next commit.
    """
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=_ROOT, capture_output=True, text=True, check=False)
    is_named = any("::" in argument for argument in config.args)
    if head.returncode or os.environ.get("ALL_LONG_RUNS") or is_named:
        return
    by_share: defaultdict[int, list[pytest.Item]] = defaultdict(list)
    for item in sorted(items, key=lambda item: item.nodeid):
        if mark := item.get_closest_marker("one_in"):
            by_share[mark.args[0]].append(item)
    left_out: set[pytest.Item] = set()
    for share, long_runs in by_share.items():
        turn = int(head.stdout[:8], 16) % share
        left_out.update(item for index, item in enumerate(long_runs) if index % share != turn)
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


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
