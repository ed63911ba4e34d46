"""How much memory an update takes."""

from __future__ import annotations

import torch

from marl.types import Metrics


class PeakMemory:
    """Watches what tensors take on a GPU from now on, all that is in this process's memory there included.

    Elsewhere it says nothing: of a process on a CPU the system knows only the peak since it started, which is no
    update's, and would make a resumed run's metrics differ from those of one that was not stopped.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)

    def metrics(self) -> Metrics:
        """`memory_gib`, or nothing."""
        if self._device.type != "cuda":
            return {}
        return {"memory_gib": torch.cuda.max_memory_allocated(self._device) / 2**30}
