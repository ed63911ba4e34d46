"""Changes of a scenario that make its run take less memory, each tried out on the estimate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel

from marl.memory.estimate import ScenarioSizes
from marl.models.adapter import Adapter
from marl.models.pretrained import HeldModel
from marl.protocols import ModelConfig
from marl.protocols.memory import MemorySaver, ModelSize
from marl.scenario.schema import PolicyConfig, Scenario

LEAST = 0.01
"""Share of the memory needed that a change must save to be told."""
_RANK = 16
"""Rank of an adapter that is proposed in place of weights that learn."""

SizeOf = Callable[[str, ModelConfig], ModelSize | None]
"""Return the sizes of a policy's model if it were this one."""
Needs = Callable[[Scenario, ScenarioSizes], float]
"""Return the bytes that a run needs."""


@dataclass(frozen=True, slots=True)
class Change:
    """A new value of a setting, of one policy or of several that have the same settings."""

    policies: tuple[str, ...]
    field: str
    value: Any
    saves: float
    """Bytes that it saves, after the changes before it."""

    def __str__(self) -> str:
        names = ", ".join(self.policies)
        value = self.value.model_dump(exclude_unset=True) if isinstance(self.value, BaseModel) else self.value
        shown = str(value).lower() if isinstance(value, bool) else str(value).replace("'", "")
        return f"policies.{f'[{names}]' if len(self.policies) > 1 else names}.{self.field}: {shown}"


@dataclass(frozen=True)
class LeanScenario:
    """A scenario after changes."""

    scenario: Scenario
    sizes: ScenarioSizes
    needed: float
    """Bytes that its run needs."""
    changes: tuple[Change, ...] = ()


def lean(scenario: Scenario, sizes: ScenarioSizes, needs: Needs, room: float, size_of: SizeOf) -> LeanScenario:
    """Return the scenario after as many changes as it takes to need no more than `room` bytes, or all that help.

    What changes speed alone goes first.
    """
    found: LeanScenario | None = LeanScenario(scenario, sizes, needs(scenario, sizes))
    best = found
    while found and found.needed > room:
        best = found
        found = next(_steps(best, needs, size_of), None)
    best = found or best
    assert best is not None
    return best


def _steps(now: LeanScenario, needs: Needs, size_of: SizeOf) -> Iterator[LeanScenario]:
    """Yield the scenario after each single change that saves enough."""
    proposals = sorted(_proposals(now.scenario), key=lambda proposal: not proposal[1].same_results)
    for policies, saver in proposals:
        scenario = _changed(now.scenario, policies, saver)
        sizes = _resized(now.sizes, scenario, policies, size_of) if saver.field.startswith("model") else now.sizes
        needed = needs(scenario, sizes)
        if now.needed - needed >= LEAST * now.needed:
            change = Change(policies, saver.field, saver.value, now.needed - needed)
            yield LeanScenario(scenario, sizes, needed, _joined(now.changes, change))


def _joined(before: tuple[Change, ...], change: Change) -> tuple[Change, ...]:
    """Return all changes, those of one field as one."""
    for index, other in enumerate(before):
        if (other.policies, other.field) == (change.policies, change.field):
            both = replace(change, saves=other.saves + change.saves)
            return (*before[:index], both, *before[index + 1 :])
    return (*before, change)


def _proposals(scenario: Scenario) -> Iterator[tuple[tuple[str, ...], MemorySaver]]:
    """Yield (policies, setting): policies that have a part in common are changed together, as they may share it."""
    for part in ("learner", "engine", "model"):
        groups: dict[str, list[str]] = {}
        for name, policy in scenario.policies.items():
            if policy.model and (settings := _part(policy, part)):
                groups.setdefault(settings.model_dump_json(), []).append(name)
        for names in groups.values():
            policy = scenario.policies[names[0]]
            if settings := _part(policy, part, whole=True):
                yield from ((tuple(names), replace(s, field=f"{part}.{s.field}")) for s in settings.thrift())
    for name, policy in scenario.policies.items():
        if policy.learner and isinstance(policy.model, HeldModel):
            adapter = Adapter(base=policy.model, rank=_RANK)
            yield (name,), MemorySaver("model", adapter, same_results=False)


def _part(policy: PolicyConfig, part: str, *, whole: bool = False) -> Any:
    """Return a part of a policy; of its model, unless the `whole` is wanted, what it shares with others."""
    settings = dict(policy)[part]
    return settings.shared() or settings if part == "model" and not whole else settings


def _changed(scenario: Scenario, policies: tuple[str, ...], saver: MemorySaver) -> Scenario:
    path = saver.field.split(".")
    changed = {name: _with(scenario.policies[name], path, saver.value) for name in policies}
    return scenario.model_copy(update={"policies": {**scenario.policies, **changed}})


def _with(settings: Any, path: list[str], value: Any) -> Any:
    """Return settings with another value at a path."""
    first, *rest = path
    return settings.model_copy(update={first: _with(dict(settings)[first], rest, value) if rest else value})


def _resized(sizes: ScenarioSizes, scenario: Scenario, policies: tuple[str, ...], size_of: SizeOf) -> ScenarioSizes:
    models = dict(sizes.models)
    for name in policies:
        model = scenario.policies[name].model
        if model and (size := size_of(name, model)):
            models[name] = size
    return replace(sizes, models=models)
