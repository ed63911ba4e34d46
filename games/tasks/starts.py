"""The starts of games that deal problems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from marl.protocols import Split, Tasks
from marl.types import Problem


def held_out_starts(tasks: Tasks, n: int) -> Sequence[Mapping[str, Any]]:
    """Reset options of up to `n` held-out problems."""
    return [{"split": "held_out", "index": index} for index in _spread(tasks, "held_out", n)]


def samples(tasks: Tasks, n: int) -> Sequence[Problem]:
    """Up to `n` problems that are dealt in training."""
    return [tasks.problem("train", index) for index in _spread(tasks, "train", n)]


def _spread(tasks: Tasks, split: Split, n: int) -> Sequence[int]:
    """Up to `n` numbers, evenly over the split: problems come easiest first."""
    size = tasks.size(split)
    many = min(n, size)
    return [place * size // many for place in range(many)]
