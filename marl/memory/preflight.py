"""Check whether a run fits into a device's memory, and which settings to change if it does not fit."""

from __future__ import annotations

import math
from dataclasses import dataclass

from marl.evaluation.dry_run import DryRun
from marl.evaluation.model_facts import facts_of
from marl.memory.device import DeviceMemory
from marl.memory.estimate import MemoryEstimate, ScenarioSizes, estimate, measure_sizes
from marl.memory.savings import ReducedScenario, reduce_memory
from marl.protocols import ModelConfig
from marl.protocols.memory_estimates import ModelSize, Stage
from marl.scenario.schema import Scenario


@dataclass(frozen=True)
class Preflight:
    """Estimated memory of a run beside the memory of its device."""

    device: DeviceMemory
    stages: tuple[Stage, ...]
    """Stages of a step that use the device's memory one after the other."""
    estimate: MemoryEstimate
    reduced: ReducedScenario
    """The scenario after changes that save memory; without changes if the run fits as written."""

    @property
    def bytes(self) -> float:
        """Peak memory of the run, without the memory of the process itself [bytes]."""
        return self.estimate.peak_bytes(self.stages)

    @property
    def fits(self) -> bool:
        """True if the run fits without a change."""
        return self.bytes <= self.device.usable_bytes


def preflight(run: DryRun, device: DeviceMemory) -> Preflight:
    """Return the estimated memory of a run on `device`, with changes of settings if the run does not fit.

    Raises:
        ValueError: if the sizes of a model are unknown, or if an engine's share of the device is too small.
    """
    # Copies that are saved are made in the host's memory, never on a GPU.
    stages: tuple[Stage, ...] = ("play", "learn", "save") if device.is_cpu else ("play", "learn")
    sizes = measure_sizes(run)
    needed = estimate(run.scenario, sizes, device.gpu_bytes)
    for name in needed.unknown_policies:
        model = run.models[name].description
        raise ValueError(f"policies.{name}.model: {model!r} does not say its sizes, so its memory is not known")
    for item in needed.items:
        # An engine that cannot hold its part says so by an infinite size, with the reason as its content.
        if math.isinf(item.bytes):
            raise ValueError(f"policies.{item.policies[0]}.engine: {item.content}")

    def peak_bytes(scenario: Scenario, resized: ScenarioSizes) -> float:
        return estimate(scenario, resized, device.gpu_bytes).peak_bytes(stages)

    def size_of(policy: str, model: ModelConfig) -> ModelSize | None:
        return facts_of(model, run.texts(policy), run.configs).size

    reduced = reduce_memory(run.scenario, sizes, peak_bytes, device.usable_bytes, size_of)
    return Preflight(device, stages, needed, reduced)
