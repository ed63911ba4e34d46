"""Groups of processes in which one process broadcasts bytes: over gloo in main memory, over NCCL between GPUs.

The groups are built without `torch.distributed`'s default group, because a process may leave and join several of them.
"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from marl.cluster.connection import own_cluster_address
from marl.cluster.gpu_weights import TensorRegion, tensor_views

_POLL_S = 1e-3
"""Interval at which a process looks whether a broadcast has ended, in seconds."""
_NEVER = timedelta(days=1)
"""NCCL's own deadline, in effect none: `BroadcastGroup.broadcast` has one for both backends."""


@dataclass(frozen=True, slots=True)
class BroadcastMembership:
    """Settings with which one process joins a group. The process of rank 0 sends."""

    host: str
    """Address of the process of rank 0."""
    port: int
    size: int
    device: str
    """`cpu` (gloo) or `cuda` (NCCL; each process with a GPU of its own)."""
    deadline_s: float
    """Maximum duration of joining, and of each broadcast, in seconds."""
    rank: int = 0

    def with_rank(self, rank: int) -> BroadcastMembership:
        """Return the settings of the process of this rank."""
        return replace(self, rank=rank)


@dataclass(frozen=True, slots=True)
class BroadcastOrder:
    """Order to a process to get ready for the weights of a policy."""

    membership: BroadcastMembership
    policy: str
    layout: tuple[TensorRegion, ...]


@dataclass(frozen=True, slots=True)
class BroadcastHandle:
    """Handle of weights that a process has received."""

    policy: str


class BroadcastGroup:
    """One process's membership of a group."""

    def __init__(self, membership: BroadcastMembership, address: str, listener: socket.socket | None = None) -> None:
        """Join the group, and wait for all other processes to join.

        `address`: that of this machine. `listener`: socket on `membership`'s host and port, for the process of rank 0.

        Raises:
            RuntimeError: if not all processes join before the deadline.
        """
        self.membership = membership
        wait, rank, size = timedelta(seconds=membership.deadline_s), membership.rank, membership.size
        store = TCPStore(
            membership.host,
            membership.port,
            is_master=listener is not None,
            timeout=wait,
            wait_for_workers=False,
            # Without an own listener the store would listen on all interfaces.
            master_listen_fd=listener.detach() if listener else None,
        )
        if membership.device == "cuda":
            # By default torch ends this process if another process is lost; with 2, it only aborts the broadcast.
            os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2")
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = _NEVER
            self._backend: Any = dist.ProcessGroupNCCL(store, rank, size, options)
        else:
            # The class with gloo's devices, which torch's stubs do not name: `Options` is that of all backends.
            options = dist.ProcessGroupGloo._Options()  # pyright: ignore[reportAttributeAccessIssue]
            options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
            options._timeout = wait
            self._backend = dist.ProcessGroupGloo(store, rank, size, options)

    def broadcast(self, data: Tensor) -> None:
        """Send `data` to all other processes (rank 0), or overwrite `data` with that of rank 0.

        Raises:
            RuntimeError: if the connection to another process is lost.
            TimeoutError: if the broadcast takes longer than the deadline.
        """
        work = self._backend.broadcast([data], dist.BroadcastOptions())
        end = time.monotonic() + self.membership.deadline_s
        # NCCL's `wait` has no deadline, so both backends are polled.
        while not work.is_completed():
            if time.monotonic() > end:
                raise TimeoutError(f"a broadcast took longer than {self.membership.deadline_s:g} s")
            time.sleep(_POLL_S)
        work.wait()  # raises the error of a broadcast that failed
        if data.is_cuda:
            torch.cuda.current_stream(data.device).synchronize()

    def close(self) -> None:
        """Abort a broadcast that has not ended, and leave the group. Other processes then fail at once with gloo."""
        self._backend.abort()
        self._backend = None


class BroadcastReceiver:
    """Weights that a process receives by broadcast, and its membership of the current group."""

    def __init__(self) -> None:
        self._group: BroadcastGroup | None = None
        self._expected: tuple[BroadcastOrder, Tensor] | None = None
        """Order whose weights are not received yet, and memory for them."""
        self._received: dict[str, list[tuple[str, Tensor]]] = {}
        """Policy -> names and tensors of its newest weights, until they are taken."""

    def prepare(self, order: BroadcastOrder) -> None:
        """Join the group of `order` if it is a new one, and allocate memory for the weights.

        Raises:
            RuntimeError: if the other processes do not join before the deadline, or memory is short.
        """
        if self._group is None or self._group.membership != order.membership:
            self._leave_group()
            self._group = BroadcastGroup(order.membership, own_cluster_address())
        last = order.layout[-1]
        buffer = torch.empty(last.offset + last.nbytes, dtype=torch.uint8, device=order.membership.device)
        self._expected = order, buffer

    def receive(self) -> None:
        """Receive the weights of the last order.

        Raises:
            RuntimeError, TimeoutError: as `BroadcastGroup.broadcast`. The process has left the group then.
        """
        assert self._group is not None
        assert self._expected is not None
        (order, buffer), self._expected = self._expected, None
        try:
            self._group.broadcast(buffer)
        except (RuntimeError, TimeoutError):
            self._leave_group()
            raise
        self._received[order.policy] = tensor_views(order.layout, buffer)

    def take(self, handle: BroadcastHandle) -> list[tuple[str, Tensor]]:
        """Return the names and tensors of received weights, and keep no reference to them."""
        return self._received.pop(handle.policy)

    def _leave_group(self) -> None:
        if self._group is not None:
            group, self._group = self._group, None
            group.close()
