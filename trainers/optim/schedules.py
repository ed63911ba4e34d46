"""Numbers that change over a run, as functions of the update's number."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainers.settings import Anchor, Optimisation


def progress(update: int, steps: int, warm_up: int = 0) -> float:
    """0 at the first update (after the warm-up), 1 at the last of `steps` and beyond."""
    return min(1.0, max(0.0, (update - warm_up) / max(1, steps - 1 - warm_up)))


def learning_rate(settings: Optimisation, update: int, steps: int) -> float:
    """Rises over `warm_up` updates, then follows the schedule to `lr_end` at the last update."""
    if update < settings.warm_up:
        return settings.lr * (update + 1) / (settings.warm_up + 1)
    done, end = progress(update, steps, settings.warm_up), settings.lr_end or 0.0
    match settings.schedule:
        case "constant":
            return settings.lr
        case "linear":
            return settings.lr + (end - settings.lr) * done
        case "cosine":
            return end + (settings.lr - end) * (1 + math.cos(math.pi * done)) / 2


def coefficient(anchor: Anchor, update: int, steps: int) -> float:
    """Goes linearly from `coefficient` to `final`."""
    final = anchor.coefficient if anchor.final is None else anchor.final
    return anchor.coefficient + (final - anchor.coefficient) * progress(update, steps)
