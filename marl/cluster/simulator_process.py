"""A simulator in a process of its own: an actor of Ray. What travels to and from it is in this module."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from marl.protocols import Player
from marl.rollout.parts import JobBatch, PartReport, Result, SimulatorPart
from marl.scenario.schema import Scenario
from marl.training.placement import Sources, playing_simulator, use_threads
from marl.types import Ticket, Usage

_GATHER_S = 0.1
"""Time for which finished episodes are gathered before they are sent on, while others are being played."""


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything from which a process builds its simulator."""

    scenario: Scenario
    sources: Sources
    threads: int
    """Threads of torch."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """Order to give up jobs."""

    tickets: frozenset[Ticket]


@dataclass(frozen=True, slots=True)
class NewWeights:
    """Order to sample with new weights from now on."""

    policy: str
    version: int
    sent: Any
    """A `Publication`; in the process, what that sends it: a handle to memory of its GPU, or a reference to bytes in
    Ray's object store, which it fetches itself, once for each machine."""


@dataclass(frozen=True, slots=True)
class Spent:
    """Order to go on from what all simulators have spent."""

    spent: Mapping[str, Usage]


@dataclass(frozen=True, slots=True)
class EndStep:
    """Order to report on the step that ends."""


@dataclass(frozen=True, slots=True)
class Sleep:
    """Order to free the memory of engines until they are needed again; an empty report says that it was done."""


@dataclass(frozen=True, slots=True)
class Guest:
    """Order to let a player speak under a name from now on, or (None) no more."""

    name: str
    player: Player | None


Order = JobBatch | Cancel | NewWeights | Spent | EndStep | Sleep | Guest


@dataclass(slots=True)
class Reply:
    """Answer of a process to orders."""

    results: list[tuple[Ticket, Result]] = field(default_factory=list)
    reports: list[PartReport] = field(default_factory=list)
    """One for each order that asks for one."""
    busy_s: float = 0.0
    """Seconds for which it worked."""


class SimulatorProcess:
    """One simulator with its engines; it works while it is asked to, for a short time at a time."""

    def __init__(self) -> None:
        self._part: SimulatorPart | None = None

    def place(self) -> tuple[str, int]:
        """Return the name of the machine and the number of the process."""
        return socket.gethostname(), os.getpid()

    def build(self, setup: Setup) -> frozenset[str]:
        """Load the weights and put the simulator together; return the UUIDs of the GPUs that it uses."""
        import marl.cluster.weights  # noqa: F401  (takes seconds: not when the first new weights come)
        from marl.cluster.gpu_weights import gpus_in_use

        use_threads(setup.threads)
        self._part = SimulatorPart(playing_simulator(setup.scenario, setup.sources))
        return gpus_in_use()

    def work(self, orders: Sequence[Order], longest_s: float) -> Reply:
        """Take orders, and play for up to so many seconds; return earlier if nothing is left to play."""
        part, began, reply = self._part, time.monotonic(), Reply()
        assert part is not None
        for order in orders:
            self._take(part, order, reply)
        while part.jobs and (spent_s := time.monotonic() - began) < longest_s:
            if reply.results and spent_s > _GATHER_S:
                break
            reply.results += part.work(longest_s - spent_s)
        reply.busy_s = time.monotonic() - began
        return reply

    def _take(self, part: SimulatorPart, order: Order, reply: Reply) -> None:
        match order:
            case JobBatch():
                part.start(order)
            case Cancel(tickets):
                part.cancel(tickets)
            case Guest(name, player):
                part.set_guest(name, player)
            case Spent(spent):
                part.restore_spent(spent)
            case EndStep():
                reply.reports.append(part.end_step())
            case Sleep():
                part.sleep()
                reply.reports.append(PartReport())
            case NewWeights(policy, version, sent):
                _load(part, policy, sent, version)


def _load(part: SimulatorPart, policy: str, sent: Any, version: int) -> None:
    import ray
    import torch

    from marl.cluster.weights import receive

    weights = receive(sent, partial(ray.get, timeout=_FETCH_S))
    part.load_weights(policy, weights, version)
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()  # whoever lends weights on a GPU is told next that they were read


_FETCH_S = 600.0
"""Longest time in which new weights arrive."""
