"""Sources of state values, and the baseline that subtracts one: what an agent could expect before it spoke."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, Literal, Protocol, Self

from pydantic import Field, model_validator

from marl.protocols import Baseline, BaselineConfig, CreditPart, Evidence
from marl.types import Advantage, Credit, Metrics, TurnId

Floats = tuple[float, ...]


class ValueSource(Protocol):
    """Values of states before anything is said in them; by default 0, with nothing to learn and no state."""

    needs: frozenset[str] = frozenset()

    def values(self, evidence: Evidence) -> Mapping[TurnId, Floats]:
        """Return the values before each token of a turn, or before its first token alone; some turns may have none."""
        turns = [turn for trajectory in evidence.trajectories for turn in trajectory.turns]
        return {turn.id: (0.0,) * len(turn.completion.token_ids) for turn in turns if turn.completion.token_ids}

    def learn(self, evidence: Evidence, targets: Mapping[TurnId, float]) -> None:
        """Fit the values at the turns' prompts to `targets`, for the steps to come."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore nothing: there is no state."""


class ZeroValues(ValueSource):
    """Value 0 of every state."""


class LearnerValues(ValueSource):
    """Values that learners read, `Reading.values`; they learn from `Advantage.returns`, so nothing is fitted here.

    `values[t]` is the critic's value of the state before token t: it is read at the token before, so `values[0]` at
    the last token of the prompt. `Reading.next_value` is the state's after the last token, for truncated episodes.
    """

    needs = frozenset({"values"})

    def values(self, evidence: Evidence) -> Mapping[TurnId, Floats]:
        """Raises:
        ValueError: if turns were read, but without values; or if only some of a turn's tokens have one.
        """
        values = {turn: reading.values for turn, reading in evidence.readings.items() if reading.values}
        if not values and any(trajectory.turns for trajectory in evidence.trajectories):
            raise ValueError(
                "credit.values: 'learner', but no turn was read with values: no learner here has a critic; "
                "choices: learner (with one that has), own"
            )
        for turn in (turn for trajectory in evidence.trajectories for turn in trajectory.turns):
            many, tokens = len(values.get(turn.id, ())), len(turn.completion.token_ids)
            if many and many != tokens:
                raise ValueError(f"turn {turn.id} has {tokens} tokens, but reading.values has {many} numbers")
        return values


class ValueSettings(CreditPart):
    """Base of the settings of parts that compare returns with expected ones."""

    values: Literal["learner", "own", "none"] = "learner"
    """`learner`: the critic of each turn's learner, which must read `values`. `own`: a linear head on the hidden state
    at the prompt's last token, fitted here to earlier steps; one number a turn. `none`: every state is worth 0."""
    forget: float = Field(default=0.9, gt=0, le=1)
    """Weight of a step's returns in `own` values a step later; 0.9 remembers some ten steps."""

    @property
    def needs(self) -> frozenset[str]:
        """Return the fields of `Reading` that the values are read from."""
        return frozenset({"learner": {"values"}, "own": {"hidden"}, "none": ()}[self.values])

    def build_source(self) -> ValueSource:
        """Return the source of the values."""
        if self.values != "own":
            return LearnerValues() if self.values == "learner" else ZeroValues()
        from credit.own_values import OwnValues

        return OwnValues(self.forget)


class Value(ValueSettings, BaselineConfig):
    """A critic: A = earned - V(prompt), and what was earned is the value target (`Advantage.returns`, one a turn).

    A turn without a value, because nobody learns from it, is not judged. Both sources were fitted before this step, so
    that a value does not depend on what its turn earned: the policy gradient stays unbiased.
    """

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
        """Return the advantage of every turn that `earned` holds and that has a value."""
        values = self._source.values(evidence)
        judged = {turn: advantage for turn, advantage in earned.items() if turn in values}
        targets = {turn: advantage.value for turn, advantage in judged.items()}
        self._source.learn(evidence, targets)
        credit = {turn: _above(advantage, values[turn][0]) for turn, advantage in judged.items()}
        return credit, explained_variance(evidence, targets, values)


def _above(earned: Advantage, value: float) -> Advantage:
    tokens = tuple([token - value for token in earned.tokens])
    return Advantage(earned.value - value, tokens, (earned.value,), value, 1.0)


def explained_variance(evidence: Evidence, targets: Mapping[TurnId, float], values: Mapping[TurnId, Floats]) -> Metrics:
    """Return `credit/explained_variance/ROLE`: 1 - Var(target - V) / Var(target), for roles whose targets differ."""
    pairs: dict[str, dict[TurnId, tuple[float, float]]] = defaultdict(dict)
    for trajectory in evidence.trajectories:
        for turn in trajectory.turns:
            if turn.id in targets:
                target = targets[turn.id]
                pairs[turn.role][turn.id] = target, target - values[turn.id][0]
    variances = {
        role: [_variance(column) for column in zip(*rows.values(), strict=True)] for role, rows in pairs.items()
    }
    return {
        f"credit/explained_variance/{role}": 1 - rest / all_ for role, (all_, rest) in sorted(variances.items()) if all_
    }


def _variance(numbers: Sequence[float]) -> float:
    mean = fmean(numbers)
    return fmean([(number - mean) ** 2 for number in numbers])
