"""Search for changes of settings by which a run fits into memory, as measured by the memory estimate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from marl.memory.estimate import ModelSizesAndWorkloads
from marl.models.adapter import Adapter
from marl.models.pretrained import TransformersModelConfig
from marl.protocols import ModelConfig
from marl.protocols.memory_estimates import MemorySavingSetting, ModelSize
from marl.scenario.schema import Scenario

MIN_SAVED_SHARE = 0.01
"""Minimum memory that a proposed change saves, as a share of the peak memory before the change."""
_ADAPTER_RANK = 16
"""LoRA rank of the adapter that is proposed in place of training all weights."""

ModelSizeFunction = Callable[[str, ModelConfig], ModelSize | None]
"""Function (policy, model) -> sizes of the model, or None if the sizes are unknown."""
PeakBytesFunction = Callable[[Scenario, ModelSizesAndWorkloads], float]
"""Function (scenario, its sizes) -> peak memory of a run [bytes]."""


@dataclass(frozen=True, slots=True)
class SettingChange:
    """New value of one setting, for one policy or for several policies that share it."""

    policies: tuple[str, ...]
    field: str
    """Path of the setting within a policy's settings, such as `learner.micro_tokens`."""
    value: Any
    saved_bytes: float
    """Memory that the change saves in addition to earlier changes [bytes]."""

    def __str__(self) -> str:
        names = ", ".join(self.policies)
        if isinstance(self.value, Adapter):
            value = f"{{kind: {self.value.kind}, base: <as it is now>, rank: {self.value.rank}}}"
        else:
            value = str(self.value).lower() if isinstance(self.value, bool) else str(self.value)
        return f"policies.{f'[{names}]' if len(self.policies) > 1 else names}.{self.field}: {value}"


@dataclass(frozen=True)
class MemoryReducedScenario:
    """Scenario after changes of settings that save memory."""

    scenario: Scenario
    sizes: ModelSizesAndWorkloads
    peak_bytes: float
    """Peak memory of a run of the changed scenario [bytes]."""
    changes: tuple[SettingChange, ...] = ()


def reduce_memory(
    scenario: Scenario,
    sizes: ModelSizesAndWorkloads,
    peak_bytes: PeakBytesFunction,
    limit_bytes: float,
    model_size_of: ModelSizeFunction,
) -> MemoryReducedScenario:
    """Return `scenario` changed until its run takes at most `limit_bytes`, or with all changes that save memory.

    Changes that affect only speed are tried first, then changes that affect results, then adapters in place of full
    training. A change that saves less than `MIN_SAVED_SHARE` is skipped. A setting may be halved repeatedly.
    """
    current = MemoryReducedScenario(scenario, sizes, peak_bytes(scenario, sizes))
    proposed: list[tuple[tuple[str, ...], str, MemorySavingSetting]] = []
    for section in ("learner", "engine", "model"):
        # Policies with equal settings are changed together, because they may share an engine or a base model.
        groups: dict[str, list[str]] = {}
        for name, policy in scenario.policies.items():
            settings = dict(policy)[section]
            if policy.model and settings:
                shared = settings.shared_base() or settings if section == "model" else settings
                groups.setdefault(shared.model_dump_json(), []).append(name)
        for names in groups.values():
            for proposal in dict(scenario.policies[names[0]])[section].memory_saving_settings():
                proposed.append((tuple(names), section, proposal))
    for policies, section, first_saver in sorted(proposed, key=lambda proposal: not proposal[2].keeps_results):
        saver: MemorySavingSetting | None = first_saver
        while saver and current.peak_bytes > limit_bytes:
            path = f"{section}.{saver.field}"
            changed = _apply_setting_change(current, policies, path, saver.value, peak_bytes, model_size_of)
            if current.peak_bytes - changed.peak_bytes < MIN_SAVED_SHARE * current.peak_bytes:
                break
            current = changed
            further = dict(current.scenario.policies[policies[0]])[section].memory_saving_settings()
            saver = next((other for other in further if other.field == first_saver.field), None)
    for name, policy in current.scenario.policies.items():
        if current.peak_bytes > limit_bytes and policy.learner and isinstance(policy.model, TransformersModelConfig):
            # The adapter's base is the policy's model after all earlier savings, for example with a smaller dtype.
            adapter = Adapter.model_validate({"base": policy.model, "rank": _ADAPTER_RANK})
            changed = _apply_setting_change(current, (name,), "model", adapter, peak_bytes, model_size_of)
            if current.peak_bytes - changed.peak_bytes >= MIN_SAVED_SHARE * current.peak_bytes:
                current = changed
    return current


def _apply_setting_change(
    current: MemoryReducedScenario,
    policy_names: tuple[str, ...],
    setting_path: str,
    value: Any,
    peak_bytes: PeakBytesFunction,
    model_size_of: ModelSizeFunction,
) -> MemoryReducedScenario:
    """Return `current` with `setting_path` (such as `learner.micro_tokens`) of `policy_names` set to `value`."""
    path, policies = setting_path.split("."), dict(current.scenario.policies)
    models = dict(current.sizes.models)
    for name in policy_names:
        policies[name] = policy = _copy_with_value(policies[name], path, value)
        if path[0] == "model" and policy.model and (size := model_size_of(name, policy.model)):
            models[name] = size
    scenario = current.scenario.model_copy(update={"policies": policies})
    sizes = replace(current.sizes, models=models)
    peak = peak_bytes(scenario, sizes)
    saved, changes = current.peak_bytes - peak, current.changes
    if changes and (changes[-1].policies, changes[-1].field) == (policy_names, setting_path):
        # If the same setting is reduced repeatedly, only its last value is listed.
        saved, changes = changes[-1].saved_bytes + saved, changes[:-1]
    return MemoryReducedScenario(
        scenario, sizes, peak, (*changes, SettingChange(policy_names, setting_path, value, saved))
    )


def _copy_with_value(settings: Any, field_path: list[str], value: Any) -> Any:
    """Return a copy of `settings` with `value` at the field `field_path`."""
    first, *below = field_path
    if below:
        value = _copy_with_value(dict(settings)[first], below, value)
    return settings.model_copy(update={first: value})
