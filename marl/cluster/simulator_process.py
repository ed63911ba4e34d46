"""Simulator shard in a Ray actor, and the messages between the actor and the run."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from marl.cluster.actor_errors import SendableErrors
from marl.core.graph import compressed_trajectory_line
from marl.core.types import Ticket
from marl.host.garbage_collection import tune_garbage_collection
from marl.rollout.base import FinishedEpisode
from marl.rollout.shards import LoadWeightsCommand, ShardCommand, ShardJobResult, ShardStepReport, SimulatorShard
from marl.scenario.schema import Scenario
from marl.training.placement import ModelSources, build_simulator, set_torch_threads

if TYPE_CHECKING:
    from marl.cluster.broadcast_group import BroadcastOrder

_MIN_GATHER_S = 0.1
"""Minimum time from a call's first result to its reply, in which further results are gathered while jobs are open, in
seconds."""


@dataclass(frozen=True, slots=True)
class SimulatorProcessSettings:
    """Settings from which a process builds its simulator."""

    scenario: Scenario
    sources: ModelSources
    threads: int
    """Number of torch's threads in the process."""


@dataclass(slots=True)
class ExecuteAndPlayReply:
    """Reply of a simulator's process to one call of `execute_and_play`."""

    results: list[tuple[Ticket, ShardJobResult]] = field(default_factory=list)
    reports: list[ShardStepReport] = field(default_factory=list)
    """Reports of the commands `ReportStepMetricsCommand` and `SleepCommand`, in order."""
    idle_report: ShardStepReport | None = None
    """Report of the step so far if no job is open at the end of the call: the step may end without another call."""
    busy_s: float = 0.0
    """Duration of the work done in this call, in seconds."""


class SimulatorProcess:
    """Ray actor with one simulator shard. Each call of `execute_and_play` plays for a short time."""

    def __init__(self) -> None:
        self._shard: SimulatorShard | None = None
        self._encodes_episodes = False
        """True if this process encodes the lines of its training episodes for the run's trajectory files."""

    def hostname_and_pid(self) -> tuple[str, int]:
        """Return the process's host name and id."""
        return socket.gethostname(), os.getpid()

    @SendableErrors()
    def build_and_list_gpu_uuids(self, settings: SimulatorProcessSettings, index: int) -> frozenset[str]:
        """Load the weights and build simulator `index` (from 0) of the run; return the UUIDs of the GPUs in use."""
        # Torch is imported late: it takes seconds, which would count as waiting for room if it were imported above.
        from marl.cluster.broadcast_group import BroadcastReceiver
        from marl.cluster.gpu_weights import used_gpu_uuids
        from marl.cluster.weight_transfer import fetch_and_load_weights

        self._load_weights, self._broadcasts = fetch_and_load_weights, BroadcastReceiver()
        set_torch_threads(settings.threads)
        cluster = settings.scenario.cluster
        simulators = cluster.simulators if cluster else 1
        self._shard = SimulatorShard(build_simulator(settings.scenario, settings.sources, index, simulators))
        self._encodes_episodes = settings.scenario.checkpoint.trajectories > 0
        tune_garbage_collection(serves_programs=settings.scenario.runs_programs)
        return used_gpu_uuids()

    @SendableErrors()
    def prepare_broadcast(self, order: BroadcastOrder) -> None:
        """Get ready for weights that the run broadcasts. The run and all processes of a new group join together."""
        self._broadcasts.prepare(order)

    @SendableErrors()
    def receive_broadcast(self) -> None:
        """Receive the weights for which `prepare_broadcast` got ready. A later `LoadWeightsCommand` loads them."""
        self._broadcasts.receive()

    @SendableErrors()
    def execute_and_play(
        self, commands: Sequence[ShardCommand], limit_s: float, gather_s: float = _MIN_GATHER_S
    ) -> ExecuteAndPlayReply:
        """Execute commands, then play until `gather_s` seconds after the first result, or until no job is left.

        Without a result, the reply comes after `limit_s` seconds, as a sign of life.
        """
        shard, began, reply = self._shard, time.monotonic(), ExecuteAndPlayReply()
        assert shard is not None
        for command in commands:
            if isinstance(command, LoadWeightsCommand):
                self._load_weights(shard, command, self._broadcasts)
            elif report := shard.execute(command):
                reply.reports.append(report)
        end = began + limit_s
        while shard.open_job_count and (remaining_s := end - time.monotonic()) > 0:
            results = shard.step(remaining_s)
            if results and not reply.results:
                end = min(end, time.monotonic() + max(gather_s, _MIN_GATHER_S))
            reply.results += results
        if self._encodes_episodes:
            reply.results = [(ticket, _with_compressed_line(result)) for ticket, result in reply.results]
        if not shard.open_job_count:
            reply.idle_report = shard.step_report()
        reply.busy_s = time.monotonic() - began
        return reply


def _with_compressed_line(result: ShardJobResult) -> ShardJobResult:
    """Return `result` with its line of the trajectory file if it is an episode of training, which a run may record."""
    if not isinstance(result, FinishedEpisode) or not (trajectory := result.trajectory):
        return result
    if trajectory.deal.purpose != "train":
        return result
    return result._replace(compressed_line=compressed_trajectory_line(trajectory))
