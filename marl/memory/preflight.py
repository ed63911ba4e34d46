"""Check that a run fits into a device's memory, with proposed changes of settings if it does not fit."""

from __future__ import annotations

import math
from dataclasses import dataclass

from marl.evaluation.dry_run import DryRun
from marl.evaluation.model_facts import known_model_facts
from marl.memory.device import DeviceMemory
from marl.memory.estimate import (
    MemoryEstimate,
    ModelSizesAndWorkloads,
    estimate_memory,
    measure_model_sizes_and_workloads,
)
from marl.memory.savings import MemoryReducedScenario, reduce_memory
from marl.protocols import ModelConfig
from marl.protocols.memory_estimates import ModelSize, Stage
from marl.scenario.schema import Scenario


@dataclass(frozen=True)
class MemoryFitReport:
    """Estimated memory of a run, memory of its device, and the changed scenario that fits if the run does not."""

    device: DeviceMemory
    stages: tuple[Stage, ...]
    """Stages of a step, one after the other, that take memory of the device."""
    estimate: MemoryEstimate
    reduced: MemoryReducedScenario
    """Scenario after changes that save memory, or the scenario as written if its run fits."""

    @property
    def peak_bytes(self) -> float:
        """Peak memory of the run as written, without the memory of the process itself [bytes]."""
        return self.estimate.peak_bytes(self.stages)

    @property
    def fits_device(self) -> bool:
        """True if the run fits into the device's memory without changes."""
        return self.peak_bytes <= self.device.usable_bytes


def estimate_memory_fit(dry_run: DryRun, device: DeviceMemory) -> MemoryFitReport:
    """Return the estimated memory of a run on `device`, and changes of settings if the run does not fit.

    Raises:
        ValueError: if the sizes of a model are unknown, or if an engine's share of the device is too small.
    """
    # Checkpoints are copied to the host's memory, so on a GPU the stage `save` needs none.
    stages: tuple[Stage, ...] = ("play", "learn", "save") if device.is_cpu else ("play", "learn")
    sizes = measure_model_sizes_and_workloads(dry_run)
    needed = estimate_memory(dry_run.scenario, sizes, device.gpu_bytes)
    for name in needed.unknown_policies:
        model = dry_run.model_facts[name].description
        raise ValueError(f"policies.{name}.model: {model!r} does not say its sizes, so its memory is not known")
    for item in needed.items:
        # An infinite size means that the engine cannot fit into its share of the GPU; `content` tells why.
        if math.isinf(item.bytes):
            raise ValueError(f"policies.{item.policies[0]}.engine: {item.content}")

    def peak_bytes(scenario: Scenario, resized_models: ModelSizesAndWorkloads) -> float:
        return estimate_memory(scenario, resized_models, device.gpu_bytes).peak_bytes(stages)

    def model_size_of(policy_name: str, model: ModelConfig) -> ModelSize | None:
        return known_model_facts(model, dry_run.texts_for_vocabulary(policy_name), dry_run.configs).size

    reduced = reduce_memory(dry_run.scenario, sizes, peak_bytes, device.usable_bytes, model_size_of)
    return MemoryFitReport(device, stages, needed, reduced)
