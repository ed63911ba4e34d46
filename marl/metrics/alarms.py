"""Collapse alarms: warnings about roles whose answers no longer hold anything worth learning from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from marl.errors import RunError
from marl.types import Metrics

if TYPE_CHECKING:
    from marl.scenario.schema import AlarmKind, Alarms, Scenario, Thresholds

_START = 10
"""Number of first steps whose mean later steps are compared with."""


class Collapse(RunError):  # noqa: N818 (says what happened)
    """An alarm that ends the run."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """An alarm that has just been raised."""

    role: str
    kind: AlarmKind
    value: float
    turns: int
    """Turns of the role in this step."""
    limit: str
    """The violated limit, such as `>= 0.98`."""
    patience: int

    def message(self, move: str) -> str:
        """Return the warning; `move`: the one that the role makes most often."""
        words = _INDICATORS[self.kind].words.format(value=self.value, move=move, turns=self.turns)
        return f"ALARM role {self.role}: {words} ({self.kind} {self.limit}) for {self.patience} steps"


@dataclass(frozen=True, slots=True)
class _Indicator:
    """Definition of a kind of alarm."""

    figure: str
    """Metric `role/NAME/...` that it watches."""
    words: str
    relative: bool = False
    """True if limits are multiples of the figure's mean over the first steps."""
    too_low: bool = False
    """True if a single threshold is the lower limit; otherwise it is the upper one."""

    def limits(self, threshold: Any) -> tuple[float, float]:
        """Return the open interval of good values."""
        if isinstance(threshold, tuple):
            return threshold
        return (threshold, math.inf) if self.too_low else (-math.inf, threshold)


_INDICATORS: dict[AlarmKind, _Indicator] = {
    "constant": _Indicator("constant", "says {move!r} in {value:.0%} of its choices ({turns} turns a step)"),
    "unreadable": _Indicator("illegal", "{value:.0%} of {turns} turns a step cannot be read"),
    "repeated": _Indicator("repeated", "repeats itself, whatever it is asked, with probability {value:.2f}"),
    "distinct": _Indicator(
        "distinct2", "says few different things: distinct-2 is {value:.3g}", relative=True, too_low=True
    ),
    "entropy": _Indicator("entropy", "samples at {value:.3g} nats a token"),
    "length": _Indicator("tokens", "says {value:.3g} tokens a turn", relative=True),
    "cut": _Indicator("cut", "{value:.0%} of {turns} turns a step are cut off by max_tokens"),
    "reward": _Indicator("reward_std", "its returns are all the same (standard deviation {value:.2g})", too_low=True),
}


class _Streak:
    """Number of steps in a row in which one indicator of one role was outside its limits."""

    def __init__(self, role: str, kind: AlarmKind, thresholds: Thresholds) -> None:
        self.role = role
        self.kind: AlarmKind = kind
        self._thresholds, self._indicator = thresholds, _INDICATORS[kind]
        self._limits = self._indicator.limits(thresholds.limit(kind))
        self._length = 0
        self._first_values: list[float] = []

    @property
    def holds(self) -> bool:
        return self._length >= self._thresholds.patience

    def update(self, metrics: Mapping[str, float]) -> Alarm | None:
        """Take in a step's metrics; return the alarm in the step in which it is raised."""
        turns, value = (metrics.get(f"role/{self.role}/{name}") for name in ("turns", self._indicator.figure))
        if value is None or turns is None or turns < self._thresholds.turns:
            return None
        low, high = self._limits
        if self._indicator.relative:
            if len(self._first_values) < _START:
                self._first_values.append(value)
                return None
            scale = fmean(self._first_values)
            low, high = low * scale, high * scale
        if low == high:
            return None  # multiples of 0: players by rule sample no tokens
        self._length = 0 if low < value < high else self._length + 1
        if self._length != self._thresholds.patience:
            return None
        limit = f">= {high:.4g}" if value >= high else f"<= {low:.4g}"
        return Alarm(self.role, self.kind, value, int(turns), limit, self._thresholds.patience)


class AlarmMonitor:
    """Alarms of a run. Their state follows from the rows of metrics.jsonl alone: a resumed run replays them."""

    def __init__(self, settings: Alarms | None, roles: Mapping[str, bool]) -> None:
        """Watch `roles`: each role, and True if it learns from its rewards."""
        self._stop = settings.stop if settings else ()
        thresholds = {role: settings.of_role(role) for role in roles} if settings else {}
        self._streaks = [
            _Streak(role, kind, limits)
            for role, limits in thresholds.items()
            if limits
            for kind in _INDICATORS
            if limits.limit(kind) is not None and (roles[role] or kind != "reward")
        ]

    @classmethod
    def of_scenario(cls, scenario: Scenario) -> AlarmMonitor:
        """Return a monitor of all roles of a scenario."""
        learning = scenario.credited_roles()
        return cls(scenario.alarms, {role: role in learning for role in scenario.roles})

    def __call__(self, metrics: Mapping[str, float]) -> tuple[Metrics, list[Alarm]]:
        """Take in a step's metrics; return `alarm/ROLE/KIND` and the alarms raised by this step.

        The metric is 1 while an alarm holds, and 0 in the step in which it ends.
        """
        before = {streak for streak in self._streaks if streak.holds}
        raised = [alarm for streak in self._streaks if (alarm := streak.update(metrics))]
        reported = [streak for streak in self._streaks if streak.holds or streak in before]
        return {f"alarm/{streak.role}/{streak.kind}": float(streak.holds) for streak in reported}, raised

    def ends_run(self, alarm: Alarm) -> bool:
        return alarm.kind in self._stop
