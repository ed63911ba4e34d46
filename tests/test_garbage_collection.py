"""Cycles are freed after a step, although collections by themselves have become rare."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from marl.host.garbage_collection import collect_garbage_of_step


class Node:
    """Object that refers to itself, so that only the garbage collector frees it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _no_collection_by_itself() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def test_a_cycle_of_a_step_is_freed_after_the_step() -> None:
    made_in_step = weakref.ref(Node())
    assert made_in_step() is not None
    collect_garbage_of_step()
    assert made_in_step() is None


def test_a_cycle_that_outlived_its_step_is_freed_within_a_hundred_steps() -> None:
    node: Node | None = Node()
    outlives_step = weakref.ref(node)
    gc.collect()  # moves it among the oldest objects
    node = None
    collections = 0
    while outlives_step() is not None:
        collections += 1
        assert collections <= 100
        collect_garbage_of_step()
