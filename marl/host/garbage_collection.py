"""Garbage collection of a run's processes."""

from __future__ import annotations

import gc
from itertools import count

_THRESHOLDS = (30_000, 3, 1000)
_THRESHOLDS_WITH_PROGRAMS = (300, 3, 1000)
_STEPS_PER_FULL_COLLECTION = 100
_finished_steps = count(1)
"""Numbers of the steps that this process has finished."""


def tune_garbage_collection(*, serves_programs: bool) -> None:
    """Exempt the objects of this process so far from garbage collection, and set when later ones are collected.

    A collection stops all threads. If the process answers model calls of programs (`serves_programs`), these calls
    wait meanwhile, so it collects in pieces of about 1 ms (with Python's default thresholds, 700, 10, 10, calls wait
    for 10 to 40 ms). In other processes nobody waits. They collect after 30,000 new objects, most of which are freed
    already by then; playing and judging take a tenth less time. Cycles of few objects can hold large tensors, so
    `collect_garbage_of_step` frees them after each step. By themselves, full collections begin after about 900,000
    new objects that stay, or 90 million without programs.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*(_THRESHOLDS_WITH_PROGRAMS if serves_programs else _THRESHOLDS))


def collect_garbage_of_step() -> None:
    """Free the reference cycles of a finished step, and once in a hundred steps those that lived longer."""
    gc.collect(1 if next(_finished_steps) % _STEPS_PER_FULL_COLLECTION else 2)
