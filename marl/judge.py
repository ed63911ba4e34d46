"""The judge stage: credit rules of a scenario, applied to one step."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from marl.protocols import Assign, Baseline, Evidence
from marl.types import Credit, Metrics, TurnId

if TYPE_CHECKING:
    from marl.scenario import CreditConfig, CreditRule


@dataclass(frozen=True, slots=True)
class Judgement:
    """What every turn was assigned, and how much better than its peers that was."""

    earned: Credit
    credit: Credit
    metrics: Metrics


class _Rule:
    """`assign` then `baseline`, on rewards times `scale`."""

    def __init__(self, settings: CreditRule) -> None:
        self.assign: Assign = settings.assign.build()
        self.baseline: Baseline = settings.baseline.build()
        self.scale = settings.scale

    def __call__(self, evidence: Evidence, turns: Set[TurnId] | None = None) -> Judgement:
        """Judge `turns` (None: all); the assignment sees the whole episodes, the comparison only these."""
        scaled = replace(evidence, trajectories=[t.scaled(self.scale) for t in evidence.trajectories])
        earned = self.assign(scaled)
        if turns is not None:
            earned = {turn: worth for turn, worth in earned.items() if turn in turns}
        credit, metrics = self.baseline(scaled, earned)
        return Judgement(earned, credit, metrics)

    def state_dict(self) -> dict[str, Any]:
        return {"assign": self.assign.state_dict(), "baseline": self.baseline.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.assign.load_state_dict(state["assign"])
        self.baseline.load_state_dict(state["baseline"])


class Judge:
    """The default rule, and roles that have a rule of their own."""

    def __init__(self, settings: CreditConfig) -> None:
        self._default = _Rule(settings)
        self._own = {role: _Rule(rule) for role, rule in settings.roles.items()}
        rules = [self._default, *self._own.values()]
        self.needs = frozenset().union(*(part.needs for rule in rules for part in (rule.assign, rule.baseline)))

    def __call__(self, evidence: Evidence) -> Judgement:
        if not self._own:
            return self._default(evidence)
        turns: dict[str | None, set[TurnId]] = {None: set(), **{role: set() for role in self._own}}
        for trajectory in evidence.trajectories:
            for turn in trajectory.turns:
                turns[turn.role if turn.role in self._own else None].add(turn.id)
        judgement = self._default(evidence, turns[None])
        for role, rule in self._own.items():
            own = rule(evidence, turns[role])
            judgement.earned.update(own.earned)
            judgement.credit.update(own.credit)
            judgement.metrics.update({f"{name}@{role}": value for name, value in own.metrics.items()})
        return judgement

    def state_dict(self) -> dict[str, Any]:
        return {"default": self._default.state_dict(), "roles": {r: rule.state_dict() for r, rule in self._own.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._default.load_state_dict(state["default"])
        for role, rule in self._own.items():
            rule.load_state_dict(state["roles"][role])
