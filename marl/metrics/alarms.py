"""Collapse alarms: a role that stops saying anything worth learning from is told of, loudly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from marl.config import Config
from marl.errors import RunError
from marl.types import Metrics

if TYPE_CHECKING:
    from marl.scenario.schema import Scenario

Kind = Literal["constant", "unreadable", "repeated", "distinct", "entropy", "length", "cut", "reward"]
Share = Annotated[float, Field(ge=0, le=1)]
_START = 10
"""How many steps make the start that later ones are compared with."""


class Thresholds(Config):
    """When something is wrong with what a role says. Null: never."""

    patience: PositiveInt = 5
    """Steps in a row before an alarm is raised."""
    turns: PositiveInt = 16
    """Steps in which the role had fewer turns are not judged."""
    constant: Share | None = 0.98
    """One move takes this share of the role's choices, or more, whatever it is asked: a critic that always says yes."""
    unreadable: Share | None = 0.5
    """No legal move can be read from this share of its turns, or more."""
    repeated: Share | None = 0.9
    """Two answers to different questions are the same text with this probability, or a higher one."""
    distinct: Share | None = 0.2
    """distinct-2 has fallen to this share of what it was at the start, or less."""
    entropy: tuple[float, float] | None = (0.001, 4.0)
    """Nats a sampled token, at or below the first or at or above the second."""
    length: tuple[float, float] | None = (0.2, 5.0)
    """Tokens a turn, at or below the first multiple of what they were at the start or at or above the second."""
    cut: Share | None = 0.5
    """This share of its turns, or more, is cut off by max_tokens."""
    reward: float | None = Field(default=1e-6, ge=0)
    """The returns of a role that learns from them have this standard deviation, or less: nothing to learn."""

    def of_kind(self, kind: Kind) -> Any:
        """The threshold of one kind of alarm; None: off."""
        return dict(self)[kind]

    @model_validator(mode="after")
    def _ranges(self) -> Self:
        for name, limits in (("entropy", self.entropy), ("length", self.length)):
            if limits and not limits[0] < limits[1]:
                raise ValueError(f"{name}: {list(limits)} is no range; give [low, high] with low < high")
        return self


class Alarms(Thresholds):
    """For every role, roles with thresholds of their own, and which alarms end the run."""

    roles: dict[str, Thresholds | None] = Field(default_factory=dict)
    """Role -> its own; what is left out is as for every role. Null: no alarms for this role."""
    stop: tuple[Kind, ...] = ()
    """Alarms that end the run, after a checkpoint."""

    @model_validator(mode="before")
    @classmethod
    def _inherit(cls, data: Any) -> Any:
        """Roles inherit what they leave out, so that the resolved scenario says all of it."""
        if not isinstance(data, Mapping) or not isinstance(roles := data.get("roles"), Mapping):
            return data
        general = {name: data[name] for name in Thresholds.model_fields if name in data}
        own = {role: {**general, **its} if isinstance(its, Mapping) else its for role, its in roles.items()}
        return {**data, "roles": own}

    def of(self, role: str) -> Thresholds | None:
        return self.roles.get(role, self)


