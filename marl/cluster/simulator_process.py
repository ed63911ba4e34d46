"""A simulator shard in a process of its own, an actor of Ray, and the messages between the actor and the run."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from marl.core.types import Ticket
from marl.rollout.shards import LoadWeights, Result, ShardCommand, ShardReport, SimulatorShard
from marl.scenario.schema import Scenario
from marl.training.placement import Sources, build_simulator, use_threads

_GATHER_S = 0.1
"""Time over which finished episodes are gathered into one reply while others are in flight, in seconds."""


@dataclass(frozen=True, slots=True)
class SimulatorSetup:
    """Settings from which a process builds its simulator."""

    scenario: Scenario
    sources: Sources
    threads: int
    """Number of torch's threads."""


@dataclass(slots=True)
class Reply:
    """Reply of a process to commands."""

    results: list[tuple[Ticket, Result]] = field(default_factory=list)
    reports: list[ShardReport] = field(default_factory=list)
    """Reports of the commands `EndStep` and `Sleep`, in order."""
    busy_s: float = 0.0
    """Working time in seconds."""


class SimulatorProcess:
    """Actor with one simulator shard. Each call of `work` plays for a short time."""

    def __init__(self) -> None:
        self._shard: SimulatorShard | None = None

    def location(self) -> tuple[str, int]:
        """Return the host name and the process id."""
        return socket.gethostname(), os.getpid()

    def build(self, setup: SimulatorSetup) -> frozenset[str]:
        """Load the weights and build the simulator; return the UUIDs of the GPUs in use by this process."""
        # Imported here, not at the top: this takes seconds, which must not count as a wait for room (`cluster.room_s`).
        # Nor later: the first new weights should not have to wait for the import of torch.
        from marl.cluster.gpu_weights import gpus_in_use
        from marl.cluster.weight_transfer import load_weights

        self._load_weights = load_weights
        use_threads(setup.threads)
        self._shard = SimulatorShard(build_simulator(setup.scenario, setup.sources))
        return gpus_in_use()

    def work(self, commands: Sequence[ShardCommand], limit_s: float) -> Reply:
        """Execute commands, then play for up to `limit_s`; return earlier if no job is left."""
        shard, began, reply = self._shard, time.monotonic(), Reply()
        assert shard is not None
        for command in commands:
            if isinstance(command, LoadWeights):
                self._load_weights(shard, command)
            elif report := shard.handle(command):
                reply.reports.append(report)
        while shard.open_jobs and (elapsed_s := time.monotonic() - began) < limit_s:
            if reply.results and elapsed_s > _GATHER_S:
                break
            reply.results += shard.step(limit_s - elapsed_s)
        reply.busy_s = time.monotonic() - began
        return reply
