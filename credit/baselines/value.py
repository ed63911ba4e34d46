"""Values of the state before a turn: sources of the values, and the baseline that subtracts them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, Literal, Protocol, Self

from pydantic import Field, model_validator

from marl.core.types import Advantage, Credit, Metrics, TurnId
from marl.protocols import BaselineConfig, BaselineRule, CreditRuleConfig, Evidence

# Metrics of this module (name | unit | meaning), which `tests/bench/figures.py` copies into marl/README.md.
METRICS = """
credit/explained_variance/ROLE | ratio | 1 - Var(target - V) / Var(target) of the values at the prompts (`gae`,
    `chain_gae`, `graph_gae`, `value`)
"""

Floats = tuple[float, ...]


class ValueSource(Protocol):
    """Source of the values of states before turns. By default all values are 0, and nothing is fitted or stored."""

    needed_reading_fields: frozenset[str] = frozenset()

    def values(self, evidence: Evidence) -> Mapping[TurnId, Floats]:
        """Return turn -> values before its tokens, or before its first token alone; turns without values are absent."""
        values: dict[TurnId, Floats] = {}
        for trajectory in evidence.trajectories:
            for turn in trajectory.turns:
                if turn.completion.token_ids:
                    values[turn.id] = (0.0,) * len(turn.completion.token_ids)
        return values

    def fit_values(self, evidence: Evidence, targets: Mapping[TurnId, float]) -> None:
        """Fit the values at the turns' prompts to `targets` (turn -> its return), for later steps."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore nothing: there is no state."""


class ZeroValues(ValueSource):
    """Source of values that gives every state the value 0."""


class LearnerCriticValues(ValueSource):
    """Source of values that reads them from the learners' critics, `Reading.values`.

    The learners fit their critics to `Advantage.returns`; this class fits nothing. `values[t]` is the critic's value of
    the state before token t, read at the previous token; `values[0]` is read at the last token of the prompt.
    `Reading.next_value` is the value after the last token, for truncated episodes.
    """

    needed_reading_fields = frozenset({"values"})

    def values(self, evidence: Evidence) -> Mapping[TurnId, Floats]:
        """Return turn -> values before each of its tokens, for turns that were read with values.

        Raises:
            ValueError: if no turn was read with values, or only some of a turn's tokens have a value.
        """
        values = {turn: reading.values for turn, reading in evidence.readings.items() if reading.values}
        if not values and evidence.turns():
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
    """Base of the settings of rules that read state values (GAE, the baseline `value`): the source of these values."""

    values: Literal["learner", "own", "none"] = "learner"
    """Source of the values of states before turns. `learner`: the critic of each turn's learner. `own`: a linear head
    on the hidden state at the prompt's last token, fitted by this rule to earlier steps; one value per turn. `none`:
    every state has value 0."""
    forget: float = Field(default=0.9, gt=0, le=1)
    """Factor by which the weight of earlier steps' returns is multiplied at each step, in the fit of `values: own`. 0.9
    averages over about ten steps."""

    @property
    def needed_reading_fields(self) -> frozenset[str]:
        """Return the fields of `Reading` that the source needs: values, or hidden states for `own` values."""
        return frozenset({"learner": {"values"}, "own": {"hidden"}, "none": ()}[self.values])

    def build_value_source(self) -> ValueSource:
        """Return the source of values that the setting `values` names."""
        if self.values != "own":
            return LearnerCriticValues() if self.values == "learner" else ZeroValues()
        from marl.credit.baselines.ridge_values import RidgeValueSource

        return RidgeValueSource(self.forget)


class Value(ValueSourceConfig, BaselineConfig):
    """Subtracts a critic's value: A = earned - V(prompt); the earnings are the critic's target, one per turn.

    A turn without a value, because its policy does not learn, gets no credit. The source of values was fitted before
    this step, so a value does not depend on the earnings of its turn, and the policy gradient stays unbiased.
    """

    kind: str = "value"

    @model_validator(mode="after")
    def _refuse_values_none(self) -> Self:
        if self.values == "none":
            raise ValueError("values: 'none' compares with 0, which is baseline: none; choices: learner, own")
        return self

    def build(self) -> BaselineRule:
        return CriticBaseline(self.build_value_source())


class CriticBaseline:
    """Baseline built from `Value`: subtracts the values of a source, and fits the source to the earnings."""

    def __init__(self, source: ValueSource) -> None:
        self._source = source
        self.needed_reading_fields = source.needed_reading_fields
        self.state_dict, self.load_state_dict = source.state_dict, source.load_state_dict

    def __call__(self, evidence: Evidence, earned: Credit) -> tuple[Credit, Metrics]:
        """Return the advantages of the turns in `earned` that have a value, and each role's explained variance."""
        values = self._source.values(evidence)
        credit: Credit = {}
        targets: dict[TurnId, float] = {}
        for turn, advantage in earned.items():
            if turn in values:
                value = values[turn][0]
                tokens = tuple([token - value for token in advantage.tokens])
                credit[turn] = Advantage(advantage.value - value, tokens, (advantage.value,), value, 1.0)
                targets[turn] = advantage.value
        # The source is fitted after the values were read, because a value must not depend on returns of its own step.
        self._source.fit_values(evidence, targets)
        return credit, explained_variance_metrics_by_role(evidence, targets, values)


def explained_variance_metrics_by_role(
    evidence: Evidence, target_by_turn: Mapping[TurnId, float], values_by_turn: Mapping[TurnId, Floats]
) -> Metrics:
    """Return `credit/explained_variance/ROLE`: 1 - Var(target - V) / Var(target), for roles whose targets differ."""
    by_role: dict[str, dict[TurnId, tuple[float, float]]] = defaultdict(dict)
    for trajectory in evidence.trajectories:
        for turn in trajectory.turns:
            if turn.id in target_by_turn:
                target = target_by_turn[turn.id]
                by_role[turn.role][turn.id] = target, target - values_by_turn[turn.id][0]
    metrics: Metrics = {}
    for role, rows in sorted(by_role.items()):
        role_targets, residuals = zip(*rows.values(), strict=True)
        if variance := _variance(role_targets):
            metrics[f"credit/explained_variance/{role}"] = 1 - _variance(residuals) / variance
    return metrics


def _variance(numbers: Sequence[float]) -> float:
    mean = fmean(numbers)
    return fmean([(number - mean) ** 2 for number in numbers])
