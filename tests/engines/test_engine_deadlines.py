"""Waits for answers end on time, whatever signals come meanwhile."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from marl.engines.openai.settings import OpenAI
from marl.engines.workers.pool import WorkerPool
from marl.games.verifiers.text_verifiers import ExactVerifier
from tests.support.misbehaving_servers import never_replies, serving

WAIT_S = 0.01


@pytest.fixture
def ticking() -> Iterator[None]:
    """SIGALRM just about when each wait ends, as the watchdog's timer may do it."""
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, WAIT_S, WAIT_S * 1.01)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    signal.signal(signal.SIGALRM, before)


def longest(wait: Callable[[float], object]) -> float:
    """Return the seconds of the longest of many short waits."""
    until, most = time.monotonic() + 3, 0.0
    while (began := time.monotonic()) < until:
        wait(WAIT_S)
        most = max(most, time.monotonic() - began)
    return most


def test_a_wait_for_worker_processes_ends_on_time(ticking: None) -> None:
    pool = WorkerPool({"exact": ExactVerifier()}, 1, 2**30)
    # An endless wait is woken, so that this fails and does not hang.
    waker = threading.Timer(10, lambda: pool._done.put((None, None)))  # pyright: ignore
    waker.start()
    assert longest(pool.take_finished_jobs) < 1
    waker.cancel()


def test_a_wait_for_an_endpoint_ends_on_time(ticking: None) -> None:
    with serving(never_replies) as server:
        engine = OpenAI.model_validate({"base_url": server.url, "model": "m", "key_env": None}).build(None)
        waker = threading.Timer(10, lambda: engine._requests.finished.put(0))  # pyright: ignore
        waker.start()
        assert longest(engine.step) < 1
        waker.cancel()
