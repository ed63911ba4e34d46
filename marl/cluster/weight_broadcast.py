"""Broadcast of published weights from the run's process to the processes of idle simulators.

A broadcast has two calls of each process: `prepare_broadcast` joins the group and confirms that the process is alive
and has memory, and `receive_broadcast` receives. If either fails anywhere, nobody uses what was received: all processes
get these weights from Ray's object store, and the next broadcast begins with a new group.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import socket
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from ray.exceptions import RayError, RayTaskError

from marl.cluster.broadcast_group import BroadcastGroup, BroadcastMembership, BroadcastOrder
from marl.cluster.connection import own_cluster_address
from marl.cluster.gpu_weights import WeightsCopy
from marl.cluster.pending_calls import PendingCalls
from marl.cluster.simulator_slot import RestartableSimulator, SimulatorProcessKey
from marl.scenario.cluster import ClusterConfig

_T = TypeVar("_T")

_BROADCASTS_PER_DEADLINE = 4
"""Joining and receiving may each take this share of `cluster.deadline_s`, because a process gives no sign of life
meanwhile and must not pass for one that hangs."""


class WeightBroadcaster:
    """Sends weights to simulators by broadcast.

    The methods `take_...` are called in the run's thread, all others in the thread of the event loop.
    """

    def __init__(self, calls: PendingCalls, settings: ClusterConfig) -> None:
        self._calls, self._deadline_s = calls, settings.deadline_s / _BROADCASTS_PER_DEADLINE
        self._failures, self._tries = 0, settings.tries
        self._group: BroadcastGroup | None = None
        self._members: tuple[SimulatorProcessKey, ...] = ()
        """Processes of the group, in the order of their ranks, which begin with 1."""
        self._one_at_a_time = asyncio.Lock()
        self._messages: list[str] = []
        self._sent_bytes = 0

    def start(
        self, policy: str, weights: WeightsCopy, slots: Sequence[RestartableSimulator]
    ) -> asyncio.Task[frozenset[SimulatorProcessKey]] | None:
        """Start to broadcast `weights`; return the task whose result is the processes that received them.

        Return None if a simulator plays or still waits for earlier weights of `policy`: a broadcast would wait for it.
        """
        ready = [slot for slot in slots if slot.ready]
        if self._failures >= self._tries or any(slot.open or slot.awaits_weights_of(policy) for slot in ready):
            return None
        members = _slots_on_other_gpus(weights.gpu, ready) if weights.gpu else ready
        return asyncio.create_task(self._broadcast_or_report(policy, weights, members)) if members else None

    def take_messages(self) -> list[str]:
        """Return messages about failures since the last call, for the run's log."""
        messages, self._messages = self._messages, []
        return messages

    def take_sent_bytes(self) -> int:
        """Return the number of bytes that were broadcast since the last call, however many simulators received them."""
        sent_bytes, self._sent_bytes = self._sent_bytes, 0
        return sent_bytes

    def close(self) -> None:
        """Leave the group, without waiting for an unfinished broadcast."""
        self._members = ()
        if self._group is not None:
            group, self._group = self._group, None
            _run_in_daemon_thread(group.close)

    async def _broadcast_or_report(
        self, policy: str, weights: WeightsCopy, slots: Sequence[RestartableSimulator]
    ) -> frozenset[SimulatorProcessKey]:
        """Return the keys of all processes if the broadcast succeeds, or none and add a message if it fails."""
        async with self._one_at_a_time:
            try:
                received_by = await self._broadcast(policy, weights, slots)
            except (RayError, RuntimeError, OSError) as error:  # an OSError may be a TimeoutError
                self.close()
                self._failures += 1
                cause = _cause(error) or f"no answer for {2 * self._deadline_s:g} s"
                end = ", and all later weights do, too" if self._failures >= self._tries else ""
                message = f"a broadcast of {policy}'s weights failed ({cause})"
                self._messages.append(f"{message}; they go through Ray's object store{end}")
                return frozenset()
            self._failures = 0
            self._sent_bytes += weights.buffer.bytes.nbytes
            return received_by

    async def _broadcast(
        self, policy: str, weights: WeightsCopy, slots: Sequence[RestartableSimulator]
    ) -> frozenset[SimulatorProcessKey]:
        """Broadcast `weights`, and return the keys of the processes, all of which have received them."""
        if not all(slot.ready for slot in slots):
            raise RuntimeError("a simulator was lost before it began")
        members, data = tuple(slot.process_key for slot in slots), weights.buffer.bytes
        listener = None
        if self._group is None or self._members != members or self._group.membership.device != data.device.type:
            self.close()
            listener = socket.create_server((own_cluster_address(), 0))
            host, port = listener.getsockname()
            membership = BroadcastMembership(host, port, len(slots) + 1, data.device.type, self._deadline_s)
        else:
            membership = self._group.membership
        tasks: list[asyncio.Future[object]] = []
        for rank, slot in enumerate(slots, start=1):
            order = BroadcastOrder(membership.with_rank(rank), policy, weights.layout)
            tasks.append(self._calls.result_of(slot.process.prepare_broadcast.remote(order)))
        # Each side has the same deadline, and the time until a call begins comes on top.
        async with asyncio.timeout(2 * self._deadline_s):
            if listener:
                joined = _run_in_daemon_thread(lambda: BroadcastGroup(membership, membership.host, listener))
                await asyncio.gather(joined, *tasks)
                self._group, self._members = joined.result(), members
            else:
                await asyncio.gather(*tasks)
            assert self._group is not None
            group = self._group
            received = [self._calls.result_of(slot.process.receive_broadcast.remote()) for slot in slots]
            await asyncio.gather(_run_in_daemon_thread(lambda: group.broadcast(data)), *received)
        return frozenset(members)


def _slots_on_other_gpus(own_gpu: str, slots: Sequence[RestartableSimulator]) -> list[RestartableSimulator]:
    """Return the simulators that use a GPU which neither the sender nor an earlier simulator uses: NCCL allows one
    process on each GPU. Simulators on the sender's GPU read weights through CUDA IPC."""
    used, chosen = {own_gpu}, list[RestartableSimulator]()
    for slot in slots:
        if slot.gpus and not slot.gpus & used:
            chosen.append(slot)
            used |= slot.gpus
    return chosen


def _run_in_daemon_thread(function: Callable[[], _T]) -> asyncio.Future[_T]:
    """Run `function` in a thread that does not keep this process alive, since a call of NCCL may never return."""
    outcome: concurrent.futures.Future[_T] = concurrent.futures.Future()
    outcome.set_running_or_notify_cancel()  # a later cancellation has no effect, so the thread may set the result

    def run() -> None:
        try:
            outcome.set_result(function())
        except (RuntimeError, OSError) as error:
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return asyncio.wrap_future(outcome)


def _cause(error: Exception) -> str:
    """Return the first line of an error's message, of the error in the other process if it was raised there."""
    message = str(error.cause if isinstance(error, RayTaskError) else error)
    return message.strip().partition("\n")[0]
