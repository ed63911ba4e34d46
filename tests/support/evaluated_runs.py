"""Metrics of a run's checkpoint, as `marl eval run` measures them."""

from __future__ import annotations

from pathlib import Path

from marl.commands.eval.evaluate import evaluate_policies, policies_of_run
from marl.core.types import Metrics


def evaluate_run(run: Path, against: str | None, episodes: int, step: int | None) -> Metrics:
    """Return the metrics of a run's checkpoint (default: its newest intact one)."""
    return evaluate_policies(policies_of_run(run, (), step, best=False), against, episodes)
