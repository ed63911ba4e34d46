"""Connection of a run to Ray: to an existing cluster, or to a private cluster on this machine."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from marl.core.errors import EngineError
from marl.host.processes import start_descendant_killer
from marl.scenario.cluster import ClusterConfig, format_cpus_and_gpus
from marl.scenario.load import ScenarioError

_PRIVATE = {"address": "local", "include_dashboard": False}
"""Arguments of `ray.init` that start a private cluster on this machine, without a dashboard."""
# With RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0, Ray listens on 127.0.0.1 only, as by default on Windows and macOS.
# Ray reads RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER at its import, and `ray.init` has no option with the same effect.
# With RAY_worker_niceness=0, Ray's workers do not yield to other processes (their default niceness is 15).
_PRIVATE_ENVIRONMENT = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_worker_niceness": "0"}
# Ray sends no usage report. It tries a cluster's address 2 times instead of 20, each time for up to 40 s.
_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_NUM_REDIS_GET_RETRIES": "2"}
_ANSWER_S = 10.0
"""Maximum wait for an answer at a cluster's address, in seconds."""


@contextmanager
def ray_connection(settings: ClusterConfig) -> Iterator[None]:
    """Connect this process to Ray for the duration of the context. Ray's actors end with the connection.

    Raises:
        ScenarioError: if no cluster answers at the address, or the cluster is too small for all simulators at once.
        EngineError: if a private cluster does not start.
    """
    for name, value in (_ENVIRONMENT if settings.address else _ENVIRONMENT | _PRIVATE_ENVIRONMENT).items():
        os.environ.setdefault(name, value)
    import ray

    already = ray.is_initialized()
    # A killer process is started, because two agents of Ray's raylet outlive a run killed by SIGKILL by a minute.
    # Ray's agents notice the run's end after 10 s, and then try to report it to a server that has ended, too.
    killer = None if already or settings.address else start_descendant_killer(str(Path(ray.__file__).parent))
    try:
        if not already:
            _connect_to_ray(settings)
        if not settings.wait_s:
            check_cluster_capacity(settings, [node for node in ray.nodes() if node["Alive"]])
        yield
    finally:
        if not already:
            ray.shutdown()
        if killer:
            killer.kill()
            killer.wait()


def _connect_to_ray(settings: ClusterConfig) -> None:
    """Connect to the cluster of `settings.address`, or start a private one.

    Raises:
        ScenarioError: if no cluster answers at the address, or Ray's token is missing or wrong.
        EngineError: if a private cluster does not start.
    """
    import ray.exceptions
    from ray.job_config import JobConfig

    is_main_thread = threading.current_thread() is threading.main_thread()
    signals = (signal.SIGINT, signal.SIGTERM) if is_main_thread else ()
    handlers = {number: signal.getsignal(number) for number in signals}
    job = JobConfig()
    job._py_driver_sys_path = _ImportableFolders()
    options: dict[str, Any] = {"address": settings.address} if settings.address else _PRIVATE
    # A plain socket tests the address first, because Ray would try it for minutes and raise further kinds of errors.
    host, _, port = options["address"].rpartition(":")
    if host and port.isdigit():
        try:
            socket.create_connection((host.strip("[]"), int(port)), _ANSWER_S).close()
        except OSError as error:
            raise _unreachable_cluster_error(options["address"], error) from error
    until = time.monotonic() + settings.start_s
    while True:
        try:
            with _SuppressRayTimeout(until):
                ray.init(log_to_driver=False, logging_level=logging.ERROR, job_config=job, **options)
        except ray.exceptions.AuthenticationError as error:
            token = "set RAY_AUTH_TOKEN to the cluster's token, or RAY_AUTH_TOKEN_PATH to a file that holds it"
            message = f"cluster.address: {options['address']}: the token for Ray is missing or wrong; {token}"
            raise ScenarioError(message) from error
        except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            raise _unreachable_cluster_error(options["address"], error) from error
        if ray.is_initialized():
            break
        sys.stderr.write("marl: Ray has not come up within 30 s: it is tried again\n")
    # Ray has replaced the signal handlers. The old ones return, because a stop request must write a checkpoint.
    for number, handler in handlers.items():
        signal.signal(number, handler)