class Collapse(RunError):  # noqa: N818 (says what happened)
    """An alarm that ends the run."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """One that has just been raised."""

    role: str
    kind: Kind
    value: float
    turns: int
    limit: str
    """What was overstepped, in words."""
    patience: int

    def message(self, favourite: str) -> str:
        """What is shouted; `favourite`: the move that the role makes most often."""
        words = _SIGNS[self.kind].words.format(value=self.value, move=favourite, turns=self.turns)
        return f"ALARM role {self.role}: {words} ({self.kind} {self.limit}) for {self.patience} steps"


@dataclass(frozen=True, slots=True)
class _Sign:
    """What a kind of alarm looks at."""

    figure: str
    """`role/NAME/...`"""
    words: str
    limits: Callable[[Any], tuple[float, float]]
    """Threshold -> the range of what is fine, its ends left out."""
    relative: bool = False
    """Whether limits are multiples of the figure at the start."""


def _below(most: float) -> tuple[float, float]:
    return float("-inf"), most


def _above(least: float) -> tuple[float, float]:
    return least, float("inf")


def _between(limits: tuple[float, float]) -> tuple[float, float]:
    return limits


_SIGNS: dict[Kind, _Sign] = {
    "constant": _Sign("constant", "says {move!r} in {value:.0%} of its choices ({turns} turns a step)", _below),
    "unreadable": _Sign("illegal", "{value:.0%} of {turns} turns a step cannot be read", _below),
    "repeated": _Sign("repeated", "repeats itself, whatever it is asked, with probability {value:.2f}", _below),
    "distinct": _Sign("distinct2", "says few different things: distinct-2 is {value:.3g}", _above, relative=True),
    "entropy": _Sign("entropy", "samples at {value:.3g} nats a token", _between),
    "length": _Sign("tokens", "says {value:.3g} tokens a turn", _between, relative=True),
    "cut": _Sign("cut", "{value:.0%} of {turns} turns a step are cut off by max_tokens", _below),
    "reward": _Sign("reward_std", "its returns are all the same (standard deviation {value:.2g})", _above),
}


class _Streak:
    """For how many steps one sign has been bad in one role."""

    def __init__(self, role: str, kind: Kind, thresholds: Thresholds) -> None:
        self.kind: Kind = kind
        self.role, self._thresholds, self._sign = role, thresholds, _SIGNS[kind]
        self._limits = self._sign.limits(thresholds.of_kind(kind))
        self.bad = 0
        self._start: list[float] = []

    @property
    def held(self) -> bool:
        return self.bad >= self._thresholds.patience

    def take(self, metrics: Mapping[str, float]) -> Alarm | None:
        """The alarm, in the step in which it is raised."""
        turns, value = (metrics.get(f"role/{self.role}/{name}") for name in ("turns", self._sign.figure))
        if value is None or turns is None or turns < self._thresholds.turns:
            return None
        if self._sign.relative and len(self._start) < _START:
            self._start.append(value)
            return None
        low, high = self._range()
        if low == high:
            return None  # multiples of nothing: players by rule say no tokens
        self.bad = 0 if low < value < high else self.bad + 1
        if self.bad != self._thresholds.patience:
            return None
        limit = f">= {high:.4g}" if value >= high else f"<= {low:.4g}"
        return Alarm(self.role, self.kind, value, int(turns), limit, self._thresholds.patience)

    def _range(self) -> tuple[float, float]:
        """Of what is fine, its ends left out."""
        low, high = self._limits
        scale = fmean(self._start) if self._sign.relative else 1.0
        return low * scale, high * scale


def _kinds(thresholds: Thresholds, *, learns: bool) -> Iterator[Kind]:
    for kind in _SIGNS:
        if thresholds.of_kind(kind) is not None and (learns or kind != "reward"):
            yield kind


class Watch:
    """Which alarms hold. Follows from the rows of metrics.jsonl alone: a run that goes on takes them in again."""

    def __init__(self, settings: Alarms | None, roles: Mapping[str, bool]) -> None:
        """`roles`: each role, and whether it learns from its rewards."""
        self._stop = settings.stop if settings else ()
        watched = {role: settings.of(role) for role in roles} if settings else {}
        self._streaks = [
            _Streak(role, kind, thresholds)
            for role, thresholds in watched.items()
            if thresholds
            for kind in _kinds(thresholds, learns=roles[role])
        ]

    @classmethod
    def over(cls, scenario: Scenario) -> Watch:
        """All roles of a scenario."""
        learning = {role for role, _, learner in scenario.taught() if learner.judged}
        return cls(scenario.alarms, {role: role in learning for role in scenario.roles})

    def __call__(self, metrics: Mapping[str, float]) -> tuple[Metrics, list[Alarm]]:
        """Take in a step's metrics.

        Returns:
            `alarm/ROLE/KIND`, 1 while an alarm holds and 0 when it ends; and the alarms raised by this step.
        """
        before = {streak for streak in self._streaks if streak.held}
        raised = [alarm for streak in self._streaks if (alarm := streak.take(metrics))]
        told = [streak for streak in self._streaks if streak.held or streak in before]
        return {f"alarm/{streak.role}/{streak.kind}": float(streak.held) for streak in told}, raised

    def ends_run(self, alarm: Alarm) -> bool:
        return alarm.kind in self._stop
