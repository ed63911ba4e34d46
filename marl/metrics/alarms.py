"""Alarms: warnings about roles with collapsed or unreadable answers, and about policies without training samples."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from marl.core.errors import RunError
from marl.core.types import Metrics
from marl.scenario.alarm_checks import roles_with_watched_return
from marl.scenario.alarms import AlarmKind, AlarmSettings, AlarmThresholds
from marl.scenario.games import HELD_OUT_SCOPES
from marl.scenario.schema import Scenario

# Metrics of this module (name | unit | meaning), which `tests/bench/figures.py` copies into marl/README.md.
METRICS = """
alarm/ROLE/KIND, game/GAME/alarm/ROLE/KIND | 0 or 1 | 1 while an alarm (`constant`, `unreadable`, `repeated`,
    `distinct`, `entropy`, `length`, `cut`, `return_fell`, `reward`, `credit`, `faulty`; of a policy `samples`, `kl`; of
    a pair of metrics `proxy`) holds, 0 in the step in which it ends
"""

_REFERENCE_STEPS = 10
"""Number of first steps whose mean value is the reference of relative limits."""


class AlarmStopError(RunError):
    """Error that ends the run after an alarm of a kind listed under `alarms.stop`."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """Warning about one role or policy, in the step in which the warning is raised."""

    role: str
    """Name of the role, or of the policy for the kind `samples`."""
    kind: AlarmKind
    value: float
    """Value of the watched metric in this step."""
    turns: int
    """Number of the role's turns in this step."""
    limit: str
    """The violated limit, such as `>= 0.98`."""
    patience: int
    """Number of consecutive steps outside the limit after which the alarm is raised."""
    rule: str = ""
    """Kinds of the role's credit rule, such as `outcome / group`."""
    game: str = ""
    """Name of the game, empty in a scenario with one game."""

    def message(self, most_common_move: str) -> str:
        """Return the text of the warning, where `most_common_move` is the role's most common move."""
        indicator = _ALARM_DEFINITIONS[self.kind]
        words = indicator.message_format.format(
            value=self.value, move=most_common_move, turns=self.turns, rule=self.rule
        )
        subject = f"{indicator.scope} {self.role}" + (f" in game {self.game}" if self.game else "")
        return f"ALARM {subject}: {words} ({self.kind} {self.limit}) for {self.patience} {indicator.unit}"


@dataclass(frozen=True, slots=True)
class _AlarmDefinition:
    """Definition of one kind of alarm."""

    metric: str
    """Watched metric: METRIC of `role/NAME/METRIC`, or the full name with `{name}` for a role or policy."""
    message_format: str
    """Format string of the warning with the fields `value`, `move`, `turns` and `rule`."""
    summary: str
    """Predicate of a sentence whose subject is the role, policy or pair of metrics."""
    relative: bool = False
    """True if limits are multiples of the metric's mean over the first steps."""
    too_low: bool = False
    """True if a single threshold is the lower limit; otherwise a single threshold is the upper limit."""
    scope: str = "role"
    """Kind of subject that the warning names: `role` or `policy`."""
    unit: str = "steps"
    """Unit in which the warning counts the patience."""


_ALARM_DEFINITIONS: dict[AlarmKind, _AlarmDefinition] = {
    "constant": _AlarmDefinition(
        "constant",
        "says {move!r} in {value:.0%} of its choices ({turns} turns a step)",
        "gives nearly always the same answer",
    ),
    "unreadable": _AlarmDefinition(
        "illegal", "{value:.0%} of {turns} turns a step cannot be read", "gives answers that cannot be read"
    ),
    "repeated": _AlarmDefinition(
        "repeated",
        "repeats itself, whatever it is asked, with probability {value:.2f}",
        "repeats itself, whatever it is asked",
    ),
    "distinct": _AlarmDefinition(
        "distinct2",
        "says few different things: distinct-2 is {value:.3g}",
        "says few different things",
        relative=True,
        too_low=True,
    ),
    "entropy": _AlarmDefinition(
        "entropy", "samples at {value:.3g} nats a token", "samples with too little or too much entropy"
    ),
    "length": _AlarmDefinition(
        "tokens", "says {value:.3g} tokens a turn", "gives much longer or shorter answers than at first", relative=True
    ),
    "cut": _AlarmDefinition(
        "cut", "{value:.0%} of {turns} turns a step are cut off by max_tokens", "has its answers cut off"
    ),
    "reward": _AlarmDefinition(
        "reward_std",
        "its returns are all the same (standard deviation {value:.2g})",
        "gets the same return in all episodes",
        too_low=True,
    ),
    "credit": _AlarmDefinition(
        "credit/{name}/nonzero",
        "its credit ({rule}) is 0 or missing in all of {turns} turns a step, though its returns differ",
        "gets no credit, though its returns differ",
        too_low=True,
    ),
    "return_fell": _AlarmDefinition(
        "return",
        "its mean return over ten steps is {value:.3g}, far below its best",
        "has fallen far below its best return",
    ),
    "faulty": _AlarmDefinition(
        "faulty",
        "{value:.1%} of {turns} verdicts a step are faulty: a check's code failed",
        "has checks whose code fails",
    ),
    "samples": _AlarmDefinition(
        "policy/{name}/samples",
        "gets no sample to learn from",
        "gets no sample to learn from",
        too_low=True,
        scope="policy",
        unit="updates",
    ),
    "kl": _AlarmDefinition(
        "policy/{name}/kl_update",
        "an update moves it by {value:.3g} nats a token; set learner.stop_at_kl, or lower learner.lr",
        "changes too much in an update",
        scope="policy",
        unit="updates",
    ),
    "proxy": _AlarmDefinition(
        "", "{rule}", "rises while the metric that it stands for falls", scope="proxy", unit="evaluations"
    ),
}


