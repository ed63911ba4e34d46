"""A real Ray cluster of one machine, for tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch


@contextmanager
def local_cluster(cpus: int, **environment: str) -> Iterator[Any]:
    """Start Ray on loopback; yield the package. Its processes see `environment` and import what tests import.

    Threads of torch, which learners here set, are as before afterwards.
    """
    ray = pytest.importorskip("ray")
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        for name, value in environment.items():
            patch.setenv(name, value)
        ray.init(
            address="local",
            num_cpus=cpus,
            include_dashboard=False,
            log_to_driver=False,
            _node_ip_address="127.0.0.1",
        )
        yield ray
        ray.shutdown()
    torch.set_num_threads(threads)
