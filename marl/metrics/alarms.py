"""Alarms: warnings about roles with collapsed or unreadable answers, and about policies without training samples."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from marl.core.errors import RunError
from marl.core.types import Metrics
from marl.scenario.schema import AlarmKind, Alarms, Scenario, Thresholds

_START = 10
"""Number of first steps whose mean is the reference of relative limits."""


class CollapseError(RunError):
    """An alarm that ends the run."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """An alarm in the step in which it is raised."""

    role: str
    """Name of the role, or of the policy for the kind `samples`."""
    kind: AlarmKind
    value: float
    turns: int
    """Number of the role's turns in this step."""
    limit: str
    """The violated limit, such as `>= 0.98`."""
    patience: int
    rule: str = ""
    """Credit rule of the role."""
    game: str = ""
    """Name of the game, empty in a scenario with one game."""

    def message(self, move: str) -> str:
        """Return the text of the warning, where `move` is the role's most common move."""
        indicator = _INDICATORS[self.kind]
        words = indicator.words.format(value=self.value, move=move, turns=self.turns, rule=self.rule)
        subject = f"{indicator.scope} {self.role}" + (f" in game {self.game}" if self.game else "")
        return f"ALARM {subject}: {words} ({self.kind} {self.limit}) for {self.patience} {indicator.unit}"


@dataclass(frozen=True, slots=True)
class _Indicator:
    """Definition of one kind of alarm."""

    figure: str
    """Watched metric: the last part of `role/NAME/...`, or a pattern of the full name."""
    words: str
    relative: bool = False
    """True if limits are multiples of the metric's mean over the first steps."""
    too_low: bool = False
    """True if a single threshold is the lower limit; otherwise it is the upper one."""
    scope: str = "role"
    unit: str = "steps"

    def limits(self, threshold: Any) -> tuple[float, float]:
        """Return the open interval of values without an alarm."""
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
    "credit": _Indicator(
        "credit/{name}/nonzero",
        "its credit ({rule}) is 0 or missing in all of {turns} turns a step, though its returns differ",
        too_low=True,
    ),
    "samples": _Indicator(
        "policy/{name}/samples",
        "gets no sample to learn from",
        too_low=True,
        scope="policy",
        unit="updates",
    ),
}


class _Streak:
    """Number of consecutive steps in which one indicator of one role or policy is outside its limits."""

    def __init__(
        self,
        name: str,
        kind: AlarmKind,
        thresholds: Thresholds,
        *,
        rule: str = "",
        game: str = "",
        explored: float = 0.0,
    ) -> None:
        """`explored` is the share of the role's moves drawn at random, which lowers the limit of `constant`."""
        self.name, self.rule, self.game = name, rule, game
        self.kind: AlarmKind = kind
        self._thresholds, self._indicator = thresholds, _INDICATORS[kind]
        threshold = thresholds.limit(kind)
        self._limits = self._indicator.limits(threshold * (1 - explored) if kind == "constant" else threshold)
        figure = self._indicator.figure
        self._figure = figure.format(name=name) if "/" in figure else f"role/{name}/{figure}"
        self._length = 0
        self._first_values: list[float] = []

    @property
    def metric(self) -> str:
        """Name of the metric that is 1 while the alarm holds."""
        return f"{_scope(self.game)}alarm/{self.name}/{self.kind}"

    @property
    def holds(self) -> bool:
        return self._length >= self._thresholds.patience

    def update(self, metrics: Mapping[str, float]) -> Alarm | None:
        """Add the metrics of one step and game; return the alarm if this step raises it."""
        turns, value = metrics.get(f"role/{self.name}/turns", 0.0), metrics.get(self._figure)
        if value is None or (self.kind != "samples" and turns < self._thresholds.turns) or self._explained(metrics):
            return None
        low, high = self._limits
        if self._indicator.relative:
            if len(self._first_values) < _START:
                self._first_values.append(value)
                return None
            scale = fmean(self._first_values)
            low, high = low * scale, high * scale
        if low == high:
            return None  # both limits are multiples of 0: rule-based players sample no tokens
        self._length = 0 if low < value < high else self._length + 1
        if self._length != self._thresholds.patience:
            return None
        limit = f">= {high:.4g}" if value >= high else f"<= {low:.4g}"
        patience = self._thresholds.patience
        return Alarm(self.name, self.kind, value, int(turns), limit, patience, self.rule, self.game)

    def _explained(self, metrics: Mapping[str, float]) -> bool:
        """Return True if something else accounts for the figure.

        Credit is 0 because returns are all the same, which is the alarm `reward`; or returns are all 0 because the role
        is not paid itself and learns from rewards that credit passes on to it.
        """
        if self.kind == "reward":
            paid = any(name.startswith(f"role/{self.name}/reward/") for name in metrics)
            return not paid and metrics.get(f"credit/{self.name}/nonzero", 0.0) > 0
        spread = metrics.get(f"role/{self.name}/reward_std", math.inf)
        return self.kind == "credit" and spread <= (self._thresholds.reward or 0.0)