class _MetricLimitMonitor:
    """Monitor of one metric of one role or policy, which counts consecutive steps outside the metric's limits."""

    def __init__(
        self,
        name: str,
        kind: AlarmKind,
        thresholds: AlarmThresholds,
        *,
        rule: str = "",
        game: str = "",
        exploration_share: float = 0.0,
    ) -> None:
        """Watch one metric. The limit of `constant` falls with the share of moves that exploration draws at random."""
        self._name, self._rule, self._game = name, rule, game
        self._kind: AlarmKind = kind
        self._thresholds, self._indicator = thresholds, _ALARM_DEFINITIONS[kind]
        threshold = thresholds.alarm_threshold(kind)
        if kind == "constant":
            threshold *= 1 - exploration_share
        # Values strictly between the two limits raise no alarm.
        if isinstance(threshold, tuple):
            self._limits = threshold
        else:
            self._limits = (threshold, math.inf) if self._indicator.too_low else (-math.inf, threshold)
        self._figure = watched_metric(name, kind)
        self.scope = f"game/{game}/" if game else ""
        """Beginning of the names of the game's metrics, empty in a scenario with one game."""
        self.metric = f"{self.scope}alarm/{name}/{kind}"
        """Name of the metric that is 1 while the alarm holds."""
        self._length = 0
        self._first_values: list[float] = []

    @property
    def is_alarm_active(self) -> bool:
        return self._length >= self._thresholds.patience

    def update(self, metrics: Mapping[str, float]) -> Alarm | None:
        """Process the metrics of one step and game; return the alarm that this step raises, or None."""
        turns, value = metrics.get(f"role/{self._name}/turns", 0.0), metrics.get(self._figure)
        too_few = self._indicator.scope == "role" and turns < self._thresholds.turns
        has_other_cause = False
        if self._kind == "reward":
            # A role without rewards of its own may still learn, if credit assigns other roles' rewards to it.
            paid = any(name.startswith(f"role/{self._name}/reward/") for name in metrics)
            has_other_cause = not paid and metrics.get(f"credit/{self._name}/nonzero", 0.0) > 0
        elif self._kind == "credit":
            # Without a spread of returns all credit is 0; then only the alarm `reward` is raised, not `credit`.
            spread = metrics.get(f"role/{self._name}/reward_std", math.inf)
            has_other_cause = spread <= (self._thresholds.reward or 0.0)
        if value is None or too_few or has_other_cause:
            return None
        low, high = self._limits
        if self._indicator.relative:
            if len(self._first_values) < _REFERENCE_STEPS:
                self._first_values.append(value)
                return None
            scale = fmean(self._first_values)
            low, high = low * scale, high * scale
        if low == high:
            # If the first values are 0, the limits coincide, as for rule-based players (they sample no tokens).
            return None
        self._length = 0 if low < value < high else self._length + 1
        patience = self._thresholds.patience
        if self._length != patience:
            return None
        limit = f">= {high:.4g}" if value >= high else f"<= {low:.4g}"
        return Alarm(self._name, self._kind, value, int(turns), limit, patience, self._rule, self._game)


