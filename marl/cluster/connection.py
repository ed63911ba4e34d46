"""Connection of a run to Ray: a cluster that is there, or one of its own on this machine."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import ray

from marl.scenario.cluster import ClusterConfig
from marl.scenario.load import ScenarioError

_OWN = {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
"""Ray of the run's own: no page, and no port that other machines can reach."""


@contextmanager
def connected(settings: ClusterConfig) -> Iterator[None]:
    """Connect to Ray as long as this context lasts; actors end with it.

    Raises:
        ScenarioError: if there is no such cluster, or it is too small for all simulators at once.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    already = ray.is_initialized()
    if not already:
        _connect(settings.address)
    try:
        expect_room(settings, [node for node in ray.nodes() if node["Alive"]])
        yield
    finally:
        if not already:
            ray.shutdown()


def _connect(address: str | None) -> None:
    main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)} if main else {}
    options: dict[str, Any] = {"address": address} if address else _OWN
    try:
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ScenarioError(f"cluster.address: {address}: no Ray cluster answers there: {error}") from error
    # Ray takes these over; a request to stop is to end with a checkpoint.
    for number, handler in handlers.items():
        signal.signal(number, handler)


def expect_room(settings: ClusterConfig, nodes: Sequence[Mapping[str, Any]]) -> None:
    """Check that all simulators fit at once.

    Raises:
        ScenarioError: if they do not; says what the machines of the cluster have.
    """
    machines_resources = [(node["NodeManagerAddress"], node["Resources"]) for node in nodes]
    room = sum(_fitting(settings, resources) for _, resources in machines_resources)
    if room >= settings.simulators:
        _expect_all(settings, [resources for _, resources in machines_resources])
        return
    machines = "; ".join(f"{name}: {_amounts(r.get('CPU', 0), r.get('GPU', 0))}" for name, r in machines_resources)
    raise ScenarioError(
        f"cluster.simulators: {settings.simulators} of {_amounts(settings.cpus, settings.gpus)} each do not fit: there "
        f"is room for {room} ({machines}); choose fewer, or a smaller cluster.cpus or cluster.gpus, or add machines"
    )


def _expect_all(settings: ClusterConfig, machines: Sequence[Mapping[str, float]]) -> None:
    learners = sum(settings.learners.values())
    cpus = settings.simulators * settings.cpus + learners * settings.learner_cpus
    gpus = settings.simulators * settings.gpus + learners * settings.learner_gpus
    have = [sum(resources.get(name, 0) for resources in machines) for name in ("CPU", "GPU")]
    if learners and (cpus > have[0] + 1e-9 or gpus > have[1] + 1e-9):
        raise ScenarioError(
            f"cluster.learners: {learners} processes of learners and {settings.simulators} simulators take "
            f"{_amounts(cpus, gpus)}, but the cluster has {_amounts(*have)}; choose fewer, or a smaller "
            "cluster.learner_cpus or cluster.cpus, or add machines"
        )


def _fitting(settings: ClusterConfig, resources: Mapping[str, float]) -> int:
    fitting = int(resources.get("CPU", 0) / settings.cpus + 1e-9)
    return min(fitting, int(resources.get("GPU", 0) / settings.gpus + 1e-9)) if settings.gpus else fitting


def _amounts(cpus: float, gpus: float) -> str:
    return f"{cpus:g} CPU" + (f" and {gpus:g} GPU" if gpus else "")