def is_alarm_metric(metric: str) -> bool:
    """Return True if `name` is a metric of `AlarmMonitor`."""
    return metric.startswith("alarm/") or (metric.startswith("game/") and "/alarm/" in metric)


def _scope(game: str) -> str:
    return f"game/{game}/" if game else ""


def _metrics_of(game: str, metrics: Mapping[str, float]) -> Mapping[str, float]:
    """Return the metrics of one of several games, under the names that they have where there is one."""
    scope = _scope(game)
    return {name[len(scope) :]: value for name, value in metrics.items() if name.startswith(scope)}


def _of_role(kind: AlarmKind, *, learns: bool) -> bool:
    """Return True if a kind concerns a role, which learns from its rewards or does not."""
    return kind != "samples" and (learns or kind not in ("reward", "credit"))


class AlarmMonitor:
    """Alarms of a run. Their state follows from the rows of metrics.jsonl alone: a resumed run replays them."""

    def __init__(
        self,
        settings: Alarms | None,
        roles: Mapping[str, bool],
        rules: Mapping[str, str] | None = None,
        policies: Iterable[str] = (),
        games: Mapping[str, Iterable[str]] | None = None,
        explored: Mapping[str, float] | None = None,
    ) -> None:
        """Watch `roles`: each role, and True if it learns from its rewards; and `policies`, which learn.

        `rules`: role -> its credit rule, for messages. `games`: name of each of several games -> the roles that sit at
        it. Each is watched apart: what collapses in one must not hide behind the others. `explored`: role -> share of
        moves that are drawn at random.
        """
        rules, explored = rules or {}, explored or {}
        self._stop = settings.stop if settings else ()
        thresholds = {role: settings.of_role(role) for role in roles} if settings else {}
        self._streaks = [
            _Streak(role, kind, limits, rule=rules.get(role, ""), game=game, explored=explored.get(role, 0.0))
            for game, seated in (games or {"": roles}).items()
            for role in seated
            if (limits := thresholds.get(role))
            for kind in _INDICATORS
            if _of_role(kind, learns=roles[role]) and limits.limit(kind) is not None
        ]
        self._streaks += [_Streak(name, "samples", settings) for name in policies if settings]

    @classmethod
    def from_scenario(cls, scenario: Scenario) -> AlarmMonitor:
        """Return a monitor of all roles and learners of a scenario."""
        learning, credit = scenario.credited_roles(), scenario.credit
        rule_of = {role: credit.roles.get(role, credit) for role in scenario.roles}
        rules = {role: f"{rule.assign.kind} / {rule.baseline.kind}" for role, rule in rule_of.items()}
        policies = [name for name, policy in scenario.policies.items() if policy.learner]
        games = {name: view.roles for name, view in scenario.by_game().items()} if scenario.games else None
        shares = {name: learner.exploration_rate for name, _, learner in scenario.learning_roles()}
        # A policy that explores in half of its moves or more shows too little of its own choices.
        explored = {name: share for name, share in shares.items() if share < 0.5}
        watched = {role: role in learning for role in scenario.roles}
        return cls(scenario.alarms, watched, rules, policies, games, explored)

    def __call__(self, metrics: Mapping[str, float]) -> tuple[Metrics, list[Alarm]]:
        """Add the metrics of one step; return the alarm metrics and the alarms raised in this step.

        The metric `alarm/ROLE/KIND` (with several games `game/GAME/alarm/ROLE/KIND`) is 1 while an alarm holds, and 0
        in the step in which it ends.
        """
        before = {streak for streak in self._streaks if streak.holds}
        metrics_of = {game: _metrics_of(game, metrics) for game in {streak.game for streak in self._streaks}}
        raised = [alarm for streak in self._streaks if (alarm := streak.update(metrics_of[streak.game]))]
        reported = [streak for streak in self._streaks if streak.holds or streak in before]
        return {streak.metric: float(streak.holds) for streak in reported}, raised

    def ends_run(self, alarm: Alarm) -> bool:
        return alarm.kind in self._stop
