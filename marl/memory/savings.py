"""Changes of settings that make a run take less memory, each measured by the memory estimate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from marl.memory.estimate import ScenarioSizes
from marl.models.adapter import Adapter
from marl.models.pretrained import TransformersModelConfig
from marl.protocols import ModelConfig
from marl.protocols.memory_estimates import MemorySaver, ModelSize
from marl.scenario.schema import Scenario

LEAST = 0.01
"""Minimum saving of a proposed change, as a share of the memory needed before the change."""
_RANK = 16
"""Rank of the adapter that is proposed in place of training all weights."""

SizeOf = Callable[[str, ModelConfig], ModelSize | None]
"""Return the sizes of a model if the named policy used it, or None if they are unknown."""
Needs = Callable[[Scenario, ScenarioSizes], float]
"""Return the peak memory of a run of the scenario [bytes]."""


@dataclass(frozen=True, slots=True)
class SettingChange:
    """A new value of one setting, for one policy or for several policies with the same settings."""

    policies: tuple[str, ...]
    field: str
    value: Any
    saved_bytes: float
    """Memory that the change saves after the changes before it [bytes]."""

    def __str__(self) -> str:
        names = ", ".join(self.policies)
        if isinstance(self.value, Adapter):
            value = f"{{kind: {self.value.kind}, base: <as it is now>, rank: {self.value.rank}}}"
        else:
            value = str(self.value).lower() if isinstance(self.value, bool) else str(self.value)
        return f"policies.{f'[{names}]' if len(self.policies) > 1 else names}.{self.field}: {value}"


@dataclass(frozen=True)
class ReducedScenario:
    """A scenario after changes that save memory."""

    scenario: Scenario
    sizes: ScenarioSizes
    needed: float
    """Peak memory of a run of the scenario [bytes]."""
    changes: tuple[SettingChange, ...] = ()


def reduce_memory(
    scenario: Scenario, sizes: ScenarioSizes, needs: Needs, room: float, size_of: SizeOf
) -> ReducedScenario:
    """Return the scenario after changes that bring its memory to at most `room` bytes, or after all helpful changes.

    One pass tries each change once: first changes of speed alone, then changes of results, then adapters. A change
    that saves less than `LEAST` is skipped. A setting that can be halved again is halved as long as each step helps.
    """
    now = ReducedScenario(scenario, sizes, needs(scenario, sizes))
    for policies, section, first_saver in sorted(_savers(scenario), key=lambda found: not found[2].keeps_results):
        saver: MemorySaver | None = first_saver
        while saver and now.needed > room:
            changed = _after(now, (policies, f"{section}.{saver.field}", saver.value), needs, size_of)
            if now.needed - changed.needed < LEAST * now.needed:
                break
            now = changed
            further = dict(now.scenario.policies[policies[0]])[section].memory_savers()
            saver = next((other for other in further if other.field == first_saver.field), None)
    for name, policy in now.scenario.policies.items():
        if now.needed > room and policy.learner and isinstance(policy.model, TransformersModelConfig):
            # The base is the model as changed above, so that a smaller dtype stays.
            adapter = Adapter.model_validate({"base": policy.model, "rank": _RANK})
            changed = _after(now, ((name,), "model", adapter), needs, size_of)
            now = changed if now.needed - changed.needed >= LEAST * now.needed else now
    return now


def _savers(scenario: Scenario) -> Iterator[tuple[tuple[str, ...], str, MemorySaver]]:
    """Yield (policies, section of their settings, proposed change) for every change that the settings propose.

    Policies with equal settings in a section change together, because they may share the engine or base behind it.
    """
    for section in ("learner", "engine", "model"):
        groups: dict[str, list[str]] = {}
        for name, policy in scenario.policies.items():
            settings = dict(policy)[section]
            if policy.model and settings:
                shared = settings.shared_base() or settings if section == "model" else settings
                groups.setdefault(shared.model_dump_json(), []).append(name)
        for names in groups.values():
            for saver in dict(scenario.policies[names[0]])[section].memory_savers():
                yield tuple(names), section, saver


def _after(
    now: ReducedScenario, change: tuple[tuple[str, ...], str, Any], needs: Needs, size_of: SizeOf
) -> ReducedScenario:
    """Return the scenario after one more `change` (policies, field, new value)."""
    names, field, value = change
    path, policies = field.split("."), dict(now.scenario.policies)
    models = dict(now.sizes.models)
    for name in names:
        policies[name] = policy = _with_value(policies[name], path, value)
        if path[0] == "model" and policy.model and (size := size_of(name, policy.model)):
            models[name] = size
    scenario = now.scenario.model_copy(update={"policies": policies})
    sizes = replace(now.sizes, models=models)
    needed = needs(scenario, sizes)
    saved, changes = now.needed - needed, now.changes
    if changes and (changes[-1].policies, changes[-1].field) == (names, field):
        # The user sees one line for a value that was halved several times.
        saved, changes = changes[-1].saved_bytes + saved, changes[:-1]
    return ReducedScenario(scenario, sizes, needed, (*changes, SettingChange(names, field, value, saved)))


def _with_value(settings: Any, path: list[str], value: Any) -> Any:
    """Return a copy of `settings` with `value` at the field `path`."""
    first, *below = path
    return settings.model_copy(update={first: _with_value(dict(settings)[first], below, value) if below else value})