def _unreachable_cluster_error(address: str, error: Exception) -> ScenarioError:
    cause = str(error).strip().partition("\n")[0]
    advice = "start one there (`ray start --head`), or leave cluster.address out for one of the run's own"
    return ScenarioError(f"cluster.address: {address}: no Ray cluster answers there: {cause}; {advice}")


class _ImportableFolders(list[str]):
    """Folders that Ray puts on the import path of its processes: only those on the import path of this process.

    Ray adds the working folder as the first one, and a file in a stranger's folder would hide an installed package.
    """

    def extend(self, folders: Iterable[str], /) -> None:
        super().extend(folder for folder in folders if folder in sys.path)


class _SuppressRayTimeout:
    """Context manager that suppresses Ray's error about its timeout of 30 s, before the time `until` (monotonic).

    Raises:
        EngineError: if Ray's timeout ends after `until`.
    """

    def __init__(self, until: float) -> None:
        self._until = until

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> bool:
        # Ray reports its timeout as a bare Exception. Any other class is another error, and propagates.
        if kind is not Exception:
            return False
        if time.monotonic() < self._until:
            return True
        raise EngineError(f"Ray has not come up within cluster.start_s on this machine: {error}") from error


def check_cluster_capacity(settings: ClusterConfig, nodes: Sequence[Mapping[str, Any]]) -> None:
    """Check that all simulators and learners fit into the cluster's `nodes` at once.

    Raises:
        ScenarioError: if they do not fit; the message lists the resources of each machine.
    """
    room, totals, machines, holds_learner = 0, {"CPU": 0.0, "GPU": 0.0}, list[str](), False
    for node in nodes:
        resources: Mapping[str, float] = node["Resources"]
        cpus, gpus = resources.get("CPU", 0), resources.get("GPU", 0)
        # 1e-9 makes up for rounding, so that ten simulators of 0.1 CPU fit on one CPU.
        fitting = int(cpus / settings.cpus + 1e-9)
        room += min(fitting, int(gpus / settings.gpus + 1e-9)) if settings.gpus else fitting
        holds_learner |= cpus >= settings.learner_cpus - 1e-9 and gpus >= settings.learner_gpus - 1e-9
        totals["CPU"] += cpus
        totals["GPU"] += gpus
        machines.append(f"{node['NodeManagerAddress']}: {format_cpus_and_gpus(cpus, gpus)}")
    if room < settings.simulators:
        raise ScenarioError(
            f"cluster.simulators: {settings.simulators} of {format_cpus_and_gpus(settings.cpus, settings.gpus)} each "
            f"do not fit: there is room for {room} ({'; '.join(machines)}); choose fewer, or a smaller cluster.cpus or "
            "cluster.gpus, or add machines"
        )
    if settings.learners and not holds_learner:
        each = format_cpus_and_gpus(settings.learner_cpus, settings.learner_gpus)
        raise ScenarioError(
            f"cluster.learner_cpus: no machine has room for a process of {each} ({'; '.join(machines)}); choose a "
            "smaller cluster.learner_cpus or cluster.learner_gpus, or add machines"
        )
    learners, (cpus, gpus) = sum(settings.learners.values()), settings.reserved_cpus_and_gpus
    if learners and (cpus > totals["CPU"] + 1e-9 or gpus > totals["GPU"] + 1e-9):
        raise ScenarioError(
            f"cluster.learners: {learners} processes of learners and {settings.simulators} simulators take "
            f"{format_cpus_and_gpus(cpus, gpus)}, but the cluster has "
            f"{format_cpus_and_gpus(totals['CPU'], totals['GPU'])}; choose fewer, or a smaller "
            "cluster.learner_cpus or cluster.cpus, or add machines"
        )


def own_cluster_address() -> str:
    """Return the address at which other machines of the Ray cluster reach this machine."""
    import ray

    node_id = ray.get_runtime_context().get_node_id()
    return next(node["NodeManagerAddress"] for node in ray.nodes() if node["NodeID"] == node_id)
