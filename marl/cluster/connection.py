"""Connection of a run to Ray: to an existing cluster, or to a private cluster on this machine."""

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

from marl.core.errors import EngineError
from marl.scenario.cluster import ClusterConfig, amounts
from marl.scenario.load import ScenarioError

_PRIVATE = {"address": "local", "include_dashboard": False}
"""Arguments of `ray.init` for a private cluster, separate from other clusters on this machine, without a dashboard."""
# Ray by default listens on 127.0.0.1 alone on Windows and macOS; the first variable has the same effect here. Ray reads
# it when it is imported; `_node_ip_address` has no such effect. The second variable: by default Ray starts its workers
# with niceness 15, so that simulators and learners would yield to everything else on this machine.
_PRIVATE_ENVIRONMENT = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_worker_niceness": "0"}
# No usage report to Ray's makers; two attempts at a cluster's address, of up to 40 s each, instead of 20.
_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_NUM_REDIS_GET_RETRIES": "2"}
_ANSWER_S = 10.0
"""Maximum wait for an answer at a cluster's address, in seconds."""


@contextmanager
def connected(settings: ClusterConfig) -> Iterator[None]:
    """Connect to Ray for the duration of this context. Actors end with the connection.

    Raises:
        ScenarioError: if no cluster answers at the address, or the cluster is too small for all simulators at once.
        EngineError: if a private cluster does not start.
    """
    for name, value in (_ENVIRONMENT if settings.address else _ENVIRONMENT | _PRIVATE_ENVIRONMENT).items():
        os.environ.setdefault(name, value)
    import ray

    already = ray.is_initialized()
    if not already:
        _connect(settings)
    try:
        check_capacity(settings, [node for node in ray.nodes() if node["Alive"]])
        yield
    finally:
        if not already:
            ray.shutdown()


def _connect(settings: ClusterConfig) -> None:
    is_main_thread = threading.current_thread() is threading.main_thread()
    signals = (signal.SIGINT, signal.SIGTERM) if is_main_thread else ()
    handlers = {number: signal.getsignal(number) for number in signals}
    options: dict[str, Any] = {"address": settings.address} if settings.address else _PRIVATE
    _expect_listener(options["address"])
    until = time.monotonic() + settings.start_s
    while not _start_ray(options, until):
        sys.stderr.write("marl: Ray has not come up within 30 s: it is tried again\n")
    # Ray replaces the handlers, but a request to stop must end the run with a checkpoint.
    for number, handler in handlers.items():
        signal.signal(number, handler)


def _start_ray(options: Mapping[str, Any], until: float) -> bool:
    """Return True if Ray has started, False if Ray's own timeout ended before `until`: try again."""
    import ray
    from ray.exceptions import RayError

    try:
        with _SuppressRayTimeout(until):
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
        return ray.is_initialized()
    except (ConnectionError, RuntimeError, ValueError, RayError) as error:
        raise _no_cluster(options["address"], error) from error


def _expect_listener(address: str) -> None:
    """Check that a process listens at `address`, if of the form HOST:PORT.

    Raises:
        ScenarioError: if none does.
    """
    # Ray itself tries for minutes, and raises more kinds of errors than `_start_ray` expects.
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        try:
            socket.create_connection((host.strip("[]"), int(port)), _ANSWER_S).close()
        except OSError as error:
            raise _no_cluster(address, error) from error


def _no_cluster(address: str, error: Exception) -> ScenarioError:
    cause = str(error).strip().partition("\n")[0]
    advice = "start one there (`ray start --head`), or leave cluster.address out for one of the run's own"
    return ScenarioError(f"cluster.address: {address}: no Ray cluster answers there: {cause}; {advice}")


class _SuppressRayTimeout:
    """Context manager that suppresses Ray's timeout of 30 s.

    Raises:
        EngineError: if `until` has passed.
    """

    def __init__(self, until: float) -> None:
        self._until = until

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> bool:
        # Ray reports its timeout as a bare Exception, so no subclass is meant.
        if kind is not Exception:
            return False
        if time.monotonic() < self._until:
            return True
        raise EngineError(f"Ray has not come up within cluster.start_s on this machine: {error}") from error


def check_capacity(settings: ClusterConfig, nodes: Sequence[Mapping[str, Any]]) -> None:
    """Check that all simulators and learners fit into the cluster at once.

    Raises:
        ScenarioError: if they do not; the message lists the resources of each machine.
    """
    room, totals, machines = 0, {"CPU": 0.0, "GPU": 0.0}, list[str]()
    for node in nodes:
        resources: Mapping[str, float] = node["Resources"]
        cpus, gpus = resources.get("CPU", 0), resources.get("GPU", 0)
        # The small number makes up for rounding: ten simulators of 0.1 CPU fit on one CPU.
        fitting = int(cpus / settings.cpus + 1e-9)
        room += min(fitting, int(gpus / settings.gpus + 1e-9)) if settings.gpus else fitting
        totals["CPU"] += cpus
        totals["GPU"] += gpus
        machines.append(f"{node['NodeManagerAddress']}: {amounts(cpus, gpus)}")
    if room < settings.simulators:
        raise ScenarioError(
            f"cluster.simulators: {settings.simulators} of {amounts(settings.cpus, settings.gpus)} each do not fit: "
            f"there is room for {room} ({'; '.join(machines)}); choose fewer, or a smaller cluster.cpus or "
            "cluster.gpus, or add machines"
        )
    learners, (cpus, gpus) = sum(settings.learners.values()), settings.reserved
    if learners and (cpus > totals["CPU"] + 1e-9 or gpus > totals["GPU"] + 1e-9):
        raise ScenarioError(
            f"cluster.learners: {learners} processes of learners and {settings.simulators} simulators take "
            f"{amounts(cpus, gpus)}, but the cluster has {amounts(totals['CPU'], totals['GPU'])}; choose fewer, or a "
            "smaller cluster.learner_cpus or cluster.cpus, or add machines"
        )