class _ReturnMonitor(_MetricLimitMonitor):
    """Monitor of the fall of a role's mean return below its best, both over ten steps.

    The unit is the standard deviation of the returns of all episodes of ten steps, now or at the best, whichever is
    greater. It has a part between steps, because a step may consist of one start, or of one episode.
    """

    def __init__(self, name: str, thresholds: AlarmThresholds, *, game: str = "") -> None:
        super().__init__(name, "return_fell", thresholds, game=game)
        self._recent: deque[tuple[float, float]] = deque(maxlen=_REFERENCE_STEPS)
        """Mean and standard deviation of the returns in each of the last steps."""
        self._best, self._best_spread = -math.inf, 0.0

    def update(self, metrics: Mapping[str, float]) -> Alarm | None:
        turns, value = metrics.get(f"role/{self._name}/turns", 0.0), metrics.get(self._figure)
        if value is None or turns < self._thresholds.turns:
            return None
        self._recent.append((value, metrics.get(f"role/{self._name}/reward_std", 0.0)))
        if len(self._recent) < _REFERENCE_STEPS:
            return None
        # `fmean` would raise on infinite returns of both signs.
        mean = sum(value for value, _ in self._recent) / _REFERENCE_STEPS
        # `hypot` is the root of a sum of squares that cannot overflow.
        deviations = [*(spread for _, spread in self._recent), *(value - mean for value, _ in self._recent)]
        spread = math.hypot(*deviations) / math.sqrt(_REFERENCE_STEPS)
        if mean >= self._best:
            self._best, self._best_spread = mean, spread
        limit = self._best - (self._thresholds.return_fell or 0.0) * max(spread, self._best_spread)
        self._length = self._length + 1 if mean < limit else 0
        patience = self._thresholds.patience
        if self._length != patience:
            return None
        words = f"{self._thresholds.return_fell:g} standard deviations below {self._best:.3g}"
        return Alarm(self._name, self._kind, mean, int(turns), words, patience, game=self._game)


class ProxyMonitor:
    """Monitor of pairs of evaluation metrics that move apart. Its state follows from the rows of metrics.jsonl."""

    def __init__(self, settings: AlarmSettings | None) -> None:
        self._pairs = settings.proxy_by_name if settings else {}
        self._patience = settings.patience if settings else 1
        self._evaluations: dict[str, deque[tuple[float, ...]]] = {}
        """Name of a pair -> bounds of both metrics in the newest evaluations, and `patience` evaluations before."""
        self._active: set[str] = set()

    def __call__(self, metrics: Mapping[str, float]) -> tuple[Metrics, list[Alarm]]:
        """Process the metrics of one evaluation; return the alarm metrics and the alarms raised by it."""
        states: Metrics = {}
        raised: list[Alarm] = []
        for name, pair in self._pairs.items():
            if pair.rises not in metrics or pair.falls not in metrics:
                continue
            bounds: list[float] = []
            for metric in (pair.rises, pair.falls):
                # An exact metric has no interval, so its value is both bounds. A mean of one episode has none either,
                # but is uncertain.
                margin = math.inf if metric.rpartition("/")[0].endswith(HELD_OUT_SCOPES) else 0.0
                bounds.append(metrics.get(f"{metric}_low", metrics[metric] - margin))
                bounds.append(metrics.get(f"{metric}_high", metrics[metric] + margin))
            evaluations = self._evaluations.setdefault(name, deque(maxlen=self._patience + 1))
            evaluations.append(tuple(bounds))
            (_, old_rises_high, old_falls_low, _), (rises_low, _, _, falls_high) = evaluations[0], evaluations[-1]
            is_long_enough = len(evaluations) > self._patience
            apart = is_long_enough and rises_low > old_rises_high and falls_high < old_falls_low
            was_active = name in self._active
            if apart or was_active:
                states[f"alarm/{name}/proxy"] = float(apart)
            if apart and not was_active:
                words = (
                    f"{pair.rises} rose to {metrics[pair.rises]:.3g} and {pair.falls} fell to {metrics[pair.falls]:.3g}"
                )
                limit = "beyond both intervals"
                raised.append(Alarm(name, "proxy", metrics[pair.falls], 0, limit, self._patience, words))
            (self._active.add if apart else self._active.discard)(name)
        return states, raised


def alarm_subject(kind: str) -> str:
    """Return what an alarm of `kind` is about: `role`, `policy` or `proxy`."""
    return next((definition.scope for name, definition in _ALARM_DEFINITIONS.items() if name == kind), "role")


def alarm_summary(kind: str) -> str:
    """Return what an alarm of `kind` says about its subject, such as `repeats itself`, or `kind` if it is unknown."""
    return next((definition.summary for name, definition in _ALARM_DEFINITIONS.items() if name == kind), kind)


def watched_metric(name: str, kind: str) -> str:
    """Return the name of the metric that the alarm `kind` of the role or policy `name` watches.

    It is "" for `proxy`, which watches a pair of metrics, and for a kind that does not exist.
    """
    metric = next((definition.metric for known, definition in _ALARM_DEFINITIONS.items() if known == kind), "")
    return metric.format(name=name) if "/" in metric or not metric else f"role/{name}/{metric}"


def is_alarm_metric(metric: str) -> bool:
    """Return True if `metric` is the name of a metric of `AlarmMonitor`: [game/GAME/]alarm/ROLE/KIND."""
    return metric.startswith("alarm/") or (metric.startswith("game/") and "/alarm/" in metric)


