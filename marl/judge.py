"""The judge stage: credit rules of a scenario, applied to one step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from marl.protocols import Assign, Baseline, Evidence
from marl.types import Credit, Metrics

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

    def __call__(self, evidence: Evidence) -> Judgement:
        scaled = replace(evidence, trajectories=[t.scaled(self.scale) for t in evidence.trajectories])
        earned = self.assign(scaled)
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
        judgement = self._default(evidence)
        for role, rule in self._own.items():
            own = rule(evidence)
            turns = [turn.id for t in evidence.trajectories for turn in t.turns if turn.role == role]
            _overrule(judgement.earned, own.earned, turns)
            _overrule(judgement.credit, own.credit, turns)
            judgement.metrics.update({f"{name}@{role}": value for name, value in own.metrics.items()})
        return judgement

    def state_dict(self) -> dict[str, Any]:
        return {"default": self._default.state_dict(), "roles": {r: rule.state_dict() for r, rule in self._own.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._default.load_state_dict(state["default"])
        for role, rule in self._own.items():
            rule.load_state_dict(state["roles"][role])


def _overrule(credit: Credit, own: Credit, turns: list[tuple[str, int]]) -> None:
    for turn in turns:
        credit.pop(turn, None)
        if turn in own:
            credit[turn] = own[turn]
