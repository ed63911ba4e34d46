"""Groups in which one process broadcasts bytes, over gloo: equal bytes, and no wait without an end."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

pytest.importorskip("ray")
from marl.cluster.broadcast_group import BroadcastGroup, BroadcastMembership

HOST = "127.0.0.1"
SENT = torch.randint(256, (3_000_001,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def in_group(size: int, *members: Callable[[BroadcastGroup], Any], deadline_s: float = 20.0) -> list[Any]:
    """Return what each member (a thread) returns or raises when its function is called with its group of `size`."""
    listener = socket.create_server((HOST, 0))
    membership = BroadcastMembership(HOST, listener.getsockname()[1], size, "cpu", deadline_s)

    def work(rank: int) -> Any:
        try:
            own = membership.with_rank(rank)
            return members[rank](BroadcastGroup(own, HOST, listener if rank == 0 else None))
        except (RuntimeError, TimeoutError) as error:
            return error

    with ThreadPoolExecutor(len(members)) as threads:
        return list(threads.map(work, range(len(members))))


def receive(group: BroadcastGroup) -> torch.Tensor:
    data = torch.zeros_like(SENT)
    group.broadcast(data)
    return data


def test_every_process_receives_the_bytes_that_were_sent_also_a_second_time() -> None:
    def send_twice(group: BroadcastGroup) -> None:
        group.broadcast(SENT)
        group.broadcast(SENT.flip(0))

    def receive_twice(group: BroadcastGroup) -> list[torch.Tensor]:
        return [receive(group), receive(group)]

    _, *received = in_group(4, send_twice, *[receive_twice] * 3)
    assert all(torch.equal(first, SENT) and torch.equal(second, SENT.flip(0)) for first, second in received)


def test_a_process_that_leaves_ends_the_broadcast_of_all_others_at_once() -> None:
    began = time.monotonic()

    def send(group: BroadcastGroup) -> None:
        time.sleep(1)  # the other process has left by then
        try:
            group.broadcast(SENT)
        finally:
            group.close()

    sent, received, _ = in_group(3, send, receive, BroadcastGroup.close, deadline_s=60)
    assert isinstance(sent, RuntimeError)
    assert received is None or torch.equal(received, SENT) or isinstance(received, RuntimeError)
    assert time.monotonic() - began < 30


def test_a_broadcast_to_a_process_that_does_not_receive_ends_at_the_deadline() -> None:
    large = torch.zeros(100_000_000, dtype=torch.uint8)  # more than the system's buffers hold
    sent, _ = in_group(2, lambda group: group.broadcast(large), lambda group: (group, time.sleep(6)), deadline_s=3)
    assert isinstance(sent, TimeoutError | RuntimeError)


def test_a_group_of_which_a_process_is_missing_is_given_up_at_the_deadline() -> None:
    began = time.monotonic()
    outcomes = in_group(3, BroadcastGroup.close, BroadcastGroup.close, deadline_s=3)
    assert [isinstance(outcome, RuntimeError) for outcome in outcomes] == [True, True]
    assert time.monotonic() - began < 30
