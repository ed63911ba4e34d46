"""Where values of states come from, and the baseline that is one: what an agent could expect before it spoke."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, Literal, Protocol, Self

from pydantic import Field, model_validator

from marl.protocols import Baseline, BaselineConfig, CreditPart, Evidence, Stateful
from marl.types import Advantage, Credit, Metrics, TurnId

Floats = tuple[float, ...]


class Values(Stateful, Protocol):
    """What states are worth before anything is said in them."""

    needs: frozenset[str]

    def of(self, evidence: Evidence) -> Mapping[TurnId, Floats]:
        """Value of the state before each token of a turn, or before the first one alone. Not of every turn."""
        ...

    def learn(self, evidence: Evidence, targets: Mapping[TurnId, float]) -> None:
        """Fit the values at the turns' prompts to what followed, for the steps to come."""
        ...


class Valued(CreditPart):
    """Base of parts that compare what happened with what was to be expected."""

    values: Literal["learner", "own", "none"] = "learner"
    """`learner`: the critic of each turn's learner, which must read `values`. `own`: a linear head on the hidden state
    at the prompt's last token, fitted here to earlier steps; one number a turn. `none`: every state is worth 0."""
    forget: float = Field(default=0.9, gt=0, le=1)
    """What a step's returns still count in `own` values a step later; 0.9 remembers some ten steps."""

    @property
    def needs(self) -> frozenset[str]:
        """What the values are read from."""
        return frozenset({"learner": {"values"}, "own": {"hidden"}, "none": ()}[self.values])

    def source(self) -> Values:
        """Where its values come from."""
        if self.values == "learner":
            return Readings()
        if self.values == "none":
            return Zeros()
        from credit.own_values import OwnValues

        return OwnValues(self.forget)


class Zeros:
    """Every state of every turn that has tokens is worth 0."""

    needs = frozenset[str]()

    def of(self, evidence: Evidence) -> Mapping[TurnId, Floats]:
        """A 0 for each token."""
        turns = [turn for trajectory in evidence.trajectories for turn in trajectory.turns]
        return {turn.id: (0.0,) * len(turn.completion.token_ids) for turn in turns if turn.completion.token_ids}

    def learn(self, evidence: Evidence, targets: Mapping[TurnId, float]) -> None:
        """There is nothing to learn."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing to restore."""


class Readings:
    """The values that learners read: `Reading.values`.

    `values[t]` is what the critic says of the state before token t: it is read at the token before, so `values[0]` at
    the last token of the prompt. `Reading.next_value` is the state's after the last token, for truncated episodes.
    """

    needs = frozenset({"values"})

    def of(self, evidence: Evidence) -> Mapping[TurnId, Floats]:
        """Raises:
        ValueError: if turns were read, but without values; or some, but not all, of a turn's tokens have one.
        """
        found = {turn: reading.values for turn, reading in evidence.readings.items() if reading.values}
        if not found and any(trajectory.turns for trajectory in evidence.trajectories):
            raise ValueError(
                "credit.values: 'learner', but no turn was read with values: no learner here has a critic; "
                "choices: learner (with one that has), own"
            )
        for turn in (turn for trajectory in evidence.trajectories for turn in trajectory.turns):
            many, tokens = len(found.get(turn.id, ())), len(turn.completion.token_ids)
            if many and many != tokens:
                raise ValueError(f"turn {turn.id} has {tokens} tokens, but reading.values has {many} numbers")
        return found

    def learn(self, evidence: Evidence, targets: Mapping[TurnId, float]) -> None:
        """Nothing: the learner does, from `Advantage.returns`."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing to restore."""


class Value(Valued, BaselineConfig):
    """A critic: A = earned - V(prompt), and what was earned is the value target (`Advantage.returns`, one a turn).

    A turn without a value, because nobody learns from it, is not judged. Both sources were fitted before this step, so
    that what a turn is compared with does not depend on what it earned: the policy gradient stays unbiased.
    """

    kind: str = "value"

    @model_validator(mode="after")
    def _compares(self) -> Self:
        if self.values == "none":
            raise ValueError("values: 'none' compares with 0, which is baseline: none; choices: learner, own")
        return self

    def build(self) -> Baseline:
        return Critic(self.source())


class Critic:
    """Compares with the values of a source."""

    def __init__(self, source: Values) -> None:
        self._source = source
        self.needs = source.needs

    def __call__(self, evidence: Evidence, earned: Credit) -> tuple[Credit, Metrics]:
        """Judge every turn that `earned` speaks of and that has a value."""
        values = self._source.of(evidence)
        judged = {turn: worth for turn, worth in earned.items() if turn in values}
        targets = {turn: worth.value for turn, worth in judged.items()}
        self._source.learn(evidence, targets)
        credit = {turn: _above(worth, values[turn][0]) for turn, worth in judged.items()}
        return credit, explained(evidence, targets, values)

    def state_dict(self) -> dict[str, Any]:
        return self._source.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._source.load_state_dict(state)


def _above(worth: Advantage, value: float) -> Advantage:
    return Advantage(worth.value - value, tuple([token - value for token in worth.tokens]), (worth.value,))


def explained(evidence: Evidence, targets: Mapping[TurnId, float], values: Mapping[TurnId, Floats]) -> Metrics:
    """`credit/explained_variance/ROLE`: 1 - Var(target - V) / Var(target) over its turns, if their targets differ."""
    pairs: dict[str, dict[TurnId, tuple[float, float]]] = defaultdict(dict)
    for trajectory in evidence.trajectories:
        for turn in trajectory.turns:
            if turn.id in targets:
                target = targets[turn.id]
                pairs[turn.role][turn.id] = target, target - values[turn.id][0]
    shares = {role: _share(*zip(*found.values(), strict=True)) for role, found in sorted(pairs.items())}
    return {f"credit/explained_variance/{role}": share for role, share in shares.items() if share is not None}


def _share(targets: Sequence[float], rests: Sequence[float]) -> float | None:
    spread = _variance(targets)
    return 1 - _variance(rests) / spread if spread else None


def _variance(numbers: Sequence[float]) -> float:
    mean = fmean(numbers)
    return fmean([(number - mean) ** 2 for number in numbers])
