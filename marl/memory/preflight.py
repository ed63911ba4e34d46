"""Checks if a run fits into the memory of a device, and says what to change where it does not."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from marl.evaluation.dry_run import DryRun
from marl.evaluation.model_facts import facts_of
from marl.memory.changes import LeanScenario, lean
from marl.memory.device import DeviceMemory
from marl.memory.estimate import MemoryEstimate, ScenarioSizes, estimate, sizes_of
from marl.protocols import ModelConfig
from marl.protocols.memory import ModelSize, Stage
from marl.scenario.schema import Scenario


@dataclass(frozen=True)
class Preflight:
    """A run's memory, and that of the device that it is to run on."""

    device: DeviceMemory
    needed: MemoryEstimate
    leaner: LeanScenario
    """The scenario with changes after which it fits, or takes as little as it can; without any if it fits as it is."""

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Stages that take turns; copies that are saved are in the memory of the host."""
        return ("play", "learn", "save") if self.device.is_cpu else ("play", "learn")

    @property
    def bytes(self) -> float:
        """Bytes that the run takes at its peak, without those of the process itself."""
        return self.needed.peak(self.stages)

    @property
    def fits(self) -> bool:
        """True if the run as it is fits."""
        return self.bytes <= self.device.room


def preflight(run: DryRun, device: DeviceMemory) -> Preflight:
    """Return what a run takes on a device.

    Raises:
        ValueError: if the sizes of a model are not known, or a part of the device is too small for what it is to hold.
    """
    sizes = sizes_of(run)
    needed = estimate(run.scenario, sizes, device.gpu_bytes)
    for name in needed.unknown:
        model = run.models[name].description
        raise ValueError(f"policies.{name}.model: {model!r} does not say its sizes, so its memory is not known")
    for each in needed.holdings:
        if math.isinf(each.bytes):
            raise ValueError(f"policies.{each.policies[0]}.engine: {each.content}")
    checked = Preflight(device, needed, LeanScenario(run.scenario, sizes, 0.0))

    def needs(scenario: Scenario, resized: ScenarioSizes) -> float:
        return estimate(scenario, resized, device.gpu_bytes).peak(checked.stages)

    def size_of(policy: str, model: ModelConfig) -> ModelSize | None:
        return facts_of(model, run.texts(policy), run.configs).size

    return replace(checked, leaner=lean(run.scenario, sizes, needs, device.room, size_of))