class WatchedRole(NamedTuple):
    """What the alarms of a role depend on."""

    is_trained: bool
    rule: str = ""
    """Kinds of the role's credit rule, for messages."""
    exploration_share: float = 0.0
    """Share of the role's moves that exploration draws at random."""
    may_return_fall: bool = False
    """True if the role's return may fall though the role gets no worse (`roles_with_watched_return`)."""
    learns_from_credit: bool = True
    """False if the role's learner uses no credit, such as `q_learning`."""


class AlarmMonitor:
    """Monitor of a run's alarms. Its state follows from the rows of metrics.jsonl alone, which a resumed run
    replays."""

    def __init__(
        self,
        settings: AlarmSettings | None,
        roles: Mapping[str, WatchedRole],
        policies: Iterable[str] = (),
        games: Mapping[str, Mapping[str, WatchedRole]] | None = None,
    ) -> None:
        """Watch the indicators of all roles and policies.

        Args:
            settings: thresholds of the alarms, or None to watch nothing.
            roles: role -> what its alarms depend on.
            policies: policies that learn.
            games: with several games, game -> its roles, as `roles`. Each game is watched separately, so that
                collapse in one game does not hide behind the others.
        """
        self._stop = settings.stop if settings else ()
        self._watches: list[_MetricLimitMonitor] = []
        if settings is None:
            return
        for game, seated_roles in (games or {"": roles}).items():
            for role, (is_trained, rule, share, may_return_fall, learns_from_credit) in seated_roles.items():
                if not (limits := settings.alarm_thresholds_of_role(role)):
                    continue
                if limits.return_fell is not None and is_trained and not may_return_fall:
                    self._watches.append(_ReturnMonitor(role, limits, game=game))
                for kind, definition in _ALARM_DEFINITIONS.items():
                    # The alarms `reward` and `credit` are not raised for roles that do not learn from credit.
                    is_credited = is_trained and learns_from_credit
                    watched = definition.scope == "role" and (is_credited or kind not in ("reward", "credit"))
                    if watched and kind != "return_fell" and limits.alarm_threshold(kind) is not None:
                        self._watches.append(
                            _MetricLimitMonitor(role, kind, limits, rule=rule, game=game, exploration_share=share)
                        )
        for policy in policies:
            self._watches.append(_MetricLimitMonitor(policy, "samples", settings))
            if settings.kl is not None:
                self._watches.append(_MetricLimitMonitor(policy, "kl", settings))

    @classmethod
    def from_scenario(cls, scenario: Scenario) -> AlarmMonitor:
        """Return a monitor of all roles and learners of a scenario."""
        credited, credit = scenario.credited_roles(), scenario.credit
        trained = {name for name, _, _ in scenario.learning_roles()}
        exploration_share: dict[str, float] = {}
        for role, _, learner in scenario.learning_roles():
            # A policy that explores in at least half of its moves is not watched for constant answers.
            if learner.exploration_rate < 0.5:
                exploration_share[role] = learner.exploration_rate
        games: dict[str, dict[str, WatchedRole]] = {}
        watched = roles_with_watched_return(scenario)
        for game, view in scenario.scenario_by_game().items():
            games[game] = {}
            for role in view.roles:
                rule, share = credit.roles.get(role, credit), exploration_share.get(role, 0.0)
                kinds, may_return_fall = f"{rule.assign.kind} / {rule.baseline.kind}", role not in watched[game]
                games[game][role] = WatchedRole(role in trained, kinds, share, may_return_fall, role in credited)
        policies = [name for name, policy in scenario.policies.items() if policy.learner]
        return cls(scenario.alarms, games.get("", {}), policies, games if scenario.games else None)

    def __call__(self, metrics: Mapping[str, float]) -> tuple[Metrics, list[Alarm]]:
        """Process the metrics of one step; return the alarm metrics and the alarms raised in this step.

        The metric `alarm/ROLE/KIND` (with several games `game/GAME/alarm/ROLE/KIND`) is 1 while an alarm holds, and 0
        in the step in which it ends.
        """
        by_scope: dict[str, Mapping[str, float]] = {}
        states: Metrics = {}
        raised: list[Alarm] = []
        for watch in self._watches:
            scope = watch.scope
            if scope not in by_scope:
                # With several games, metrics get a game's prefix, which is removed here.
                by_scope[scope] = {name[len(scope) :]: metrics[name] for name in metrics if name.startswith(scope)}
            held = watch.is_alarm_active
            alarm = watch.update(by_scope[scope])
            if alarm:
                raised.append(alarm)
            if held or watch.is_alarm_active:
                states[watch.metric] = float(watch.is_alarm_active)
        return states, raised

    def ends_run(self, alarm: Alarm) -> bool:
        return alarm.kind in self._stop
