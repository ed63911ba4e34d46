"""Changes of a scenario that make its run take less memory, each tried out on the estimate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

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
        return f"policies.{f'[{names}]' if len(self.policies) > 1 else names}.{self.field}: {_shown(self.value)}"


def _shown(value: Any) -> str:
    """Return a value in YAML."""
    if isinstance(value, Adapter):
        return f"{{kind: {value.kind}, base: <as it is now>, rank: {value.rank}}}"
    return str(value).lower() if isinstance(value, bool) else str(value)


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

    What changes speed alone goes first. What turns out to be needless after later changes is left out.
    """
    trial = _Trial(needs, size_of)
    start = now = LeanScenario(scenario, sizes, needs(scenario, sizes))
    while now.needed > room and (better := next(trial.steps(now), None)):
        now = better
    for change in reversed(now.changes) if now.needed <= room else ():
        if not change.field.startswith("model"):  # later values of a model hold those before
            fewer = start
            for other in now.changes:
                fewer = fewer if other == change else trial.after(fewer, other)
            now = fewer if fewer.needed <= room else now
    return now


@dataclass(frozen=True, slots=True)
class _Trial:
    """Tries changes out."""

    needs: Needs
    size_of: SizeOf

    def steps(self, now: LeanScenario) -> Iterator[LeanScenario]:
        """Yield the scenario after each single change that saves enough."""
        for policies, saver in sorted(_proposals(now.scenario), key=lambda proposal: not proposal[1].same_results):
            changed = self.after(now, Change(policies, saver.field, saver.value, 0.0))
            if now.needed - changed.needed >= LEAST * now.needed:
                yield changed

    def after(self, now: LeanScenario, change: Change) -> LeanScenario:
        """Return the scenario after a further change, with what that saves."""
        path, policies = change.field.split("."), now.scenario.policies
        changed = {name: _with(policies[name], path, change.value) for name in change.policies}
        scenario = now.scenario.model_copy(update={"policies": {**policies, **changed}})
        sizes = now.sizes
        if path[0] == "model":
            resized = {name: self.size_of(name, policy.model) for name, policy in changed.items() if policy.model}
            sizes = replace(sizes, models={**sizes.models, **{n: size for n, size in resized.items() if size}})
        needed = self.needs(scenario, sizes)
        return LeanScenario(scenario, sizes, needed, _joined(now.changes, replace(change, saves=now.needed - needed)))


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
            adapter = Adapter.model_validate({"base": policy.model, "rank": _RANK})
            yield (name,), MemorySaver("model", adapter, same_results=False)


def _part(policy: PolicyConfig, part: str, *, whole: bool = False) -> Any:
    """Return a part of a policy; of its model, unless the `whole` is wanted, what it shares with others."""
    settings = dict(policy)[part]
    return settings.shared() or settings if part == "model" and not whole else settings


def _with(settings: Any, path: list[str], value: Any) -> Any:
    """Return settings with another value at a path."""
    first, *rest = path
    return settings.model_copy(update={first: _with(dict(settings)[first], rest, value) if rest else value})
