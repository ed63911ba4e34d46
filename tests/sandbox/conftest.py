"""Fixtures: both isolation mechanisms, and a detector of processes that are left behind."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest
from orphans import Orphans

from marl.sandbox import Sandbox, unusable

PR_SET_CHILD_SUBREAPER = 36


@pytest.fixture
def orphans() -> Iterator[Orphans]:
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    yield Orphans()
    libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@pytest.fixture(params=["bubblewrap", "unshare"])
def mechanism(request: pytest.FixtureRequest) -> str:
    if fault := unusable(Sandbox(how=request.param)):
        pytest.skip(fault)
    return request.param
