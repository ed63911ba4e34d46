"""Processor time and memory of a run's process with up to 1,000 simulators, at an equal rate of episodes."""

from __future__ import annotations

import gc
import os
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _bench import silent
from _simulator_hosts import HostedPlacement

from marl.cluster.connection import ray_connection
from marl.core.types import Metrics
from marl.scenario.cluster import ClusterConfig
from marl.scenario.schema import Scenario
from marl.training.session import NewOrResumedRunStart, StepCallbackMonitor, train_in_folder

RATE = 160
"""Episodes per second for which the driver's cores are stated."""
_HOSTS = 2
"""Number of Ray actors that hold all simulators."""
_UNCOUNTED_STEPS = 1
"""Number of steps at the start, with the start of the simulators, that do not count."""


@dataclass(slots=True)
class DriverSamples:
    """Clock, processor time and memory of this process at the end of each step."""

    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    """Processor time of all threads, in seconds, without that of the samples themselves."""
    memory_mib: list[float] = field(default_factory=list)
    """Resident memory without files and shared memory, after garbage collection."""
    row_characters: list[int] = field(default_factory=list)
    """Length of the step's metrics as text."""
    _sampling_s: float = 0.0
    """Processor time of all samples so far, most of it garbage collection, in seconds."""

    def note(self, step: int, metrics: Metrics) -> None:
        """Take a sample at the end of a step."""
        began = time.process_time()
        self.wall_s.append(time.perf_counter())
        self.cpu_s.append(began - self._sampling_s)
        gc.collect()
        self.memory_mib.append(anonymous_memory_mib())
        self.row_characters.append(len(str(metrics)))
        self._sampling_s += time.process_time() - began


def anonymous_memory_mib() -> float:
    """Return the resident memory of this process without files and shared memory [MiB]."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon:"))


def driver_cost(scenario: Scenario, episodes: int) -> dict[str, Any]:
    """Train `scenario` with simulators in a few hosts, and return what its steps of `episodes` cost the driver."""
    settings, samples = scenario.cluster, DriverSamples()
    assert settings is not None
    with tempfile.TemporaryDirectory() as folder, silent(), ray_connection(ClusterConfig(cpus=0.1)):
        placement = HostedPlacement(settings, _HOSTS)
        monitors = [StepCallbackMonitor(samples.note)]
        try:
            start = NewOrResumedRunStart()
            assert train_in_folder(scenario, Path(folder) / "run", start, monitors, placement=placement)
        finally:
            placement.close()
    # The first sample is that of the evaluation before the first step, if there is one.
    first = len(samples.wall_s) - scenario.schedule.steps + _UNCOUNTED_STEPS - 1
    steps = len(samples.wall_s) - 1 - first
    wall_s, cpu_s = (times[-1] - times[first] for times in (samples.wall_s, samples.cpu_s))
    memory = samples.memory_mib[first:]
    # Memory rises in the first steps, until the allocator has the pages of two steps' episodes.
    settled = memory[len(memory) // 2 :]
    growth = statistics.linear_regression(range(len(settled)), settled).slope
    per_episode_s = cpu_s / (steps * episodes)
    return {
        "episodes_per_s": round(steps * episodes / wall_s, 1),
        "driver_cpu_ms_per_episode": round(1e3 * per_episode_s, 3),
        "driver_cores": round(cpu_s / wall_s, 3),
        f"driver_cores_at_{RATE}_per_s": round(RATE * per_episode_s, 3),
        "memory_mib": [round(mib) for mib in memory],
        "memory_growth_mib_per_step": round(growth, 2),
        "memory_last_over_middle": round(settled[-1] / settled[0], 3),
        "row_characters": samples.row_characters[-1],
        "load": round(os.getloadavg()[0], 2),
    }
