"""Settings of alarms: thresholds beyond which a run warns of a collapsing role, policy or reward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from marl.core.config import Config, DistinctValues

AlarmKind = Literal["constant", "unreadable", "repeated", "distinct", "entropy", "length", "cut", "return_fell",
                    "reward", "credit", "faulty", "samples", "kl", "proxy"]  # fmt: skip
"""Kind of an alarm. Every kind except `credit` and `samples` has its own threshold."""
Share = Annotated[float, Field(ge=0, le=1)]


class AlarmThresholds(Config):
    """Thresholds of the alarms that warn of a role's collapsing answers. Null switches an alarm off."""

    patience: PositiveInt = 5
    """Number of consecutive training steps beyond a threshold after which an alarm is raised."""
    turns: PositiveInt = 16
    """Minimum number of the role's turns in a training step. Alarms ignore steps with fewer turns."""
    constant: Share | None = 0.98
    """Maximum share of the role's choices with the same move in different situations, such as a critic that always says
    yes. Choices that an exploring engine makes at random are not counted. Null: no alarm."""
    unreadable: Share | None = 0.5
    """Maximum share of the role's turns from which no legal move can be parsed. Null: no alarm."""
    repeated: Share | None = 0.9
    """Maximum probability that two answers to different questions have the same text. Null: no alarm."""
    distinct: Share | None = 0.2
    """Minimum of distinct-2 (different bigrams of tokens / bigrams), as a share of its value at the start of the run.
    Null: no alarm."""
    entropy: tuple[float, float] | None = (0.001, 4.0)
    """Minimum and maximum of the entropy, in nats per sampled token. Null: no alarm."""
    length: tuple[float, float] | None = (0.2, 5.0)
    """Minimum and maximum length of a turn, as multiples of its mean length at the start of the run. Null: no alarm."""
    cut: Share | None = 0.5
    """Maximum share of the role's turns cut off at `sampling.max_tokens`. Null: no alarm."""
    return_fell: PositiveFloat | None = 0.5
    """Maximum fall of a trained role's mean return (over ten steps) below its best such mean, in standard deviations of
    the returns of all episodes of ten steps (0.5 is a medium effect in Cohen's convention). Not watched in
    zero-sum games that two trained roles play, or a league's player against itself or its pool, nor in recorded play.
    Null: no alarm."""
    reward: float | None = Field(default=1e-6, ge=0)
    """Minimum standard deviation of a trained role's returns; equal returns teach nothing. Null: no alarm."""
    faulty: Share | None = 0.01
    """Maximum share of a verifier's verdicts in which a check's code failed; above 0.1, the run ends. Null: off."""

    def alarm_threshold(self, kind: AlarmKind) -> Any:
        """Return the threshold of alarm `kind`, or None if it is off. Alarm `credit` is off if `reward` is off."""
        if kind == "credit" and self.reward is None:
            return None
        return 0.0 if kind in ("credit", "samples") else dict(self).get(kind)

    @model_validator(mode="after")
    def _check_threshold_ranges(self) -> Self:
        for name, limits in (("entropy", self.entropy), ("length", self.length)):
            if limits and not limits[0] < limits[1]:
                raise ValueError(f"{name}: {list(limits)} is no range; give [low, high] with low < high")
        return self


class ProxyPair(Config):
    """Two evaluation metrics that move apart when a role learns to please its reward instead of doing its task."""

    rises: str
    """Name of the metric that rises, such as `eval/held_out/score`; a team's `measures` define it."""
    falls: str
    """Name of the metric that falls, such as `eval/held_out/success`."""

    @property
    def short_name(self) -> str:
        """Last parts of both names, such as `score-success`."""
        return f"{self.rises.rpartition('/')[2]}-{self.falls.rpartition('/')[2]}"

    @property
    def full_name(self) -> str:
        """Both names without `eval`, such as `nim.held_out.score-nim.held_out.success`."""
        return "-".join([name.removeprefix("eval/").replace("/", ".") for name in (self.rises, self.falls)])


class AlarmSettings(AlarmThresholds):
    """Settings of alarms: thresholds for all roles, thresholds of single roles, and alarms that end the run."""

    roles: dict[str, AlarmThresholds | None] = Field(default_factory=dict)
    """Role -> thresholds of this role. Omitted thresholds are the general ones. Null: no alarms for this role."""
    kl: PositiveFloat | None = 0.2
    """Maximum KL (nats a token) by which the optimizer steps of one update move a policy (`policy/POLICY/kl_update`),
    with several optimizer steps in an update. With `learner.old: sampler`, a sampler that differs from the learner
    adds to it. Null: no alarm."""
    proxy: tuple[ProxyPair, ...] = ()
    """Pairs of evaluation metrics. The alarm `proxy` is raised if, over `patience` evaluations, one rises and the
    other falls, each beyond its 95 % interval: a role learns its reward and not the task."""
    stop: DistinctValues[AlarmKind] = ()
    """Kinds of alarms that end the run after a checkpoint."""

    @property
    def proxy_by_name(self) -> dict[str, ProxyPair]:
        """Name in metrics and messages -> pair. Pairs with one short name, as of several games, have full names."""
        counts = Counter([pair.short_name for pair in self.proxy])
        return {pair.short_name if counts[pair.short_name] == 1 else pair.full_name: pair for pair in self.proxy}

    @model_validator(mode="before")
    @classmethod
    def _copy_general_alarm_thresholds_to_roles(cls, data: Any) -> Any:
        """Add general thresholds that roles leave out, so that the resolved scenario states every threshold."""
        if not isinstance(data, Mapping) or not isinstance(roles := data.get("roles"), Mapping):
            return data
        general = {name: data[name] for name in AlarmThresholds.model_fields if name in data}
        merged = dict(roles)
        for role, thresholds in roles.items():
            if isinstance(thresholds, Mapping):
                merged[role] = {**general, **thresholds}
        return {**data, "roles": merged}

    def alarm_thresholds_of_role(self, role: str) -> AlarmThresholds | None:
        """Return the thresholds of `role`, or None if its alarms are off."""
        return self.roles.get(role, self)
