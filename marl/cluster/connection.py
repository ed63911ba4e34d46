"""Connection of a run to Ray: a cluster that is there, or one of its own on this machine."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from marl.errors import EngineError
from marl.scenario.cluster import ClusterConfig, amounts
from marl.scenario.load import ScenarioError

_OWN = {"address": "local", "include_dashboard": False}
"""Ray of the run's own, whichever others this machine runs, without a page."""
_ALONE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_worker_niceness": "0"}
"""The first lets Ray name this machine 127.0.0.1 and listen there alone, as it does by default on a laptop's system. It
is read when Ray is imported; what is given as `_node_ip_address` is not heeded. The second: by default, simulators and
learners would give way (niceness 15) to whatever else runs on this machine."""
_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_NUM_REDIS_GET_RETRIES": "2"}
"""No report to Ray's makers; two attempts at a cluster's address, of up to 40 s each, in place of 20."""
_ANSWER_S = 10.0
"""Longest wait for any answer at a cluster's address."""


@contextmanager
def connected(settings: ClusterConfig) -> Iterator[None]:
    """Connect to Ray as long as this context lasts; actors end with it.

    Raises:
        ScenarioError: if there is no such cluster, or it is too small for all simulators at once.
        EngineError: if a cluster of the run's own does not come up.
    """
    for name, value in (_ENVIRONMENT if settings.address else _ENVIRONMENT | _ALONE).items():
        os.environ.setdefault(name, value)
    import ray

    already = ray.is_initialized()
    if not already:
        _connect(settings)
    try:
        expect_room(settings, [node for node in ray.nodes() if node["Alive"]])
        yield
    finally:
        if not already:
            ray.shutdown()


def _connect(settings: ClusterConfig) -> None:
    main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)} if main else {}
    options: dict[str, Any] = {"address": settings.address} if settings.address else _OWN
    _expect_answer(options["address"])
    until = time.monotonic() + settings.start_s
    while not _begun(options, until):
        sys.stderr.write("marl: Ray has not come up within 30 s: it is tried again\n")
    # Ray takes these over; a request to stop is to end with a checkpoint.
    for number, handler in handlers.items():
        signal.signal(number, handler)


def _begun(options: Mapping[str, Any], until: float) -> bool:
    """Return True if Ray has begun; False if its processes were not up in time, and it is not `until` yet."""
    import ray
    from ray.exceptions import RayError

    try:
        with _Start(until):
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
        return ray.is_initialized()
    except (ConnectionError, RuntimeError, ValueError, RayError) as error:
        raise _nobody(options["address"], error) from error


def _expect_answer(address: str) -> None:
    """Check that something listens at HOST:PORT: Ray itself tries for minutes, and not all that it raises is caught.

    Raises:
        ScenarioError: if nothing does.
    """
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        try:
            socket.create_connection((host.strip("[]"), int(port)), _ANSWER_S).close()
        except OSError as error:
            raise _nobody(address, error) from error


def _nobody(address: str, error: Exception) -> ScenarioError:
    why = str(error).strip().partition("\n")[0]
    advice = "start one there (`ray start --head`), or leave cluster.address out for one of the run's own"
    return ScenarioError(f"cluster.address: {address}: no Ray cluster answers there: {why}; {advice}")


class _Start:
    """Context manager that ends quietly when Ray's own limit of 30 s is over, which is a bare Exception.

    Raises:
        EngineError: if it is `until` by then.
    """

    def __init__(self, until: float) -> None:
        self._until = until

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> bool:
        if kind is not Exception:
            return False
        if time.monotonic() < self._until:
            return True
        raise EngineError(f"Ray has not come up within cluster.start_s on this machine: {error}") from error


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
    machines = "; ".join(f"{name}: {amounts(r.get('CPU', 0), r.get('GPU', 0))}" for name, r in machines_resources)
    raise ScenarioError(
        f"cluster.simulators: {settings.simulators} of {amounts(settings.cpus, settings.gpus)} each do not fit: there "
        f"is room for {room} ({machines}); choose fewer, or a smaller cluster.cpus or cluster.gpus, or add machines"
    )


def _expect_all(settings: ClusterConfig, machines: Sequence[Mapping[str, float]]) -> None:
    learners, (cpus, gpus) = sum(settings.learners.values()), settings.reserved
    have = [sum(resources.get(name, 0) for resources in machines) for name in ("CPU", "GPU")]
    if learners and (cpus > have[0] + 1e-9 or gpus > have[1] + 1e-9):
        raise ScenarioError(
            f"cluster.learners: {learners} processes of learners and {settings.simulators} simulators take "
            f"{amounts(cpus, gpus)}, but the cluster has {amounts(*have)}; choose fewer, or a smaller "
            "cluster.learner_cpus or cluster.cpus, or add machines"
        )


def _fitting(settings: ClusterConfig, resources: Mapping[str, float]) -> int:
    fitting = int(resources.get("CPU", 0) / settings.cpus + 1e-9)
    return min(fitting, int(resources.get("GPU", 0) / settings.gpus + 1e-9)) if settings.gpus else fitting
