"""State values before an agent speaks: their sources, and the baseline that subtracts them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, Literal, Protocol, Self

from pydantic import Field, model_validator

from marl.core.types import Advantage, Credit, Metrics, TurnId
from marl.protocols import Baseline, BaselineConfig, CreditRuleConfig, Evidence

Floats = tuple[float, ...]


class ValueSource(Protocol):
    """Source of state values; by default all values are 0, without fitting and without a state."""

    needs: frozenset[str] = frozenset()

    def values(self, evidence: Evidence) -> Mapping[TurnId, Floats]:
        """Return the values before each token of a turn, or before its first token alone; some turns may be absent."""
        values: dict[TurnId, Floats] = {}
        for trajectory in evidence.trajectories:
            for turn in trajectory.turns:
                if turn.completion.token_ids:
                    values[turn.id] = (0.0,) * len(turn.completion.token_ids)
        return values

    def learn(self, evidence: Evidence, targets: Mapping[TurnId, float]) -> None:
        """Fit the values at the turns' prompts to `targets`, for later steps."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore nothing: there is no state."""


class ZeroValues(ValueSource):
    """Value 0 of every state."""


class LearnerValues(ValueSource):
    """Values from the learners' critics, `Reading.values`. Learners fit them to `Advantage.returns`, not this class.

    `values[t]` is the critic's value of the state before token t, read at the previous token; `values[0]` is read at
    the last token of the prompt. `Reading.next_value` is the value after the last token, for truncated episodes.
    """

    needs = frozenset({"values"})

    def values(self, evidence: Evidence) -> Mapping[TurnId, Floats]:
        """Return the values before each token of the turns that were read with values.

        Raises:
            ValueError: if no turn was read with values, or only some of a turn's tokens have a value.
        """
        values = {turn: reading.values for turn, reading in evidence.readings.items() if reading.values}
        if not values and any(trajectory.turns for trajectory in evidence.trajectories):
            raise ValueError(
                "credit.values: 'learner', but no turn was read with values: no learner here has a critic; "
                "choices: learner (with one that has), own"
            )
        for trajectory in evidence.trajectories:
            for turn in trajectory.turns:
                count, tokens = len(values.get(turn.id, ())), len(turn.completion.token_ids)
                if count and count != tokens:
                    raise ValueError(f"turn {turn.id} has {tokens} tokens, but reading.values has {count} numbers")
        return values


class ValueSourceConfig(CreditRuleConfig):
    """Base of the settings of rules that compare returns with expected returns."""

    values: Literal["learner", "own", "none"] = "learner"
    """`learner`: the critic of each turn's learner, which must read `values`. `own`: a linear head on the hidden state
    at the prompt's last token, fitted here to earlier steps; one number a turn. `none`: every state has value 0."""
    forget: float = Field(default=0.9, gt=0, le=1)
    """Weight of a step's returns in `own` values a step later; 0.9 averages over some ten steps."""

    @property
    def needs(self) -> frozenset[str]:
        """Return the fields of `Reading` that contain the values, or the features of own values."""
        return frozenset({"learner": {"values"}, "own": {"hidden"}, "none": ()}[self.values])

    def build_source(self) -> ValueSource:
        """Return the source of the values."""
        if self.values != "own":
            return LearnerValues() if self.values == "learner" else ZeroValues()
        from marl.credit.baselines.ridge_values import RidgeValues

        return RidgeValues(self.forget)


class Value(ValueSourceConfig, BaselineConfig):
    """A critic: A = earned - V(prompt), with the earnings as value target (`Advantage.returns`, one a turn).

    A turn without a value, because its policy does not learn, gets no credit. Both sources were fitted before this
    step, so a value does not depend on the earnings of its turn: the policy gradient stays unbiased."""

    kind: str = "value"

    @model_validator(mode="after")
    def _compares(self) -> Self:
        if self.values == "none":
            raise ValueError("values: 'none' compares with 0, which is baseline: none; choices: learner, own")
        return self

    def build(self) -> Baseline:
        return CriticBaseline(self.build_source())


class CriticBaseline:
    """Comparison with the values of a source."""

    def __init__(self, source: ValueSource) -> None:
        self._source = source
        self.needs = source.needs
        self.state_dict, self.load_state_dict = source.state_dict, source.load_state_dict

    def __call__(self, evidence: Evidence, earned: Credit) -> tuple[Credit, Metrics]:
        """Return the advantage of every turn in `earned` with a value, and the share of explained variance by role."""
        values = self._source.values(evidence)
        credit: Credit = {}
        targets: dict[TurnId, float] = {}
        for turn, advantage in earned.items():
            if turn in values:
                value = values[turn][0]
                tokens = tuple([token - value for token in advantage.tokens])
                credit[turn] = Advantage(advantage.value - value, tokens, (advantage.value,), value, 1.0)
                targets[turn] = advantage.value
        # After the values were read: a value must not depend on its own step.
        self._source.learn(evidence, targets)
        return credit, explained_variance(evidence, targets, values)


def explained_variance(evidence: Evidence, targets: Mapping[TurnId, float], values: Mapping[TurnId, Floats]) -> Metrics:
    """Return `credit/explained_variance/ROLE`: 1 - Var(target - V) / Var(target), for roles whose targets differ."""
    by_role: dict[str, dict[TurnId, tuple[float, float]]] = defaultdict(dict)
    for trajectory in evidence.trajectories:
        for turn in trajectory.turns:
            if turn.id in targets:
                target = targets[turn.id]
                by_role[turn.role][turn.id] = target, target - values[turn.id][0]
    metrics: Metrics = {}
    for role, rows in sorted(by_role.items()):
        role_targets, residuals = zip(*rows.values(), strict=True)
        if variance := _variance(role_targets):
            metrics[f"credit/explained_variance/{role}"] = 1 - _variance(residuals) / variance
    return metrics


def _variance(numbers: Sequence[float]) -> float:
    mean = fmean(numbers)
    return fmean([(number - mean) ** 2 for number in numbers])
